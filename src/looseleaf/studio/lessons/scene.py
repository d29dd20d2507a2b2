"""What a lesson is made of. In JSON it is the body of `GET /studio/lessons/{name}`.

A lesson has one scene for each setting of its controls, and a scene a few steps. The words are the
page's; all numbers in them are figures from here, by name.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct

FORMAT = 1
"""Goes up when a page made for older lessons would misunderstand them."""

Value: TypeAlias = int | str
Figure: TypeAlias = float | str | tuple[int, ...]
"""Times and sizes as they are, shares as a fraction of 1."""

Figures: TypeAlias = Mapping[str, Figure]


class Control(Struct, frozen=True):
    """What a reader can turn: one of `values`."""

    name: str
    values: tuple[Value, ...]
    default: Value


class Block(Struct, array_like=True, frozen=True):
    """A physical block that is not free. Of its slots, `stored` hold a token, and `ever` will by
    the time its sequences have ended. With ref count 0 it is cached, or, where nothing is stored,
    lost to the rounding of a region."""

    block_id: int
    ref_count: int
    stored: int
    ever: int


class Holder(Struct, array_like=True, frozen=True):
    """A sequence that holds blocks: `stored` tokens of it are in those of its table."""

    name: str
    stored: int
    table: tuple[int, ...]


class Pool(Struct, frozen=True, omit_defaults=True):
    """The physical blocks, and who holds them. `mark` is one slot, as (block, offset), and `kinds`
    asks for the empty slots to be told apart."""

    block_size: int
    num_blocks: int
    blocks: tuple[Block, ...] = ()
    sequences: tuple[Holder, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()
    mark: tuple[int, int] | None = None
    kinds: bool = False


class Lane(Struct, array_like=True, frozen=True):
    """A request through the steps. Each cell is empty (it has not come, or has ended), or `w` it
    waits, `p5` five tokens of its prompt, `d` one token more, `r9` nine that had been computed
    before, `x` it is preempted, `i` it has ended and its seat stays empty."""

    name: str
    cells: tuple[str, ...]


class Bar(Struct, array_like=True, frozen=True):
    """`parts` are (name, size), side by side; the page has words for both names."""

    name: str
    parts: tuple[tuple[str, float], ...]
    chosen: bool = False


class Rows(Struct, frozen=True):
    """A table. `columns` name figures, whose forms the page knows; the first one is the row's name.
    `chosen` is the row that the control is at."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Value | float | None, ...], ...]
    chosen: int | None = None


class Strip(Struct, array_like=True, frozen=True):
    """Tokens of a sequence, one letter each: equal letters in equal places are equal tokens.
    `mark` is one of them."""

    name: str
    cells: str
    block_size: int
    mark: int | None = None


class Step(Struct, frozen=True, omit_defaults=True):
    """One sentence, and what there is to see beside it."""

    name: str
    figures: Figures = {}
    pool: Pool | None = None
    lanes: tuple[Lane, ...] = ()
    bars: tuple[Bar, ...] = ()
    unit: str = ""
    """Of the bars: `share` of 1, `bytes`, `slots` of a pool, or else a number."""
    rows: Rows | None = None
    strips: tuple[Strip, ...] = ()


class Question(Struct, frozen=True):
    """At the end. `answer` is the place of the right choice among the page's."""

    answer: int
    figures: Figures = {}


class Scene(Struct, frozen=True):
    """`figures` are known in all of its texts, besides those of each step."""

    values: tuple[Value, ...]
    figures: Figures
    steps: tuple[Step, ...]
    question: Question


class Payload(Struct, frozen=True, kw_only=True):
    """A whole lesson: `scenes` are in the order of the controls' values, the last one changing
    fastest."""

    format: int = FORMAT
    name: str
    controls: tuple[Control, ...]
    scenes: tuple[Scene, ...]


class Lesson(Struct, frozen=True):
    """`build` takes a value for each control and plays the scene."""

    name: str
    controls: tuple[Control, ...]
    build: Callable[..., Scene]

    def payload(self) -> Payload:
        settings = itertools.product(*(control.values for control in self.controls))
        scenes = tuple(self.build(*setting) for setting in settings)
        return Payload(name=self.name, controls=self.controls, scenes=scenes)


def ordered(right: float, wrong: Sequence[float], num_choices: int = 4) -> tuple[list[float], int]:
    """Numbers to choose from, in rising order, and which of them is `right`: the first of `wrong`
    that differ."""
    choices = list(dict.fromkeys([right, *wrong]))[:num_choices]
    choices.sort()
    return choices, choices.index(right)


encode = msgspec.json.Encoder().encode
