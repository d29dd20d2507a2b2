"""What a user of llama-index' `OpenAILike` writes. Runs in an environment that has it, which is not
that of the tests: asks the server at argv[1], and prints what it was told as a JSON object."""

import json
import sys
from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

MODEL = "smollm2-135m"
QUESTION = "What is the capital of Japan?"
PROMPT = "One, two, three, four,"


class Place(BaseModel):
    country: Literal["France", "Japan", "Peru"]
    rainy: bool


def get_weather(city: Literal["Rome", "Oslo"]) -> str:
    """The weather of a city."""
    return f"Sunny in {city}."


def make(url: str, **fields: object) -> OpenAILike:
    return OpenAILike(
        model=MODEL,
        api_base=f"{url}/v1",
        api_key="none",
        temperature=0,
        max_tokens=60,
        context_window=2048,
        max_retries=0,
        **fields,
    )


def main(url: str) -> None:
    text, chat = make(url), make(url, is_chat_model=True, is_function_calling_model=True)
    asked = [ChatMessage(role="user", content=QUESTION)]
    whole = chat.chat(asked)
    pieces = list(chat.stream_chat(asked))
    texts = list(text.stream_complete(PROMPT, max_tokens=6))
    structured = make(url, is_chat_model=True, should_use_structured_outputs=True)
    place = structured.as_structured_llm(Place).complete("Where is Tokyo? Answer as JSON.").raw
    called = chat.chat_with_tools(
        [FunctionTool.from_defaults(get_weather)],
        user_msg="How is the weather in Rome?",
        tool_required=True,
        allow_parallel_tool_calls=False,
    )
    calls = chat.get_tool_calls_from_response(called)
    told = {
        "complete": text.complete(PROMPT, max_tokens=6).text,
        "stream_complete": [piece.delta for piece in texts],
        "chat": whole.message.content,
        "role": whole.message.role.value,
        "usage": whole.raw.usage.model_dump(),
        "finish_reason": whole.raw.choices[0].finish_reason,
        "stream_chat": [piece.delta for piece in pieces],
        "chat_complete": chat.complete(QUESTION).text,
        "place": place.model_dump(),
        "calls": [[call.tool_name, call.tool_kwargs] for call in calls],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
