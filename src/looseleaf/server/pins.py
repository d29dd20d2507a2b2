"""/v1/cache/pins: prefixes whose KV blocks stay, whatever else needs room."""

import math
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from looseleaf.core.errors import LooseleafError
from looseleaf.core.hashing import ExtraKeys
from looseleaf.engine.engine import Engine
from looseleaf.engine.pins import Pin, pins_of
from looseleaf.engine.service import EngineDeadError
from looseleaf.server.body import decode, off_loop, read_body, work_of
from looseleaf.server.completions import prompts_of
from looseleaf.server.context import ServerContext
from looseleaf.server.errors import ApiError, invalid
from looseleaf.server.protocol import extra_keys_of
from looseleaf.server.stream import json_response


class PinRequest(Struct, kw_only=True):
    """A beginning that prompts will have: a text or token ids, or the first messages of chats."""

    model: str
    prompt: Any = None
    messages: list[dict[str, Any]] | None = None
    ttl: float | None = None
    cache_salt: str | None = None


class PinCard(Struct, kw_only=True):
    """`expires_in` is in seconds; without it the pin stays until it is deleted."""

    id: str
    object: str = "cache.pin"
    num_tokens: int
    num_blocks: int
    expires_in: float | None


class PinList(Struct, kw_only=True):
    object: str = "list"
    data: list[PinCard]


async def create_pin(context: ServerContext, request: Request) -> Response:
    body = await read_body(request, context.max_body_bytes)
    fields, token_ids, extra_keys = await off_loop(work_of(body), _prepare, context, body)
    try:
        pin = await context.service.pin(
            token_ids,
            ttl=fields.ttl,
            extra_keys=context.cache_keys(extra_keys),
            holder=context.pin_holder(),
        )
    except EngineDeadError:
        raise
    except LooseleafError as error:
        about = "messages" if fields.prompt is None else "prompt"
        raise invalid(str(error), "ttl" if str(error).startswith("ttl ") else about) from None
    return json_response(_card(pin, context.service.clock()))


async def list_pins(context: ServerContext, request: Request) -> Response:
    holder = context.pin_holder()

    def read(engine: Engine) -> list[Pin]:
        return pins_of(engine).list(engine.clock(), holder)

    now = context.service.clock()
    pins = await context.service.call(read)
    return json_response(PinList(data=[_card(pin, now) for pin in pins]))


async def delete_pin(context: ServerContext, request: Request) -> Response:
    pin_id, holder = request.path_params["pin_id"], context.pin_holder()
    if not await context.service.call(lambda engine: pins_of(engine).remove(pin_id, holder)):
        raise ApiError(404, "there is no such pin (any more); GET /v1/cache/pins lists them")
    return json_response({"id": pin_id, "object": "cache.pin", "deleted": True})


def _prepare(context: ServerContext, body: bytes) -> tuple[PinRequest, list[int], ExtraKeys]:
    fields = decode(body, PinRequest)
    context.check_model(fields.model)
    if (fields.prompt is None) == (fields.messages is None):
        raise invalid("give a prompt or messages, and not both", "prompt")
    if fields.messages is not None:
        text = context.chat_template.render(
            fields.messages, add_generation_prompt=False, continue_final_message=False
        )
        context.check_length(text, "messages")
        token_ids = context.tokenizer.encode_chat(text)
    else:
        prompt, *more = prompts_of(fields.prompt, context.tokenizer.vocab_size)
        if more:
            raise invalid("one request pins one prompt: send several", "prompt")
        if isinstance(prompt, str):
            context.check_length(prompt, "prompt")
            prompt = context.tokenizer.encode(prompt, add_special=True, parse_special=True)
        token_ids = prompt
    return fields, token_ids, extra_keys_of(fields.cache_salt)


def _card(pin: Pin, now: float) -> PinCard:
    left = None if math.isinf(pin.expiry_time) else max(0.0, pin.expiry_time - now)
    return PinCard(
        id=pin.pin_id, num_tokens=pin.num_tokens, num_blocks=len(pin.block_ids), expires_in=left
    )
