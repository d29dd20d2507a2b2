"""The official `openai` client, unmodified: chat and completions of the real model."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel, Field
from serving import MODEL, SECONDS, Served

pytestmark = [pytest.mark.model, pytest.mark.timeout(240)]

ASKED: Any = [{"role": "user", "content": "What is the capital of Japan?"}]
CHAT: dict[str, Any] = {"model": MODEL, "messages": ASKED, "temperature": 0, "max_tokens": 40}
PROMPT = "One, two, three, four,"
COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "temperature": 0, "max_tokens": 12}


class Place(BaseModel):
    """Bounded, so that a model of any size comes to its end."""

    country: Literal["France", "Japan", "Peru"]
    population: int = Field(ge=0, le=99_999_999)
    rainy: bool


@pytest.fixture(scope="module")
def client(model_server: Served) -> Iterator[OpenAI]:
    with OpenAI(
        base_url=f"{model_server.url}/v1", api_key="none", max_retries=0, timeout=SECONDS
    ) as made:
        yield made


def exact(answer: Any) -> None:
    """The client itself forgives fields that are missing or of other types; here none are."""
    type(answer).model_validate_json(answer.to_json(), strict=True)


def text_of(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def test_chat_whole_and_streamed(client: OpenAI) -> None:
    whole = client.chat.completions.create(**CHAT)
    exact(whole)
    assert whole.object == "chat.completion"
    assert whole.model == MODEL
    (choice,) = whole.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == "The capital of Japan is Tokyo."
    assert choice.finish_reason == "stop"
    usage = whole.usage
    assert usage is not None
    assert 20 < usage.prompt_tokens < 80
    assert 3 < usage.completion_tokens < 40
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens

    options: Any = {"include_usage": True}
    chunks = list(client.chat.completions.create(**CHAT, stream=True, stream_options=options))
    for chunk in chunks:
        exact(chunk)
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert text_of(chunks) == choice.message.content
    assert sum(bool(text_of([chunk])) for chunk in chunks) > 3
    ends = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert ends == [None] * (len(ends) - 1) + ["stop"]
    assert chunks[-1].choices == []
    streamed = chunks[-1].usage
    assert streamed is not None
    assert streamed.completion_tokens == usage.completion_tokens
    # The second time, all but the last token of the prompt is found stored.
    details = streamed.prompt_tokens_details
    assert details is not None
    assert details.cached_tokens == streamed.prompt_tokens - 1 == usage.prompt_tokens - 1


def test_finish_reasons_and_stop_strings(client: OpenAI) -> None:
    cut = client.chat.completions.create(**{**CHAT, "max_tokens": 2})
    assert cut.choices[0].finish_reason == "length"
    assert cut.usage is not None
    assert cut.usage.completion_tokens == 2
    newer = {key: value for key, value in CHAT.items() if key != "max_tokens"}
    same = client.chat.completions.create(**newer, max_completion_tokens=2)
    assert same.choices == cut.choices
    stopped = client.chat.completions.create(**CHAT, stop=["Tokyo", "xyz"])
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].message.content == "The capital of Japan is "


def test_chat_logprobs(client: OpenAI) -> None:
    fields: dict[str, Any] = {**CHAT, "logprobs": True, "top_logprobs": 3}
    (choice,) = client.chat.completions.create(**fields).choices
    assert choice.logprobs is not None
    tokens = choice.logprobs.content
    assert tokens is not None
    # The token that ends the answer is one of them.
    spelled = b"".join(bytes(token.bytes or []) for token in tokens).decode()
    assert spelled.removesuffix("<|im_end|>") == choice.message.content
    for token in tokens:
        assert -1e-6 <= -token.logprob < 20
        assert len(token.top_logprobs) == 3
        assert token.token == token.top_logprobs[0].token
        ordered = [top.logprob for top in token.top_logprobs]
        assert ordered == sorted(ordered, reverse=True)
    streamed = []
    for chunk in client.chat.completions.create(**fields, stream=True):
        exact(chunk)
        for piece in chunk.choices:
            if piece.logprobs is not None:
                streamed += piece.logprobs.content or []
    assert streamed == tokens


@pytest.mark.parametrize("stream", [False, True])
def test_three_choices(client: OpenAI, stream: bool) -> None:
    fields: dict[str, Any] = {**CHAT, "temperature": 1, "seed": 5, "n": 3, "max_tokens": 16}
    if stream:
        chunks = list(client.chat.completions.create(**fields, stream=True))
        texts = [text_of(chunks, index) for index in range(3)]
        ends = [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason]
    else:
        answer = client.chat.completions.create(**fields)
        exact(answer)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        texts = [choice.message.content or "" for choice in answer.choices]
        ends = [choice.finish_reason for choice in answer.choices]
        assert answer.usage is not None
        assert answer.usage.completion_tokens > 3 * 2
        assert answer.usage.prompt_tokens < 80
    assert len(ends) == 3
    assert set(ends) <= {"stop", "length"}
    assert all(texts)
    assert len(set(texts)) > 1
    again = client.chat.completions.create(**fields)
    assert [choice.message.content for choice in again.choices] == texts


def test_parse_with_a_pydantic_model(client: OpenAI) -> None:
    asked: Any = [{"role": "user", "content": "Where is Tokyo? Answer as JSON."}]
    fields: dict[str, Any] = {**CHAT, "messages": asked, "response_format": Place}
    parsed = client.chat.completions.parse(**fields)
    place = parsed.choices[0].message.parsed
    assert isinstance(place, Place)
    assert parsed.choices[0].finish_reason == "stop"
    assert Place.model_validate_json(parsed.choices[0].message.content or "") == place
    with client.chat.completions.stream(**fields) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.parsed == place


def test_parse_of_tool_arguments(client: OpenAI) -> None:
    tool = openai.pydantic_function_tool(Place, name="remember", description="Keep a place.")
    answer = client.chat.completions.parse(
        **{**CHAT, "max_tokens": 100},
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls or []
    assert call.function.name == "remember"
    assert isinstance(call.function.parsed_arguments, Place)


def test_completions(client: OpenAI) -> None:
    whole = client.completions.create(**COMPLETION)
    exact(whole)
    (choice,) = whole.choices
    assert choice.text.startswith(" five, six, seven,")
    assert choice.finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12
    chunks = list(client.completions.create(**COMPLETION, stream=True))
    exact(chunks[-1])
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
    assert chunks[-1].choices[0].finish_reason == "length"
    cut = client.completions.create(**COMPLETION, stop=" seven", echo=True)
    assert cut.choices[0].text == PROMPT + " five, six,"
    assert cut.choices[0].finish_reason == "stop"


def test_several_prompts_and_logprobs(client: OpenAI) -> None:
    fields: dict[str, Any] = {
        **COMPLETION,
        "prompt": [PROMPT, "The capital of France is"],
        "logprobs": 2,
    }
    answer: Completion = client.completions.create(**fields)
    exact(answer)
    first, second = answer.choices
    assert (first.index, second.index) == (0, 1)
    assert second.text.startswith(" Paris")
    for choice in answer.choices:
        logprobs = choice.logprobs
        assert logprobs is not None
        assert "".join(logprobs.tokens or []) == choice.text
        assert len(logprobs.token_logprobs or []) == 12
        for token, tops in zip(logprobs.tokens or [], logprobs.top_logprobs or [], strict=True):
            assert max(tops, key=tops.__getitem__) == token


def test_models_and_errors(client: OpenAI) -> None:
    (card,) = client.models.list().data
    exact(card)
    assert card.id == MODEL
    assert client.models.retrieve(MODEL) == card
    with pytest.raises(openai.NotFoundError, match="model"):
        client.models.retrieve("gpt-4o")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**{**CHAT, "model": "gpt-4o"})
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{**CHAT, "temperature": -1})
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError, match="2048"):
        client.completions.create(**{**COMPLETION, "prompt": "word " * 3000})


def test_headers_and_raw_answers(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        **CHAT, extra_headers={"X-Request-Id": "from-the-client"}
    )
    assert raw.status_code == 200
    assert raw.headers["content-type"] == "application/json"
    assert raw.headers["x-request-id"] == "from-the-client"
    parsed: ChatCompletion = raw.parse()
    assert json.loads(raw.text)["id"] == parsed.id


async def test_many_at_once(model_server: Served, client: OpenAI) -> None:
    alone = client.completions.create(**COMPLETION).choices[0].text
    async with AsyncOpenAI(
        base_url=f"{model_server.url}/v1", api_key="none", max_retries=0, timeout=SECONDS
    ) as many:

        async def streamed() -> str:
            stream = await many.completions.create(**COMPLETION, stream=True)
            return "".join([chunk.choices[0].text async for chunk in stream])

        async def left() -> None:
            stream = await many.completions.create(**{**COMPLETION, "max_tokens": 500}, stream=True)
            async for _ in stream:
                break
            await stream.close()

        *texts, _ = await asyncio.gather(*(streamed() for _ in range(6)), left())
        whole = await many.completions.create(**COMPLETION)
    assert texts == [alone] * 6
    assert whole.choices[0].text == alone
