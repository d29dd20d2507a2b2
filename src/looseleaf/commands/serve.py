"""`looseleaf serve`"""

import argparse
import logging
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from looseleaf.commands.config_file import ConfigFile
from looseleaf.commands.exports import add_exports, kv_event_stream, tracing
from looseleaf.commands.listening import add_address, add_listening, listening, tls_of
from looseleaf.commands.observing import add_observing, observing_of
from looseleaf.commands.options import (
    DEFAULTS,
    MODEL_HELP,
    add_engine,
    engine_settings,
    from_utf8,
    memory_size,
    parse_json,
)
from looseleaf.commands.studio_recording import add_recording
from looseleaf.commands.vllm_options import add_vllm_options, log_ignored
from looseleaf.core.errors import LooseleafError
from looseleaf.engine.build import build
from looseleaf.engine.journal import Journal
from looseleaf.engine.llm import LLM
from looseleaf.server.context import DEFAULT_MAX_BODY_BYTES
from looseleaf.server.gate import DEFAULT_MAX_QUEUED_REQUESTS
from looseleaf.server.keys import KeyRing, key_ring
from looseleaf.server.limits import (
    DEFAULT_READ_TIMEOUT,
    LEAST_QUEUED_TOKENS,
    QUEUED_POOLS,
    Cors,
    Limits,
)
from looseleaf.server.replies import DEFAULT_REPLIES, ReplySettings
from looseleaf.server.run import (
    DEFAULT_PORT,
    DEFAULT_SHUTDOWN_SECONDS,
    run_server,
)
from looseleaf.studio.settings import StudioSettings
from looseleaf.text.dialects import DIALECTS
from looseleaf.text.reasoning import REASONING_PARSERS

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help=f"{MODEL_HELP} (default: {DEFAULTS.model})",
    )
    parser.add_argument("--model", "-m", dest="model_option", help="the same, as an option")
    parser.add_argument(
        "--config",
        action=ConfigFile,
        metavar="FILE",
        help="take options from a YAML file, like port: 8000; those given here win",
    )
    http = parser.add_argument_group("server")
    add_address(http, DEFAULT_PORT)
    http.add_argument(
        "--served-model-name",
        nargs="+",
        metavar="NAME",
        help="names that requests may use for the model (default: MODEL, which stands before this)",
    )
    http.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="how much to log",
    )
    http.add_argument(
        "--enable-log-requests", action="store_true", help="log a line for each request"
    )
    http.add_argument(
        "--max-body-bytes",
        type=memory_size,
        default=DEFAULT_MAX_BODY_BYTES,
        metavar="SIZE",
        help="largest request body, such as 16MiB",
    )
    http.add_argument(
        "--shutdown-timeout",
        type=int,
        default=DEFAULT_SHUTDOWN_SECONDS,
        metavar="SECONDS",
        help="how long open requests may go on after SIGTERM",
    )
    http.add_argument(
        "--pin",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="compute a beginning of prompts at the start and keep its KV blocks: a text, or chat "
        "messages as a JSON list; may be repeated; needs --pin-budget",
    )
    http.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="write down every request and step, as token ids, so that `looseleaf plan` can replay "
        "them; not with --swap-space, --kv-disk or --pin-budget",
    )
    _add_replies(parser)
    http.add_argument(
        "--root-path", default="", metavar="PATH", help="what a proxy puts before all paths"
    )
    http.add_argument(
        "--exit-on-engine-failure",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="end the process if the engine fails, or else go on saying so on /health",
    )
    safety = parser.add_argument_group("safety")
    safety.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="refuse whoever has none of these keys; may be repeated (default: VLLM_API_KEY of the "
        "environment, if it is set)",
    )
    safety.add_argument(
        "--api-keys-file",
        type=Path,
        metavar="FILE",
        help="more keys, with labels and limits: YAML or JSON, a list of label, key, and as wanted "
        "max_concurrent_requests, requests_per_minute, tokens_per_minute, weight, priority",
    )
    safety.add_argument(
        "--isolate-cache-per-key",
        action="store_true",
        help="do not share cached prefixes between the holders of different keys; each may pin a "
        "share of --pin-budget, by its weight",
    )
    safety.add_argument(
        "--allowed-origins",
        nargs="+",
        metavar="ORIGIN",
        help="let pages of these origins ask, like https://example.org; * is any (default: none)",
    )
    for what in ("methods", "headers"):
        safety.add_argument(
            f"--allowed-{what}", nargs="+", default=["*"], metavar="NAME", help="and what of theirs"
        )
    safety.add_argument(
        "--allow-credentials", action="store_true", help="let these pages send cookies"
    )
    overload = parser.add_argument_group("overload")
    overload.add_argument(
        "--max-num-queued-reqs",
        type=int,
        default=DEFAULT_MAX_QUEUED_REQUESTS,
        metavar="N",
        help="requests that may wait; further ones get a 429",
    )
    overload.add_argument(
        "--max-queued-tokens",
        type=int,
        metavar="TOKENS",
        help=f"prompt tokens of those that wait (default: {QUEUED_POOLS} times the KV cache, "
        f"at least {LEAST_QUEUED_TOKENS})",
    )
    overload.add_argument(
        "--request-timeout",
        type=float,
        metavar="SECONDS",
        help="end requests that take longer; a request may say less, as `timeout` or in the header "
        "X-Request-Timeout (default: none)",
    )
    overload.add_argument(
        "--request-read-timeout",
        type=float,
        default=DEFAULT_READ_TIMEOUT,
        metavar="SECONDS",
        help="how long a client may take to send a request",
    )
    add_listening(parser)
    add_exports(parser)
    add_observing(parser)
    _add_studio(parser)
    add_engine(parser)
    add_vllm_options(parser)


