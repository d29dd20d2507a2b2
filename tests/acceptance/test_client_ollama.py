"""The official `ollama` client, unmodified, with the real model."""

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import ollama
import pytest
from pydantic import BaseModel, Field
from serving import MODEL, SECONDS, Served

import looseleaf

pytestmark = [pytest.mark.model, pytest.mark.timeout(240)]

QUESTION = "What is the capital of Japan?"
ANSWER = "The capital of Japan is Tokyo."
ASKED: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": QUESTION}],
    "options": {"temperature": 0, "num_predict": 40},
}


class Place(BaseModel, extra="forbid"):
    country: Literal["France", "Japan", "Peru"]
    population: int = Field(ge=0, le=99_999_999)


def get_weather(city: Literal["Rome", "Oslo"]) -> str:
    """The weather of a city.

    Args:
        city: Where.
    """
    return f"Sunny in {city}."


@pytest.fixture(scope="module")
def client(model_server: Served) -> Iterator[ollama.Client]:
    with ollama.Client(host=model_server.url, timeout=SECONDS) as made:
        yield made


def check_end(answer: Any) -> None:
    assert answer.done
    assert answer.done_reason == "stop"
    assert answer.total_duration >= answer.eval_duration > 0
    assert 0 < answer.eval_count < 20
    assert answer.prompt_eval_count > 10


def test_chat(client: ollama.Client) -> None:
    whole = client.chat(**ASKED)
    assert whole.model == MODEL
    assert (whole.message.role, whole.message.content) == ("assistant", ANSWER)
    check_end(whole)
    pieces = list(client.chat(**ASKED, stream=True))
    assert "".join(piece.message.content or "" for piece in pieces) == ANSWER
    assert len(pieces) > 4
    assert not any(piece.done for piece in pieces[:-1])
    check_end(pieces[-1])
    assert pieces[-1].eval_count == whole.eval_count
    cut = client.chat(**{**ASKED, "options": {"temperature": 0, "num_predict": 2}})
    assert (cut.done_reason, cut.eval_count) == ("length", 2)
    stopped = client.chat(**{**ASKED, "options": {"temperature": 0, "stop": ["Tokyo"]}})
    assert stopped.message.content == "The capital of Japan is "


def test_generate(client: ollama.Client) -> None:
    fields = {"model": f"{MODEL}:latest", "prompt": QUESTION, "options": ASKED["options"]}
    whole = client.generate(**fields)
    assert whole.response == ANSWER
    check_end(whole)
    pieces = list(client.generate(**fields, stream=True))
    assert "".join(piece.response for piece in pieces) == ANSWER
    check_end(pieces[-1])
    raw = client.generate(
        model=MODEL,
        prompt="One, two, three, four,",
        raw=True,
        options={"temperature": 0, "num_predict": 6},
    )
    assert raw.response.startswith(" five, six,")


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema(client: ollama.Client, stream: bool) -> None:
    asked = [{"role": "user", "content": "Where is Tokyo? Answer as JSON."}]
    schema = Place.model_json_schema()
    answer: Any = client.chat(**{**ASKED, "messages": asked}, format=schema, stream=stream)
    pieces = list(answer) if stream else [answer]
    Place.model_validate_json("".join(piece.message.content for piece in pieces))
    text = client.generate(
        model=MODEL, prompt="A place as JSON.", format=schema, options=ASKED["options"]
    )
    Place.model_validate_json(text.response)


def test_tools_that_may_be_used(client: ollama.Client) -> None:
    answer = client.chat(**ASKED, tools=[get_weather])
    assert bool(answer.message.content) != bool(answer.message.tool_calls)
    for call in answer.message.tool_calls or []:
        assert call.function.name == "get_weather"
    earlier: Any = [
        {"role": "user", "content": "How is the weather in Rome?"},
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}],
        },
        {"role": "tool", "tool_name": "get_weather", "content": get_weather("Rome")},
    ]
    told = client.chat(**{**ASKED, "messages": earlier}, tools=[get_weather])
    assert told.done_reason in ("stop", "length")


def test_what_is_there(client: ollama.Client, model_server: Served) -> None:
    (card,) = client.list().models
    assert card.model == f"{MODEL}:latest"
    assert card.details is not None
    assert card.details.format == "gguf"
    (running,) = client.ps().models
    assert running.model == card.model
    for name in (MODEL, card.model):
        shown = client.show(name)
        assert shown.modelinfo is not None
        assert shown.modelinfo["llama.context_length"] == 2048
        assert "completion" in (shown.capabilities or [])
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat(**{**ASKED, "model": "another"})
    assert caught.value.status_code == 404
    # The client has no name for this one.
    version = httpx.get(f"{model_server.url}/api/version", timeout=SECONDS).json()
    assert version == {"version": looseleaf.__version__}


async def test_many_at_once(model_server: Served) -> None:
    async with ollama.AsyncClient(host=model_server.url, timeout=SECONDS) as many:

        async def streamed() -> str:
            pieces = await many.chat(**ASKED, stream=True)
            return "".join([piece.message.content or "" async for piece in pieces])

        assert await asyncio.gather(*(streamed() for _ in range(4))) == [ANSWER] * 4
