"""/v1/responses in the background, through the official client."""

import hashlib
import time
from typing import Any

import openai
import pytest

from looseleaf.server.keys import KeyLimits, KeyRing, Tenant
from looseleaf.server.limits import Limits
from looseleaf.server.responses.store import Record, ResponseStore

FIELDS: dict[str, Any] = {"model": "tiny", "input": "hi", "background": True}


def create(server: Any, **fields: Any) -> Any:
    return server.client().responses.create(**FIELDS | fields)


def ended(server: Any, answer_id: str) -> Any:
    """The response once it has ended."""
    found: list[Any] = []

    def look() -> bool:
        found[:] = [server.client().responses.retrieve(answer_id)]
        return found[0].status not in ("queued", "in_progress")

    server.eventually(look, "it has ended", 20)
    return found[0]


def test_it_is_queued_and_runs_and_can_be_gone_on_from(start_server: Any, says: Any) -> None:
    server = start_server(next_token=says("Hello there"), max_num_seqs=1)
    server.executor.gate.clear()
    client = server.client()
    start = time.monotonic()
    first = create(server, metadata={"a": "b"})
    second = create(server)
    assert time.monotonic() - start < 5
    for made in (first, second):
        assert (made.status, made.background, made.output) == ("queued", True, [])
    server.eventually(
        lambda: client.responses.retrieve(first.id).status == "in_progress", "the first runs"
    )
    assert client.responses.retrieve(second.id).status == "queued"
    with pytest.raises(openai.BadRequestError, match="still under way"):
        create(server, previous_response_id=second.id)
    server.executor.gate.set()
    for made in (first, second):
        done = ended(server, made.id)
        assert (done.status, done.output_text) == ("completed", "Hello there")
        assert done.usage.output_tokens == 12
        assert done.created_at == made.created_at
    assert client.responses.retrieve(first.id).metadata == {"a": "b"}
    more = ended(server, create(server, previous_response_id=first.id, input="and now?").id)
    chat = [("user", "hi"), ("assistant", "Hello there"), ("user", "and now?")]
    messages = [{"role": role, "content": text} for role, text in chat]
    expected = server.http().post("/tokenize", json={"messages": messages}).json()["count"]
    assert more.usage.input_tokens == expected
    # To cancel what has ended is no mistake, and shows it.
    assert client.responses.cancel(first.id).output_text == "Hello there"


def test_one_that_runs_and_one_that_waits_are_cancelled(start_server: Any) -> None:
    server = start_server(step_seconds=0.01, max_num_seqs=1)
    client = server.client()
    made = [create(server, max_output_tokens=400) for _ in range(2)]
    server.eventually(
        lambda: client.responses.retrieve(made[0].id).status == "in_progress", "it runs"
    )
    for one in reversed(made):
        assert client.responses.cancel(one.id).status == "cancelled"
        assert ended(server, one.id).status == "cancelled"
        assert client.responses.cancel(one.id).status == "cancelled"
    server.check_idle()


