"""A progress bar for offline generation."""

import sys
from typing import Any, Self

from looseleaf.engine.groups import Delta


class GenerationProgress:
    """A bar over finished samples, with the tokens so far; nothing if standard error is no
    terminal."""

    def __init__(self, num_samples: int, *, show: bool) -> None:
        self._num_samples = num_samples
        self._num_tokens = 0
        self._bar: Any = None
        self._show = show and sys.stderr.isatty()

    def __enter__(self) -> Self:
        if self._show:
            # Only now: drawing is not worth its import where nobody looks.
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
            )

            self._bar = Progress(
                TextColumn("generating"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[num_tokens]} tokens"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=self._num_samples, num_tokens=0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, delta: Delta) -> None:
        self._num_tokens += len(delta.token_ids)
        if self._bar is not None:
            done = int(delta.finish_reason is not None)
            self._bar.update(self._task, advance=done, num_tokens=self._num_tokens)
