"""The routes, put together, and the server that answers them."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from looseleaf import __version__
from looseleaf.core.errors import LooseleafError
from looseleaf.engine.service import EngineDeadError
from looseleaf.server.admin import abort_requests, cancel_request, load, reset_prefix_cache
from looseleaf.server.anthropic.routes import count_tokens, create_message
from looseleaf.server.chat import chat_completions
from looseleaf.server.completions import completions
from looseleaf.server.context import ServerContext
from looseleaf.server.error_forms import error_form, error_response, path_of
from looseleaf.server.errors import (
    ApiError,
    ClientGoneError,
    from_looseleaf,
    internal_error,
    unavailable,
)
from looseleaf.server.load_header import LoadHeaderMiddleware
from looseleaf.server.middleware import (
    AdmissionMiddleware,
    GateMiddleware,
    KeyMiddleware,
    RequestIdMiddleware,
)
from looseleaf.server.observed import ObservedMiddleware
from looseleaf.server.ollama import routes as ollama
from looseleaf.server.openapi import openapi
from looseleaf.server.pins import create_pin, delete_pin, list_pins
from looseleaf.server.protocol import ModelCard, ModelList
from looseleaf.server.responses.routes import (
    cancel_response,
    create_response,
    delete_response,
    show_response,
)
from looseleaf.server.stream import json_response
from looseleaf.server.studio import Studio
from looseleaf.server.tokenization import detokenize, tokenize
from looseleaf.server.tracing import TraceMiddleware
from looseleaf.studio.hub import LINGER_SECONDS, Hub

logger = logging.getLogger(__name__)

Handler = Callable[[ServerContext, Request], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]

_CLIENT_CLOSED_REQUEST = 499


def create_app(context: ServerContext, *, access_log: bool = False) -> Starlette:
    """The application; the engine runs as long as it does."""
    middleware = [
        Middleware(RequestIdMiddleware),
        Middleware(KeyMiddleware, keys=context.keys),
        Middleware(LoadHeaderMiddleware, service=context.service),
        Middleware(AdmissionMiddleware, lifecycle=context.lifecycle),
        Middleware(
            GateMiddleware,
            gate=context.gate,
            read_timeout=context.limits.read_timeout,
            request_timeout=context.limits.request_timeout,
        ),
    ]
    if context.tracing is not None:
        middleware.append(Middleware(TraceMiddleware))
    cors = context.cors
    if cors is not None:
        middleware.insert(
            0,
            Middleware(
                CORSMiddleware,
                allow_origins=cors.origins,
                allow_methods=cors.methods,
                allow_headers=cors.headers,
                allow_credentials=cors.credentials,
            ),
        )
    routes: dict[Endpoint, str] = {}
    middleware.insert(
        0,
        Middleware(
            ObservedMiddleware, metrics=context.metrics, routes=routes, log_requests=access_log
        ),
    )

    def route(path: str, handler: Handler, *methods: str, prompt_param: str = "prompt") -> Route:
        endpoint = _endpoint(context, handler, prompt_param)
        routes[endpoint] = path
        return Route(path, endpoint, methods=list(methods))

    def messages_route(path: str, handler: Handler) -> Route:
        return route(path, handler, "POST", prompt_param="messages")

    def ollama_route(path: str, handler: Handler, method: str) -> Route:
        return route(path, handler, method, prompt_param="messages")

    studio = _studio(context) if context.studio.enabled else None

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        context.lifecycle.start()
        try:
            await context.metrics.refresh(context.service)
            if studio is not None:
                studio.start()
            yield
        finally:
            await context.lifecycle.stop()
            if studio is not None:
                await studio.stop()

    return Starlette(
        routes=[
            route("/v1/chat/completions", chat_completions, "POST", prompt_param="messages"),
            route("/v1/completions", completions, "POST"),
            route("/v1/responses", create_response, "POST", prompt_param="input"),
            route("/v1/responses/{response_id}", show_response, "GET"),
            route("/v1/responses/{response_id}", delete_response, "DELETE"),
            route("/v1/responses/{response_id}/cancel", cancel_response, "POST"),
            messages_route("/v1/messages", create_message),
            messages_route("/v1/messages/count_tokens", count_tokens),
            route("/v1/requests/{request_id}/cancel", cancel_request, "POST"),
            route("/abort_requests", abort_requests, "POST"),
            ollama_route("/api/chat", ollama.chat, "POST"),
            ollama_route("/api/generate", ollama.generate, "POST"),
            ollama_route("/api/show", ollama.show, "POST"),
            ollama_route("/api/tags", ollama.tags, "GET"),
            ollama_route("/api/ps", ollama.running, "GET"),
            ollama_route("/api/version", ollama.version, "GET"),
            route("/tokenize", tokenize, "POST"),
            route("/detokenize", detokenize, "POST"),
            route("/load", load, "GET"),
            route("/reset_prefix_cache", reset_prefix_cache, "POST"),
            route("/v1/cache/pins", create_pin, "POST"),
            route("/v1/cache/pins", list_pins, "GET"),
            route("/v1/cache/pins/{pin_id}", delete_pin, "DELETE"),
            route("/v1/models", list_models, "GET"),
            route("/v1/models/{name:path}", show_model, "GET"),
            route("/health", health, "GET"),
            route("/ping", health, "GET", "POST"),
            route("/ready", ready, "GET"),
            route("/version", version, "GET"),
            route("/metrics", metrics, "GET"),
            route("/openapi.json", openapi, "GET"),
            *(studio.routes() if studio is not None else ()),
        ],
        lifespan=lifespan,
        middleware=middleware,
        exception_handlers={HTTPException: _http_exception, Exception: _unexpected},
    )


def _studio(context: ServerContext) -> Studio:
    def decode(token_ids: Sequence[int]) -> str:
        return context.tokenizer.decode(token_ids, skip_special=False)

    hub = Hub(
        context.service.call,
        model=context.model_names[0],
        block_bytes=context.memory.block_bytes,
        decode=decode if context.studio.show_text else None,
        misses=context.service.meter.misses,
        linger=LINGER_SECONDS,
    )
    return Studio(
        hub,
        record=context.studio.record,
        record_limit=context.studio.record_limit,
        chats=True,
        model=context.model_names[0],
    )


async def list_models(context: ServerContext, request: Request) -> Response:
    cards = [_model_card(context, name) for name in context.model_names]
    return json_response(ModelList(data=cards))


async def show_model(context: ServerContext, request: Request) -> Response:
    name = request.path_params["name"]
    context.check_model(name)
    return json_response(_model_card(context, name))


async def health(context: ServerContext, request: Request) -> Response:
    return Response(status_code=200 if context.lifecycle.healthy else 503)


async def ready(context: ServerContext, request: Request) -> Response:
    """Whether further requests would be taken, for whoever spreads them over servers."""
    return Response(status_code=200 if context.lifecycle.healthy else 503)


async def version(context: ServerContext, request: Request) -> Response:
    return json_response({"version": __version__})


async def metrics(context: ServerContext, request: Request) -> Response:
    body = await context.metrics.scrape(context.service)
    return Response(body, headers={"content-type": CONTENT_TYPE_LATEST})


def _model_card(context: ServerContext, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        created=context.created,
        root=context.model_names[0],
        max_model_len=context.memory.max_model_len,
    )


def _endpoint(context: ServerContext, handler: Handler, prompt_param: str) -> Endpoint:
    """The handler with its context, and with every failure turned into an answer."""

    async def endpoint(request: Request) -> Response:
        errors = error_form(path_of(request.scope))
        try:
            return await handler(context, request)
        except ApiError as error:
            return errors(error)
        except EngineDeadError:
            return errors(unavailable(context.service))
        except LooseleafError as error:
            return errors(from_looseleaf(error, prompt_param))
        except ClientGoneError:
            return Response(status_code=_CLIENT_CLOSED_REQUEST)
        except HTTPException:
            raise
        except Exception:
            logger.exception("%s %s failed", request.method, request.url.path)
            return errors(internal_error())

    return endpoint


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {
        404: "there is nothing here; the API is under /v1, as in /v1/chat/completions",
        405: "this path does not take this method; it takes those in the Allow header",
    }
    message = messages.get(error.status_code, error.detail)
    response = error_response(request.scope, ApiError(error.status_code, message))
    response.headers.update(error.headers or {})
    return response


async def _unexpected(request: Request, error: Exception) -> Response:
    return error_response(request.scope, internal_error())
