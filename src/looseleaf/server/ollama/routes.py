"""Ollama's /api: a thin layer, so that front-ends made for it work."""

import hashlib
import json
import uuid
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from looseleaf import __version__
from looseleaf.server.body import THREAD_BYTES, decode, off_loop, read_body, work_of
from looseleaf.server.context import ServerContext
from looseleaf.server.errors import invalid
from looseleaf.server.ollama.answer import OllamaWriter, now
from looseleaf.server.ollama.protocol import (
    Answer,
    ChatRequest,
    GenerateRequest,
    Message,
    OllamaRequest,
    ShowRequest,
)
from looseleaf.server.protocol import ChatRequest as Chat
from looseleaf.server.protocol import JsonSchema, ResponseFormat
from looseleaf.server.stream import json_response
from looseleaf.server.turn_stream import answer_turn
from looseleaf.server.turns import Turn, prepare_turn
from looseleaf.text.reply import PlainReply

_NAMES = {
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "response_format": "format",
}


async def chat(context: ServerContext, request: Request) -> Response:
    body = await read_body(request, context.max_body_bytes)
    fields = await off_loop(len(body), decode, body, ChatRequest)
    _served(context, fields.model)
    if not fields.messages:
        return json_response(_loaded(Answer(model=fields.model, created_at=now())))
    turn = await off_loop(_work(fields, body), _chat_turn, context, fields)
    return await _answered(context, request, fields, turn, chat=True)


async def generate(context: ServerContext, request: Request) -> Response:
    body = await read_body(request, context.max_body_bytes)
    fields = await off_loop(len(body), decode, body, GenerateRequest)
    _served(context, fields.model)
    for name in ("images", "template", "suffix"):
        if getattr(fields, name):
            raise invalid(f"{name} is not supported: leave it out", name)
    if not fields.prompt:
        return json_response(_loaded(Answer(model=fields.model, created_at=now(), response="")))
    turn = await off_loop(_work(fields, body), _generate_turn, context, fields)
    return await _answered(context, request, fields, turn, chat=False)


async def tags(context: ServerContext, request: Request) -> Response:
    return json_response({"models": [_card(name) for name in context.model_names]})


async def running(context: ServerContext, request: Request) -> Response:
    never = "9999-12-31T23:59:59Z"
    more = {"expires_at": never, "size_vram": 0, "context_length": context.memory.max_model_len}
    return json_response({"models": [_card(name) | more for name in context.model_names]})


async def show(context: ServerContext, request: Request) -> Response:
    body = await read_body(request, context.max_body_bytes)
    fields = decode(body, ShowRequest)
    name = _served(context, fields.model or fields.name)
    card = _card(name)
    return json_response(
        {
            "modelfile": "",
            "parameters": "",
            "template": "",
            "details": card["details"],
            "model_info": {"general.architecture": "llama"}
            | {"llama.context_length": context.memory.max_model_len},
            "capabilities": ["completion", "tools"],
            "modified_at": card["modified_at"],
        }
    )


async def version(context: ServerContext, request: Request) -> Response:
    return json_response({"version": __version__})


def _served(context: ServerContext, name: str) -> str:
    """The name it is served under. Raises ApiError 404."""
    found = name if name in context.model_names else name.removesuffix(":latest")
    context.check_model(found)
    return found


def _work(fields: OllamaRequest, body: bytes) -> int:
    return THREAD_BYTES + 1 if fields.format else work_of(body)


async def _answered(
    context: ServerContext, request: Request, fields: OllamaRequest, turn: Turn, *, chat: bool
) -> Response:
    generation = turn.start(context)
    generation.known_as(f"ollama-{uuid.uuid4().hex}")
    writer = OllamaWriter(generation, fields.model, chat=chat)
    return await answer_turn(request, generation, turn, writer, stream=fields.stream)


def _chat_turn(context: ServerContext, fields: ChatRequest) -> Turn:
    messages = [_message(index, message) for index, message in enumerate(fields.messages)]
    asked = _asked(context, fields, messages)
    asked.tools = fields.tools
    return prepare_turn(context, asked, _NAMES)


def _generate_turn(context: ServerContext, fields: GenerateRequest) -> Turn:
    messages = [{"role": "system", "content": fields.system}] if fields.system else []
    messages.append({"role": "user", "content": fields.prompt})
    asked = _asked(context, fields, messages)
    if not fields.raw:
        return prepare_turn(context, asked, {**_NAMES, "messages": "prompt"})
    context.check_length(fields.prompt, "prompt")
    params = asked.sampling_params(
        context.tokenizer,
        context.grammars,
        max_tokens=asked.max_tokens,
        logprobs=None,
        names=_NAMES,
    )
    token_ids = context.tokenizer.encode(fields.prompt, add_special=True, parse_special=True)
    return Turn(token_ids, params, (), None, 0, True, None, PlainReply)


def _asked(context: ServerContext, fields: OllamaRequest, messages: list[dict[str, Any]]) -> Chat:
    for name in ("logprobs", "top_logprobs"):
        if getattr(fields, name):
            raise invalid(f"{name} is not told here: ask /v1/chat/completions for it", name)
    options = fields.options
    return Chat(
        model=_served(context, fields.model),
        messages=messages,
        max_tokens=None if options.num_predict < 0 else options.num_predict,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        seed=options.seed,
        stop=options.stop,
        repetition_penalty=options.repeat_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        response_format=_format(fields.format),
    )


def _format(given: str | dict[str, Any]) -> ResponseFormat | None:
    if isinstance(given, dict):
        return ResponseFormat(type="json_schema", json_schema=JsonSchema(schema=given))
    if given not in ("", "json"):
        raise invalid("format must be json or a JSON schema", "format")
    return ResponseFormat(type="json_object") if given else None


def _message(index: int, message: dict[str, Any]) -> dict[str, Any]:
    """Ollama's calls have no ids, and their arguments are objects."""
    if message.get("images"):
        raise invalid(f"messages[{index}] has images, but this model reads text only", "messages")
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    converted = []
    for number, call in enumerate(calls):
        match call:
            case {"function": {"name": str(name), **rest}}:
                given = rest.get("arguments") or {}
                arguments = given if isinstance(given, str) else json.dumps(given)
                function = {"name": name, "arguments": arguments}
                call_id = f"call_{index}_{number}"
                converted.append({"id": call_id, "type": "function", "function": function})
            case _:
                raise invalid(f"messages[{index}] has a tool call without a name", "messages")
    return {**message, "tool_calls": converted}


def _loaded(answer: Answer) -> Answer:
    """What Ollama says to a request that only loads the model."""
    answer.done, answer.done_reason = True, "load"
    if not isinstance(answer.response, str):
        answer.message = Message()
    return answer


def _card(name: str) -> dict[str, Any]:
    return {
        "name": name if ":" in name else f"{name}:latest",
        "model": name if ":" in name else f"{name}:latest",
        "modified_at": now(),
        "size": 0,
        "digest": hashlib.sha256(name.encode()).hexdigest(),
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": "llama",
            "families": ["llama"],
            "parameter_size": "",
            "quantization_level": "",
        },
    }
