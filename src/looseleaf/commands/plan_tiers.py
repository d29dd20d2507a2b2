"""KV blocks outside the pool in `looseleaf plan`: the options of the disk, and what is told."""

import argparse
from pathlib import Path
from typing import Any

from looseleaf.commands.options import add_disk_size
from looseleaf.engine.settings import format_bytes, num_bytes_of
from looseleaf.planner.plan import Plan
from looseleaf.tiers.virtual_disk import ASSUMED, DiskSpeed


def add_disk(memory: argparse._ArgumentGroup) -> None:
    memory.add_argument(
        "--kv-disk",
        type=Path,
        metavar="FOLDER",
        help="plan with a folder for blocks that no longer fit into memory, empty at first; this "
        "one is neither read nor written",
    )
    add_disk_size(memory)
    memory.add_argument(
        "--disk-bandwidth",
        type=_disk_speed,
        metavar="GB/S[,GB/S]",
        help="at which blocks are read from it, and written if that is another (default: "
        f"{ASSUMED.read / 1e9:g}, an assumption: a digest of each block and SQLite take their "
        "time on any drive)",
    )


def _disk_speed(text: str) -> DiskSpeed:
    try:
        speeds = [float(part.strip().removesuffix("GB/s")) for part in text.split(",")]
    except ValueError:
        speeds = []
    if not 1 <= len(speeds) <= 2 or not all(0 < speed < 1e6 for speed in speeds):
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is not a bandwidth: write it in GB/s, like 2 or, of reads and writes, "
            "3,1.5"
        )
    return DiskSpeed(speeds[0] * 1e9, speeds[-1] * 1e9)


def swap_report(plan: Plan, bandwidth: float | None) -> dict[str, Any] | None:
    """What went to memory besides the KV cache, and came back; of all replicas together."""
    tiers, space = plan.tiers, plan.settings.swap_space
    if tiers is None or space is None:
        return None
    return {
        "space": num_bytes_of(space) * max(1, len(plan.replicas)),
        "bandwidth": bandwidth,
        "preemption_mode": plan.settings.preemption_mode,
        "blocks_saved": tiers.saved,
        "blocks_loaded": tiers.loaded_from_host,
        "tokens_loaded": tiers.loaded_from_host * plan.memory.block_size,
        "bytes_at_end": tiers.host_bytes,
    }


def disk_report(plan: Plan, speed: DiskSpeed, *, assumed: bool) -> dict[str, Any] | None:
    """What was found on the disk, of all replicas together, each of which has its own folder."""
    tiers = plan.tiers
    if tiers is None or plan.settings.kv_disk is None:
        return None
    return {
        "size": num_bytes_of(plan.settings.kv_disk_size) * max(1, len(plan.replicas)),
        "read_bandwidth": speed.read,
        "write_bandwidth": speed.write,
        "bandwidth_assumed": assumed,
        "blocks_saved": tiers.saved if plan.settings.swap_space is None else None,
        "blocks_loaded": tiers.loaded_from_disk,
        "tokens_loaded": tiers.loaded_from_disk * plan.memory.block_size,
        "blocks_not_taken": tiers.dropped,
        "bytes_at_end": tiers.disk_bytes,
    }


def tiers_text(report: dict[str, Any]) -> list[str]:
    lines = []
    swap, disk = report["swap"], report["disk"]
    if swap is not None:
        lines.append(
            f"swap      {swap['blocks_saved']} blocks saved and {swap['blocks_loaded']} loaded "
            f"({swap['tokens_loaded']} tokens), at {swap['bandwidth'] / 1e9:.1f} GB/s; "
            f"{_in_use(swap['bytes_at_end'], swap['space'])}"
        )
    if disk is not None:
        read, write = disk["read_bandwidth"] / 1e9, disk["write_bandwidth"] / 1e9
        speed = f"read at {read:g} and written at {write:g} GB/s"
        if disk["bandwidth_assumed"]:
            speed += " (assumed: --disk-bandwidth)"
        lines.append(
            f"disk      {disk['blocks_loaded']} blocks loaded ({disk['tokens_loaded']} tokens), "
            f"{disk['blocks_not_taken']} not taken for want of time to write; {speed}; "
            f"{_in_use(disk['bytes_at_end'], disk['size'])}"
        )
    return lines


def _in_use(num_bytes: int, limit: int) -> str:
    return f"{format_bytes(num_bytes)} of {format_bytes(limit)} in use at the end"
