"""From the bytes of a request to its fields: limits, unknown names, and what we cannot do yet."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from looseleaf.server.errors import ApiError, ClientGoneError, from_msgspec, invalid

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)

logger = logging.getLogger(__name__)

DRAIN_FACTOR = 4
"""A body that is too large is read and dropped up to so many times the limit: a client that is
still sending would otherwise see a broken connection in place of the answer."""

MAX_LOGGED_NAMES = 256

THREAD_BYTES = 32 * 2**10
"""A body with more than that is decoded and tokenized in a thread."""

# Fields that would change the answer, each with the values that ask for nothing. Null always does.
NOT_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "chat_template": (),
    "documents": ([],),
    "ebnf": (),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "grammar": ("",),
    "json_schema": (),
    "kv_transfer_params": ({},),
    "modalities": (["text"], []),
    "prompt_embeds": (),
    "regex": (),
    "structural_tag": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "vllm_xargs": ({},),
}

# Fields that clients send and that leave the answer as it is, here at least.
IGNORED = frozenset(
    {
        "audio",
        "metadata",
        "moderation",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "spaces_between_special_tokens",
        "store",
        "user",
        "verbosity",
        "web_search_options",
    }
)

_ADVICE = {
    "chat_template": "the template is the model's; a request cannot bring its own",
    "function_call": "it has become tool_choice",
    "functions": "they have become tools",
}

_GRAMMAR_NAMES = (
    *(b'"response_format"', b'"structured_outputs"', b'"guided_'),
    *(b'"tool_choice"', b'"strict"', b'"output_config"'),
)

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_logged_names: set[str] = set()


async def read_body(request: Request, limit: int) -> bytes:
    """The body, whatever its content type; 413 if it has more than `limit` bytes."""
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size <= limit:
                chunks.append(chunk)
            elif size > DRAIN_FACTOR * limit:
                break
    except ClientDisconnect:
        raise ClientGoneError from None
    if size > limit:
        raise ApiError(413, f"the body has more than {limit} bytes, which is the limit here")
    return b"".join(chunks)


def decode(body: bytes, kind: type[R]) -> R:
    """The fields of `kind`. A null is as good as an omitted field; unknown ones are logged, once.

    Raises ApiError for JSON that is malformed or does not fit, and for what is not supported.
    """
    try:
        fields = _FIELDS.decode(body)
        present = {name: raw for name, raw in fields.items() if bytes(raw) != b"null"}
        known = set(kind.__struct_fields__)
        for name in sorted(present.keys() & NOT_SUPPORTED.keys() - known):
            if msgspec.json.decode(present.pop(name)) not in NOT_SUPPORTED[name]:
                advice = _ADVICE.get(name, "leave it out")
                raise invalid(f"{name} is not supported: {advice}", name)
        _log_unknown(present.keys() - IGNORED - known)
        return msgspec.json.decode(msgspec.json.encode(present), type=kind)
    except msgspec.MsgspecError as error:
        raise from_msgspec(error) from None
    except RecursionError:
        raise invalid("the body is nested too deeply") from None
    except UnicodeDecodeError:
        raise invalid("the body is not valid JSON: it is not UTF-8") from None


def _log_unknown(names: set[str]) -> None:
    for name in sorted(names - _logged_names):
        if len(_logged_names) < MAX_LOGGED_NAMES:
            _logged_names.add(name)
            logger.warning("request field %.60r is not known and is ignored", name)


def work_of(body: bytes) -> int:
    """The size that counts for `off_loop`: a grammar may take a second to make, however short."""
    return THREAD_BYTES + 1 if any(name in body for name in _GRAMMAR_NAMES) else len(body)


async def off_loop(size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function`, in a thread if `size` is above THREAD_BYTES: the event loop never waits."""
    if size > THREAD_BYTES:
        return await asyncio.to_thread(function, *args, **kwargs)
    return function(*args, **kwargs)
