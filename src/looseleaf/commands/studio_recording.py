"""`--studio-record`, of the commands that have an engine to record."""

import argparse
from pathlib import Path

from looseleaf.commands.options import memory_size
from looseleaf.engine.settings import format_bytes
from looseleaf.studio.settings import RECORD_LIMIT

LEAST_LIMIT = 1 << 20


def add_recording(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--studio-record",
        type=Path,
        metavar="FILE",
        help="write what the studio would show to a file, for `looseleaf studio FILE`; compressed "
        "if its name ends in .gz",
    )
    group.add_argument(
        "--studio-record-limit",
        type=_limit,
        default=RECORD_LIMIT,
        metavar="SIZE",
        help="most bytes of it, like 512MiB: whenever half of them are full, what FILE has goes to "
        f"FILE.before, and FILE begins anew (default: {format_bytes(RECORD_LIMIT)})",
    )


def _limit(text: str) -> int:
    size = memory_size(text)
    if size < LEAST_LIMIT:
        raise argparse.ArgumentTypeError(
            f"{format_bytes(size)} is too little for a recording: it takes at least "
            f"{format_bytes(LEAST_LIMIT)}"
        )
    return size
