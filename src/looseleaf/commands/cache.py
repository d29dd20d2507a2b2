"""`looseleaf cache`"""

import argparse
import json
import sqlite3
import time
from pathlib import Path
from typing import Any

from looseleaf.bench.progress import progress
from looseleaf.commands.options import add_json, print_json
from looseleaf.core.errors import LooseleafError
from looseleaf.engine.settings import format_bytes
from looseleaf.tiers.block_file import NAME, BlockFile, Checked, Space


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "An example: looseleaf cache ls --kv-disk ~/kv"
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, summary in (
        ("ls", "say which models' blocks are there, and how large they are"),
        ("verify", "read every block, and remove those that are damaged"),
        ("clear", "remove all blocks"),
    ):
        action = actions.add_parser(
            name, help=summary, description=summary[0].upper() + summary[1:] + "."
        )
        action.add_argument(
            "--kv-disk",
            type=Path,
            required=True,
            metavar="FOLDER",
            help="the folder that `looseleaf serve --kv-disk` was given",
        )
        add_json(action)


def run(options: argparse.Namespace) -> int:
    folder: Path = options.kv_disk
    if not (folder / NAME).exists():
        raise LooseleafError(
            f"there are no KV blocks in {folder}: `looseleaf serve --kv-disk {folder}` would keep "
            f"some there"
        )
    action = {"ls": _list, "verify": _verify, "clear": _clear}[options.action]
    try:
        file = BlockFile(folder)
        try:
            return action(file, options)
        finally:
            file.close()
    except sqlite3.Error as error:
        raise LooseleafError(
            f"{folder / NAME} is damaged or in use ({error}); a server that is given the folder "
            f"makes a damaged file anew"
        ) from None


def _list(file: BlockFile, options: argparse.Namespace) -> int:
    spaces, num_bytes = file.spaces(), file.num_bytes()
    if options.json:
        print_json(
            {
                "folder": str(options.kv_disk),
                "bytes_on_disk": num_bytes,
                "models": [_as_dict(space) for space in spaces],
            }
        )
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    for column in ("model", "executor", "KV", "blocks of", "version"):
        table.add_column(column)
    for column in ("blocks", "tokens", "size", "last used"):
        table.add_column(column, justify="right")
    for space in spaces:
        of = json.loads(space.name)
        table.add_row(
            of["model"],
            of["executor"],
            of["kv_cache_dtype"],
            str(of["block_size"]),
            of["looseleaf"],
            f"{space.num_blocks:,}",
            f"{space.num_blocks * of['block_size']:,}",
            format_bytes(space.num_bytes),
            _ago(space.last_used),
        )
    console = Console()
    console.print(table)
    console.print(f"{format_bytes(num_bytes)} on disk in {options.kv_disk}")
    return 0


def _verify(file: BlockFile, options: argparse.Namespace) -> int:
    found = Checked(0, 0)
    with progress("blocks", sum(space.num_blocks for space in file.spaces())) as advance:
        for checked in file.check():
            found = checked
            advance()
    file.check_structure()
    if options.json:
        print_json({"folder": str(options.kv_disk)} | found._asdict())
    else:
        state = "all are whole"
        if found.num_damaged:
            state = f"{found.num_damaged} were damaged and are removed"
        print(f"{found.num_blocks} blocks read; {state}")
    return 1 if found.num_damaged else 0


def _clear(file: BlockFile, options: argparse.Namespace) -> int:
    before, num_blocks = file.num_bytes(), sum(space.num_blocks for space in file.spaces())
    file.clear()
    freed = before - file.num_bytes()
    if options.json:
        print_json({"folder": str(options.kv_disk), "num_blocks": num_blocks, "bytes": freed})
    else:
        print(f"{num_blocks} blocks removed, {format_bytes(max(0, freed))} given back")
    return 0


def _as_dict(space: Space) -> dict[str, Any]:
    return dict(json.loads(space.name)) | {
        "num_blocks": space.num_blocks,
        "bytes": space.num_bytes,
        "last_used": space.last_used or None,
    }


def _ago(moment: float) -> str:
    if not moment:
        return "never"
    seconds = max(0.0, time.time() - moment)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "just now"
