"""Many replays that do not depend on each other, in one process or several."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

_Given = TypeVar("_Given")
_Found = TypeVar("_Found")


def in_order(
    play: Callable[[_Given], _Found], given: Sequence[_Given], num_processes: int
) -> Iterator[_Found]:
    """What `play` returns for each, in their order. Several processes import `play`, and begin from
    nothing: so nothing depends on how many there are."""
    if num_processes == 1 or len(given) <= 1:
        yield from map(play, given)
        return
    with ProcessPoolExecutor(
        min(num_processes, len(given)), mp_context=get_context("spawn")
    ) as pool:
        yield from pool.map(play, given)
