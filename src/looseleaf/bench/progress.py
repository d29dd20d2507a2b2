"""How far a measurement has come."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[], None]
"""Called once for each of the things to do, when it is done."""


@contextmanager
def progress(label: str, total: int) -> Iterator[Advance]:
    """A bar on standard error if that is a terminal. It is drawn when it advances and at no other
    time, so that nothing that is timed pays for it."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    # Only now: drawing is not worth its import where nobody looks.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task(label, total=total)
        bar.refresh()
        yield lambda: bar.update(task, advance=1, refresh=True)
