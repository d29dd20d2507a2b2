"""The built-in table of well-known models (data/models.toml)."""

import tomllib
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from looseleaf.core.errors import ConfigError
from looseleaf.planner.hf_config import shape_from_config
from looseleaf.planner.shapes import ModelShape

_TABLE = Path(__file__).parent / "data" / "models.toml"

_VARIANTS = frozenset(("instruct", "it", "chat", "hf", "base", "pt"))
"""Words in names of models that are of one shape with those without them."""


class KnownShape(NamedTuple):
    """A row. `parameters`, which is a multiple of `rounded_to`, and `active_parameters` are as
    published."""

    name: str
    aliases: tuple[str, ...]
    parameters: int
    rounded_to: int
    active_parameters: int | None
    source: str
    config: dict[str, Any]

    def shape(self) -> ModelShape:
        return shape_from_config(self.config, self.name, f"built-in table: {self.source}")


@cache
def known_shapes() -> tuple[KnownShape, ...]:
    with _TABLE.open("rb") as file:
        rows = tomllib.load(file)["model"]
    return tuple(
        KnownShape(
            row["name"],
            tuple(row.get("aliases", ())),
            row["parameters"],
            row.get("rounded_to", 1),
            row.get("active_parameters"),
            row["source"],
            row["config"],
        )
        for row in rows
    )


def find_known(name: str) -> KnownShape | None:
    """The row of this name, in any case, with or without its organization; None if none is."""
    by_name = _by_name()
    short = name.lower().rpartition("/")[2]
    return by_name.get(short) or by_name.get(_plain(short))


def unknown_model(name: str) -> ConfigError:
    known = [row.name for row in known_shapes()]
    close = get_close_matches(name.lower().rpartition("/")[2], _by_name(), n=1)
    near = f"did you mean {_by_name()[close[0]].name}? " if close else ""
    return ConfigError(
        f"no model of the built-in table is called {name[:80]!r}: {near}pass a .gguf file, a "
        f"config.json or a folder with one, or one of the {len(known)} names that "
        "`looseleaf fit --list` shows"
    )


def _plain(short: str) -> str:
    """Without the words that do not change a shape."""
    return "-".join(word for word in short.split("-") if word not in _VARIANTS)


@cache
def _by_name() -> dict[str, KnownShape]:
    found: dict[str, KnownShape] = {}
    for row in known_shapes():
        names = [row.name.lower().rpartition("/")[2], *row.aliases]
        for name in (*names, *map(_plain, names)):
            found.setdefault(name, row)
    return found