def test_its_events_are_followed_left_and_taken_up_again(start_server: Any) -> None:
    server = start_server(step_seconds=0.01)
    seen = []
    with create(server, max_output_tokens=60, stream=True) as stream:
        for event in stream:
            seen.append(event)
            if len(seen) == 7:
                break  # and the connection is closed
    answer_id = seen[0].response.id
    assert [event.type for event in seen[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    assert seen[0].response.status == "queued"
    client = server.client()
    last = seen[-1].sequence_number
    with client.responses.retrieve(answer_id, stream=True, starting_after=last) as rest:
        seen += list(rest)
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert seen[-1].type == "response.incomplete"
    text = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
    done = client.responses.retrieve(answer_id)
    assert done.output_text == text
    assert done.usage is not None
    assert done.usage.output_tokens == 60
    # All of it again, by several at once; and nothing, after the last.
    with client.responses.retrieve(answer_id, stream=True) as again:
        with client.responses.retrieve(answer_id, stream=True, starting_after=3) as other:
            assert next(iter(other)).sequence_number == 4
        assert [event.model_dump() for event in again] == [event.model_dump() for event in seen]
    with client.responses.retrieve(
        answer_id, stream=True, starting_after=seen[-1].sequence_number
    ) as nothing:
        assert list(nothing) == []


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("stream=maybe", "stream must be"),
        ("stream=true&starting_after=x", "starting_after"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("starting_after=1", "starting_after goes with stream"),
        ("stream=true", "there are no events"),
    ],
)
def test_events_that_cannot_be_had(server: Any, query: str, message: str) -> None:
    made = create(server, max_output_tokens=1)
    server.http().headers["authorization"] = "Bearer none"
    answer = server.http().get(f"/v1/responses/{made.id}?{query}")
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert server.http().get(f"/v1/responses/{made.id}?stream=false").status_code == 200


def test_what_is_not_stored_cannot_go_on(server: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="background needs store"):
        create(server, store=False)


def test_nobody_else_reads_cancels_or_deletes_it(start_server: Any) -> None:
    keys = KeyRing([("sk-a", Tenant("a")), ("sk-b", Tenant("b"))])
    server = start_server(keys=keys, step_seconds=0.01)
    http = server.http()
    mine, other = {"authorization": "Bearer sk-a"}, {"x-api-key": "sk-b"}
    body = FIELDS | {"max_output_tokens": 300, "stream": True}
    with http.stream("POST", "/v1/responses", json=body, headers=mine) as stream:
        line = next(line for line in stream.iter_lines() if line.startswith("data: "))
    answer_id = line.partition('"id":"')[2].partition('"')[0]
    assert answer_id.startswith("resp_")
    url = f"/v1/responses/{answer_id}"
    for method, path in (
        *(("GET", url), ("GET", f"{url}?stream=true"), ("DELETE", url)),
        ("POST", f"{url}/cancel"),
    ):
        assert http.request(method, path, headers=other).status_code == 404
    # The same key in the other header is the same owner.
    found = http.get(url, headers={"x-api-key": "sk-a"}).json()
    assert found["status"] in ("queued", "in_progress")
    assert http.delete(url, headers=mine).json()["deleted"]
    assert http.get(url, headers=mine).status_code == 404
    server.check_idle()  # it was cancelled
    assert http.get(url, headers=mine).status_code == 404


def test_it_counts_among_those_that_a_key_may_have_at_once(start_server: Any) -> None:
    limits = KeyLimits(max_concurrent_requests=1)
    server = start_server(keys=KeyRing([("none", Tenant("a", limits))]))
    server.executor.gate.clear()
    made = create(server)
    server.http().headers["authorization"] = "Bearer none"
    with pytest.raises(openai.RateLimitError, match="1 requests under way"):
        create(server)
    server.executor.gate.set()
    ended(server, made.id)
    ended(server, create(server).id)


def test_there_may_be_so_many_at_once(start_server: Any) -> None:
    server = start_server()
    server.context.responses._max_under_way = 3
    server.executor.gate.clear()
    made = [create(server) for _ in range(3)]
    with pytest.raises(openai.RateLimitError, match="3 responses are under way"):
        create(server)
    server.executor.gate.set()
    for one in made:
        ended(server, one.id)
    assert ended(server, create(server).id).status == "incomplete"


def test_a_limit_on_its_time_is_a_failure_that_is_told(start_server: Any) -> None:
    server = start_server(step_seconds=0.02, limits=Limits(request_timeout=0.3))
    done = ended(server, create(server, max_output_tokens=400).id)
    assert done.status == "failed"
    assert "0.3 s" in done.error.message
    server.check_idle()


def test_a_failing_engine_fails_it(start_server: Any) -> None:
    server = start_server()
    server.executor.gate.clear()
    made = create(server)
    server.executor.failure = RuntimeError("broken")
    server.dead = True
    server.executor.gate.set()
    done = ended(server, made.id)
    assert done.status == "failed"
    assert "the engine has failed" in done.error.message


def test_a_server_that_shuts_down_waits_for_it(start_server: Any) -> None:
    server = start_server(step_seconds=0.01)
    made = create(server, max_output_tokens=50)
    server.server.should_exit = True
    server.thread.join(20)
    assert not server.thread.is_alive()
    owner = hashlib.sha256(b"Bearer none").hexdigest()
    record = server.context.responses.get(made.id, owner)
    assert record.answer.status == "incomplete"
    assert record.answer.usage.output_tokens == 50
    server.dead = True


def test_the_store_has_an_end() -> None:
    class Log:
        def __init__(self, size: int) -> None:
            self.events = [b"x" * size]

    store = ResponseStore(max_records=10, max_bytes=10_000)
    for number in range(5):
        record = Record("me", {"n": number}, [], Log(4000))  # type: ignore[arg-type]
        store.begin(str(number), record)
    for number in range(5):
        assert store.get(str(number), "me") is not None
        assert store.get(str(number), "you") is None
        record = store.get(str(number), "me")
        assert record is not None
        store.put(str(number), record)
    kept = [store.get(str(number), "me") is not None for number in range(5)]
    assert kept == [False, False, False, True, True]
    for number in range(20):
        store.put(f"other-{number}", Record("me", {}, []))
    assert len(store._records) <= 10
    # What was deleted while it was under way does not come back.
    record = Record("me", {}, [], Log(1))  # type: ignore[arg-type]
    store.begin("gone", record)
    store.delete("gone")
    store.put("gone", record)
    assert store.get("gone", "me") is None
