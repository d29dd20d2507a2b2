"""Beam search over HTTP: in the same batch as everybody else."""

import json
import threading
from typing import Any

import pytest

from looseleaf.core.request import RequestId
from looseleaf.engine.beams import BeamSearch, BeamSearchParams
from looseleaf.text.detokenizer import IncrementalDetokenizer

PROMPT = [ord(c) for c in "hello"]


def expected(server: Any, params: BeamSearchParams) -> list[str]:
    """The texts of the same search, run by hand on the server's engine."""

    def search(engine: Any) -> list[tuple[int, ...]]:
        found = BeamSearch(engine, "by-hand", PROMPT, params, frozenset(), server.context.tokenizer)
        found.start()
        while not found.finished:
            found.update(engine.step())
        return [answer.token_ids for answer in found.answers]

    answers = server.call(search)
    assert len(set(answers)) == params.beam_width
    tokenizer = server.context.tokenizer
    return [_text(tokenizer, token_ids) for token_ids in answers]


def _text(tokenizer: Any, token_ids: tuple[int, ...]) -> str:
    decoder = IncrementalDetokenizer(tokenizer, continues_text=True)
    return decoder.append(token_ids) + decoder.finish()


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": PROMPT, "max_tokens": 4, "ignore_eos": True} | fields


def texts(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    return [choice["text"] for choice in choices]


@pytest.fixture
def searcher(start_server: Any) -> Any:
    """Scripted tokens depend on those before, so that beams differ."""
    return start_server(next_token=None)


def test_the_answers_are_those_of_the_search(searcher: Any) -> None:
    client = searcher.http()
    wanted = expected(searcher, BeamSearchParams(beam_width=3, max_tokens=4))
    answer = client.post("/v1/completions", json=body(n=3, use_beam_search=True))
    found = texts(answer)
    assert found == wanted
    assert answer.json()["usage"]["completion_tokens"] == 12
    assert {choice["finish_reason"] for choice in answer.json()["choices"]} == {"length"}
    best = client.post("/v1/completions", json=body(n=1, best_of=3, use_beam_search=True))
    assert texts(best) == found[:1]


def test_the_final_beams_are_streamed(searcher: Any) -> None:
    client = searcher.http()
    whole = texts(client.post("/v1/completions", json=body(n=2, use_beam_search=True)))
    pieces = ["", ""]
    with client.stream(
        "POST", "/v1/completions", json=body(n=2, use_beam_search=True, stream=True)
    ) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    pieces[choice["index"]] += choice["text"]
    assert pieces == whole


def test_chat_has_beams_too(searcher: Any) -> None:
    answer = searcher.http().post(
        "/v1/chat/completions",
        json={
            "model": "tiny",
            "messages": [{"role": "user", "content": "hi"}],
            "n": 2,
            "max_tokens": 3,
            "use_beam_search": True,
            "length_penalty": 0.5,
            "early_stopping": True,
        },
    )
    assert answer.status_code == 200
    assert len(answer.json()["choices"]) == 2


def test_others_are_answered_beside_a_search(searcher: Any) -> None:
    client, answers = searcher.http(), {}

    def ask(name: str, **fields: Any) -> None:
        answers[name] = texts(client.post("/v1/completions", json=body(**fields)))

    alone = texts(client.post("/v1/completions", json=body(temperature=0)))
    searched = texts(client.post("/v1/completions", json=body(n=2, use_beam_search=True)))
    threads = [
        threading.Thread(target=ask, args=(f"plain {i}",), kwargs={"temperature": 0})
        for i in range(4)
    ] + [
        threading.Thread(target=ask, args=(f"beams {i}",), kwargs={"n": 2, "use_beam_search": True})
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(answers) == 8
    for name, found in answers.items():
        assert found == (alone if name.startswith("plain") else searched)


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_ends_a_beam(searcher: Any, include: bool) -> None:
    request = body(n=3, use_beam_search=True, max_tokens=12)
    whole = searcher.http().post("/v1/completions", json=request).json()
    text = whole["choices"][0]["text"]
    stop = text[2:4]
    more = {"stop": [stop], "include_stop_str_in_output": include}
    answer = searcher.http().post("/v1/completions", json=request | more).json()
    stopped = [choice for choice in answer["choices"] if choice["finish_reason"] == "stop"]
    assert stopped
    for choice in stopped:
        assert choice["stop_reason"] == stop
        assert choice["text"].count(stop) == include
        assert choice["text"].endswith(stop) == include
    for choice in answer["choices"]:
        assert (choice in stopped) or stop not in choice["text"]


def test_a_client_that_leaves_ends_its_search(start_server: Any) -> None:
    server = start_server(next_token=None, step_seconds=0.01)
    with server.http().stream(
        "POST",
        "/v1/completions",
        json=body(n=4, max_tokens=400, use_beam_search=True, stream=True),
    ):
        server.eventually(
            lambda: server.call(lambda engine: len(engine.scheduler.running)) == 4, "beams run"
        )
    server.check_idle()
    assert not server.call(lambda engine: engine.scheduler.requests.get(RequestId("req-0")))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logprobs", 1),
        ("echo", True),
        ("presence_penalty", 0.5),
        ("logit_bias", {"5": 1.0}),
    ],
)
def test_what_beams_cannot_do_is_refused_by_name(searcher: Any, name: str, value: Any) -> None:
    answer = searcher.http().post(
        "/v1/completions", json=body(use_beam_search=True) | {name: value}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name
    assert "use_beam_search" in answer.json()["error"]["message"]


def test_too_many_beams_are_refused(searcher: Any) -> None:
    answer = searcher.http().post("/v1/completions", json=body(n=11, use_beam_search=True))
    assert answer.status_code == 400
    assert "n is 11, but it must be between 1 and 10" in answer.json()["error"]["message"]
