"""Telling a person how far a download is."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int], None]
"""Called with the bytes so far and the bytes in all."""

_log = logging.getLogger(__name__)


@contextmanager
def reported(label: str, total: int, progress: Progress | None) -> Iterator[Progress]:
    """The callback to report to: `progress` if given, else a bar if stderr is a terminal.

    Where there is neither, one log line has to do.
    """
    if progress is not None:
        yield progress
    elif sys.stderr.isatty():
        with _bar(label, total) as advance:
            yield advance
    else:
        _log.info("%s (%.0f MB)", label, total / 1e6)
        yield lambda done, total: None


@contextmanager
def _bar(label: str, total: int) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done, total: bar.update(task, completed=done, total=total)
