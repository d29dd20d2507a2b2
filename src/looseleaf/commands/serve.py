"""`looseleaf serve`"""

import argparse
import signal
import sys

from looseleaf.commands.options import DEFAULTS, add_engine, engine_settings
from looseleaf.engine.build import build


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        default=DEFAULTS.model,
        help="a known name, a path to a .gguf file, or hf:ORG/REPO[:FILE]",
    )
    http = parser.add_argument_group("server")
    http.add_argument("--host", default="127.0.0.1", help="address to listen on")
    http.add_argument("--port", type=_port, default=8000, help="0 picks a free one")
    http.add_argument(
        "--served-model-name",
        nargs="+",
        metavar="NAME",
        help="names that requests may use for the model (default: MODEL)",
    )
    http.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="how much to log",
    )
    add_engine(parser)


def run(options: argparse.Namespace) -> None:
    from looseleaf.server.run import run_server

    stack = build(engine_settings(options))
    # uvicorn raises the signal again once it has shut down; to be told to stop is no failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    run_server(
        stack,
        model_names=options.served_model_name or [options.model],
        host=options.host,
        port=options.port,
        log_level=options.log_level,
    )


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: ports go from 0 to 65535")
    return int(text)