def _add_studio(parser: argparse.ArgumentParser) -> None:
    studio = parser.add_argument_group("studio")
    studio.add_argument(
        "--studio",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="show the KV memory as it is on /studio",
    )
    studio.add_argument(
        "--studio-show-text",
        action="store_true",
        help="let whoever may see the studio read what requests say",
    )
    add_recording(studio)


def _add_replies(parser: argparse.ArgumentParser) -> None:
    replies = parser.add_argument_group("replies")
    replies.add_argument(
        "--enable-auto-tool-choice",
        action=argparse.BooleanOptionalAction,
        default=DEFAULT_REPLIES.auto_tool_choice,
        help="let the model choose whether to call tools; without it, only forced calls",
    )
    replies.add_argument(
        "--tool-call-parser",
        choices=tuple(DIALECTS),
        help="how the model writes tool calls (default: by the marks in its chat template, hermes "
        "where there are none)",
    )
    replies.add_argument(
        "--reasoning-parser",
        choices=REASONING_PARSERS,
        default=DEFAULT_REPLIES.reasoning_parser,
        help="tell <think>...</think> apart from the answer",
    )
    replies.add_argument(
        "--timings",
        action="store_true",
        help="put llama-server's timings into every answer, not only where a request asks for them",
    )


def run(options: argparse.Namespace) -> None:
    if options.model is not None and options.model_option is not None:
        raise LooseleafError("the model is given twice: as MODEL and with --model; leave out one")
    given = options.model_option if options.model is None else options.model
    options.model = DEFAULTS.model if given is None else given
    keys, limits, cors = _keys(options), _limits(options), _cors(options)
    observing = observing_of(options)
    tls = tls_of(options)
    if options.pin and options.isolate_cache_per_key and keys:
        raise LooseleafError(
            "--pin and --isolate-cache-per-key exclude each other where there are API keys: none "
            "of them would find the prefix; let each pin its own at /v1/cache/pins"
        )
    studio = _studio(options)
    log_ignored(getattr(options, "ignored", ()))
    # uvicorn raises the signal again once it has shut down; to be told to stop is no failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # Before the model is loaded for nothing.
    with (
        kv_event_stream(options) or nullcontext() as events,
        tracing(options) or nullcontext() as spans,
        listening(options) as listener,
    ):
        prefixes = [(path, from_utf8(path.read_bytes(), str(path))) for path in options.pin]
        log = None if events is None else events.log
        stack = build(engine_settings(options), events=log)
        if options.record is not None:
            Journal(options.record, stack.engine, stack.settings, stack.memory)
        _pin(LLM(stack=stack), prefixes)
        run_server(
            stack,
            model_names=options.served_model_name or [options.model],
            host=options.host,
            port=options.port,
            log_level=options.log_level,
            access_log=options.enable_log_requests,
            max_body_bytes=options.max_body_bytes,
            shutdown_seconds=options.shutdown_timeout,
            sockets=[listener],
            tls=tls.context,
            refresh_tls=tls.refresh,
            replies=ReplySettings(
                auto_tool_choice=options.enable_auto_tool_choice,
                tool_call_parser=options.tool_call_parser,
                reasoning_parser=options.reasoning_parser,
                timings=options.timings,
            ),
            keys=keys,
            limits=limits,
            cors=cors,
            observing=observing,
            root_path=options.root_path,
            exit_on_engine_failure=options.exit_on_engine_failure,
            watchers=[] if events is None else [events.watch],
            tracing=spans,
            studio=studio,
        )


def _studio(options: argparse.Namespace) -> StudioSettings:
    if options.studio_record is not None and not options.studio:
        raise LooseleafError("--studio-record needs the studio: leave out --no-studio")
    return StudioSettings(
        enabled=options.studio,
        show_text=options.studio_show_text,
        record=options.studio_record,
        record_limit=options.studio_record_limit,
    )


def _limits(options: argparse.Namespace) -> Limits:
    return Limits(
        max_queued_requests=options.max_num_queued_reqs,
        max_queued_tokens=options.max_queued_tokens,
        read_timeout=options.request_read_timeout,
        request_timeout=options.request_timeout,
        isolate_cache=options.isolate_cache_per_key,
        header_timeout=options.request_header_timeout,
        max_header_bytes=options.max_header_bytes,
        keep_alive=options.timeout_keep_alive,
        max_connections=options.max_connections,
    )


def _cors(options: argparse.Namespace) -> Cors | None:
    if not options.allowed_origins:
        return None
    return Cors(
        origins=tuple(options.allowed_origins),
        methods=tuple(options.allowed_methods),
        headers=tuple(options.allowed_headers),
        credentials=options.allow_credentials,
    )


def _keys(options: argparse.Namespace) -> KeyRing:
    from_environment = [options.environment_api_key] if options.environment_api_key else []
    return key_ring(options.api_key or from_environment, options.api_keys_file)


def _pin(llm: LLM, prefixes: Sequence[tuple[Path, str]]) -> None:
    for path, text in prefixes:
        if path.suffix == ".json":
            messages = parse_json(text, str(path))
            if not isinstance(messages, list):
                raise LooseleafError(f"{path} must hold a list of chat messages")
            rendered = llm.stack.chat_template.render(
                messages, add_generation_prompt=False, continue_final_message=False
            )
            pin = llm.pin(llm.chat_tokens(rendered))
        else:
            pin = llm.pin(text)
        logger.info("pinned %s: %d tokens, %d blocks", path, pin.num_tokens, len(pin.block_ids))
