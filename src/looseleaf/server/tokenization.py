"""POST /tokenize and /detokenize, as vLLM has them."""

from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from looseleaf.server.body import decode, off_loop, read_body
from looseleaf.server.context import ServerContext
from looseleaf.server.errors import invalid
from looseleaf.server.protocol import ChatRequest, Integer
from looseleaf.server.stream import json_response
from looseleaf.server.turns import prepare_turn


class TokenizeRequest(Struct, kw_only=True):
    """A prompt or messages. Without `add_special_tokens` it is what a completion would do."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    return_token_strs: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    tools: list[dict[str, Any]] = []


class Tokenized(Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(Struct, kw_only=True):
    model: str | None = None
    tokens: list[Integer]


class Detokenized(Struct, kw_only=True):
    prompt: str


async def tokenize(context: ServerContext, request: Request) -> Response:
    body = await read_body(request, context.max_body_bytes)
    return json_response(await off_loop(len(body), _tokenized, context, body))


async def detokenize(context: ServerContext, request: Request) -> Response:
    body = await read_body(request, context.max_body_bytes)
    return json_response(await off_loop(len(body), _detokenized, context, body))


def _tokenized(context: ServerContext, body: bytes) -> Tokenized:
    fields = decode(body, TokenizeRequest)
    if fields.model is not None:
        context.check_model(fields.model)
    if (fields.prompt is None) == (fields.messages is None):
        raise invalid("give a prompt or messages, and not both", "prompt")
    tokenizer = context.tokenizer
    if fields.messages is not None:
        chat = ChatRequest(
            model=context.model_names[0],
            messages=fields.messages,
            add_special_tokens=fields.add_special_tokens,
            add_generation_prompt=fields.add_generation_prompt,
            continue_final_message=fields.continue_final_message,
            chat_template_kwargs=fields.chat_template_kwargs,
            tools=fields.tools,
        )
        token_ids = prepare_turn(context, chat).token_ids
    else:
        add_special = fields.add_special_tokens is not False
        text = fields.prompt or ""
        token_ids = tokenizer.encode(text, add_special=add_special, parse_special=True)
    names = [tokenizer.token_str(i) for i in token_ids] if fields.return_token_strs else None
    return Tokenized(
        count=len(token_ids),
        max_model_len=context.memory.max_model_len,
        tokens=token_ids,
        token_strs=names,
    )


def _detokenized(context: ServerContext, body: bytes) -> Detokenized:
    fields = decode(body, DetokenizeRequest)
    if fields.model is not None:
        context.check_model(fields.model)
    size = context.tokenizer.vocab_size
    if not all(0 <= token_id < size for token_id in fields.tokens):
        raise invalid(
            f"tokens has an id that is not in the vocabulary: they are whole numbers from 0 to "
            f"{size - 1}",
            "tokens",
        )
    return Detokenized(prompt=context.tokenizer.decode(fields.tokens, skip_special=False))
