"""LangChain's `ChatOpenAI`, unmodified, with the real model."""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import httpx
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field
from serving import MODEL, SECONDS, Served

pytestmark = [pytest.mark.model, pytest.mark.timeout(240)]

QUESTION = "What is the capital of Japan?"
ANSWER = "The capital of Japan is Tokyo."

MakeChat = Callable[..., ChatOpenAI]


class Place(BaseModel):
    """Where something is."""

    country: Literal["France", "Japan", "Peru"]
    population: int = Field(ge=0, le=99_999_999)


@tool
def get_weather(city: Literal["Rome", "Oslo"], days: Literal[1, 2, 3]) -> str:
    """The weather of a city."""
    return f"Sunny in {city} for {days} days."


@pytest.fixture(scope="module")
def make_chat(model_server: Served) -> Iterator[MakeChat]:
    with httpx.Client(timeout=SECONDS) as http:

        def make(**fields: Any) -> ChatOpenAI:
            given = {
                "base_url": f"{model_server.url}/v1",
                "api_key": "none",
                "model": MODEL,
                "temperature": 0,
                "max_tokens": 60,
                "max_retries": 0,
                "http_client": http,
            }
            return ChatOpenAI(**{**given, **fields})

        yield make


def test_invoke(make_chat: MakeChat) -> None:
    chat = make_chat()
    message = chat.invoke(QUESTION)
    assert isinstance(message, AIMessage)
    assert message.content == ANSWER
    assert message.response_metadata["finish_reason"] == "stop"
    assert message.response_metadata["model_name"] == MODEL
    usage = message.usage_metadata
    assert usage is not None
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    again = chat.invoke([("user", QUESTION)])
    assert again.content == ANSWER
    assert again.usage_metadata is not None
    assert again.usage_metadata["input_token_details"]["cache_read"] == usage["input_tokens"] - 1
    cut = make_chat(max_tokens=2).invoke(QUESTION)
    assert cut.response_metadata["finish_reason"] == "length"
    stopped = chat.invoke(QUESTION, stop=["Tokyo"])
    assert stopped.content == "The capital of Japan is "


def test_stream(make_chat: MakeChat) -> None:
    chat = make_chat(stream_usage=True)
    whole = None
    pieces = 0
    for chunk in chat.stream(QUESTION):
        assert isinstance(chunk, AIMessageChunk)
        pieces += bool(chunk.content)
        whole = chunk if whole is None else whole + chunk
    assert pieces > 3
    assert whole is not None
    assert whole.content == ANSWER
    assert whole.response_metadata["finish_reason"] == "stop"
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == len(list(chat.stream(QUESTION))) - 3


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(make_chat: MakeChat, method: Any) -> None:
    asks = make_chat(max_tokens=100).with_structured_output(Place, method=method, include_raw=True)
    found = asks.invoke("Where is Tokyo? Answer as JSON.")
    assert found["parsing_error"] is None
    assert isinstance(found["parsed"], Place)


def test_tools(make_chat: MakeChat) -> None:
    chat = make_chat()
    asked = HumanMessage("How is the weather in Rome over the next three days?")
    forced = chat.bind_tools([get_weather], tool_choice="get_weather")
    message = forced.invoke([asked])
    (call,) = message.tool_calls
    assert message.invalid_tool_calls == []
    assert call["name"] == "get_weather"
    result = get_weather.invoke(call)  # checks the arguments
    assert isinstance(result, ToolMessage)
    assert str(result.content).startswith("Sunny in ")

    streamed = None
    pieces = 0
    for chunk in forced.stream([asked]):
        pieces += len(chunk.tool_call_chunks)
        streamed = chunk if streamed is None else streamed + chunk
    assert pieces > 2
    assert streamed is not None
    assert [one["args"] for one in streamed.tool_calls] == [call["args"]]

    free = chat.bind_tools([get_weather])
    told = free.invoke([asked, message, result])
    assert told.content or told.tool_calls
    (needed,) = (
        chat.bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False)
        .invoke([asked])
        .tool_calls
    )
    assert needed["args"].keys() == {"city", "days"}


def test_batch(make_chat: MakeChat) -> None:
    chat = make_chat()
    others = ["What is 2 plus 2?", "Name a fruit."]
    alone = [chat.invoke(question).content for question in others]
    together = chat.batch([QUESTION, *others, QUESTION])
    assert [message.content for message in together] == [ANSWER, *alone, ANSWER]


def test_logprobs_and_choices(make_chat: MakeChat) -> None:
    message = make_chat(logprobs=True, top_logprobs=2).invoke(QUESTION)
    tokens = message.response_metadata["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens).removesuffix("<|im_end|>") == ANSWER
    assert all(len(token["top_logprobs"]) == 2 for token in tokens)
    several = make_chat(n=3, temperature=1, seed=1).generate([[HumanMessage(QUESTION)]])
    assert len(several.generations[0]) == 3


def test_the_responses_api(make_chat: MakeChat) -> None:
    chat = make_chat(use_responses_api=True)
    message = chat.invoke(QUESTION)
    assert message.text == ANSWER
    assert message.usage_metadata is not None
    whole = None
    for chunk in chat.stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert whole.text == ANSWER
    found = chat.with_structured_output(Place).invoke("Where is Tokyo? Answer as JSON.")
    assert isinstance(found, Place)
    forced = chat.bind_tools([get_weather], tool_choice="get_weather")
    (call,) = forced.invoke("How is the weather in Rome?").tool_calls
    assert call["name"] == "get_weather"
