"""Options of `looseleaf plan` with other values: what a sweep goes through."""

import argparse
import copy
import itertools
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, NoReturn

from looseleaf.commands.plan_arguments import add_settings
from looseleaf.core.errors import ConfigError

MOST_POINTS = 1000


class Point(NamedTuple):
    """`settings` are the values by name, to be shown; `options` those of the command with them."""

    settings: dict[str, Any]
    options: argparse.Namespace


def points(options: argparse.Namespace, sweeps: Sequence[tuple[str, Sequence[str]]]) -> list[Point]:
    """Each combination, the first sweep's values changing last. Raises ConfigError for an option
    that is not known, or a value that it cannot have."""
    parser = _Parser(add_help=False)
    add_settings(parser)
    known = sorted(vars(parser.parse_args(["--model", "", "--hardware", ""])))
    names = [name for name, _ in sweeps]
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            near = f"did you mean {close[0]}? " if close else ""
            raise ConfigError(
                f"no option to sweep is called {name[:40]!r}: {near}there are {', '.join(known)}"
            )
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"{twice[0]} is swept twice: write all its values in one --sweep")
    values = [[(text, _read(parser, name, text)) for text in texts] for name, texts in sweeps]
    found = [
        _point(options, dict(zip(names, combination, strict=True)))
        for combination in itertools.product(*values)
    ]
    if len(found) > MOST_POINTS:
        raise ConfigError(f"{len(found)} combinations are too many: at most {MOST_POINTS}")
    return found


def with_settings(options: argparse.Namespace, settings: dict[str, Any]) -> argparse.Namespace:
    """A copy. A cache of so many blocks keeps its tokens when the size of a block changes."""
    found = copy.copy(options)
    for name, value in settings.items():
        setattr(found, name, value)
    if "num_blocks" not in settings and options.num_blocks is not None:
        found.num_blocks = max(1, options.num_blocks * options.block_size // found.block_size)
    return found


def _point(options: argparse.Namespace, chosen: dict[str, tuple[str, Any]]) -> Point:
    shown = {
        name: value if isinstance(value, int | float) and str(value) == text else text
        for name, (text, value) in chosen.items()
    }
    values = {name: value for name, (_, value) in chosen.items()}
    return Point(shown, with_settings(options, values))


def _read(parser: argparse.ArgumentParser, name: str, text: str) -> Any:
    """As the command line would."""
    flag = "--" + name.replace("_", "-")
    if name == "enable_prefix_caching":
        switch = {"true": flag, "on": flag, "1": flag}
        switch |= dict.fromkeys(("false", "off", "0"), "--no-" + flag[2:])
        if text.lower() not in switch:
            raise ConfigError(f"{name} is {text[:40]!r}, but it must be true or false")
        arguments = [switch[text.lower()]]
    else:
        arguments = [f"{flag}={text}"]
    required = ["--model", "", "--hardware", ""]
    return getattr(parser.parse_args([*required, *arguments]), name)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)
