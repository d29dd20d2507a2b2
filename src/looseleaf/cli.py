"""The command line. The only reader of environment variables:

LOOSELEAF_CACHE   where downloaded models and packed weights are kept (default: ~/.cache/looseleaf)
VLLM_API_KEY      the API key of a server that is given none with --api-key
"""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from looseleaf import __version__
from looseleaf.commands.logs import set_up_logging
from looseleaf.core.errors import LooseleafError

COMMANDS = {
    "serve": "serve a model over an OpenAI-compatible API",
    "chat": "talk to a model in the terminal",
    "generate": "continue one prompt",
    "tokenize": "show the tokens of a text",
    "pull": "download a model and print where it is",
    "plan": "replay a trace on the engine, its scheduler and cache, without the arithmetic",
    "fit": "say how many requests of a model fit into some memory, and why",
    "calibrate": "time the steps of this machine, for predictions that hold on it",
    "reproduce": "print the figures of published papers beside those of this engine",
    "studio": "show KV memory in a browser: a recording, or made-up chats",
    "demo": "see block sharing, memory waste, and a real model using both",
    "bench": "measure speed and memory on fixed workloads, and the kernels alone",
    "perplexity": "say how well a model predicts a text, on one executor or two",
    "cache": "show, check or clear the KV blocks that are kept on disk",
    "verify": "show that answers do not depend on what else happens, bit for bit",
    "doctor": "say what this machine and this installation can do",
    "version": "print the version",
}
"""Each is a module in `looseleaf.commands`, imported only when it is run."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    _mend_streams()
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()  # not at exit, where a reader that has gone is past handling
    except LooseleafError as error:
        print(f"looseleaf: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _discard_output()
        return 141
    except MemoryError as error:
        print(f"looseleaf: error: out of memory: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # a full disk behind our output, for one
        _discard_output()
        print(f"looseleaf: error: {error}", file=sys.stderr)
        return 2


def _run(arguments: Sequence[str]) -> int:
    options = _parser(arguments).parse_args(arguments)
    cache = os.environ.get("LOOSELEAF_CACHE")
    options.environment_api_key = os.environ.get("VLLM_API_KEY")
    options.cache_dir = Path(cache).expanduser() if cache else None
    set_up_logging(getattr(options, "log_level", "warning"), getattr(options, "log_format", "text"))
    status: int | None = options.run(options)
    return status or 0


def _mend_streams() -> None:
    """A stream that was closed before we started is as good as an empty one; text that the
    terminal's encoding does not have is escaped."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """What is still buffered has nowhere to go, and must not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Adds the default where there is one to tell, and makes room for the longest command."""

    def add_argument(self, action: argparse.Action) -> None:
        # When it measures the names of commands, argparse forgets that it will indent them.
        self._indent()
        super().add_argument(action)
        self._dedent()

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default
        told = "(default: " in (action.help or "")
        if told or default is None or default is False or default == []:
            return action.help
        return super()._get_help_string(action)


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="looseleaf",
        description="Serve language models on paged, shared, visible KV memory.",
        epilog="`looseleaf COMMAND --help` says more. Start with `looseleaf demo`.",
        formatter_class=_HelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"looseleaf {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    wanted = next((word for word in arguments if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            formatter_class=_HelpFormatter,
        )
        if name == wanted:
            module = import_module(f"looseleaf.commands.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
