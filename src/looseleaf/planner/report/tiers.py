"""Where KV blocks were found besides the cache, for the page."""

from typing import Any

from looseleaf.engine.settings import format_bytes
from looseleaf.planner.amounts import number
from looseleaf.planner.report.markup import Html, paragraph, section, table


def outside_the_cache(report: dict[str, Any]) -> Html | None:
    """None if they are kept nowhere else."""
    swap, disk = report["swap"], report["disk"]
    rows = []
    if swap is not None:
        speed = f"{swap['bandwidth'] / 1e9:g} GB/s"
        rows.append(("swap space", *_loaded(swap), speed, *_room(swap, swap["space"])))
    if disk is not None:
        speed = f"{disk['read_bandwidth'] / 1e9:g} GB/s, writes {disk['write_bandwidth'] / 1e9:g}"
        if disk["bandwidth_assumed"]:
            speed += " (assumed)"
        rows.append(("disk", *_loaded(disk), speed, *_room(disk, disk["size"])))
    if not rows:
        return None
    text = (
        "Blocks that no longer fit into the KV cache, of earlier prompts and preempted requests. "
        "They are loaded where that takes less time than to compute them again, both as measured "
        "on the way."
    )
    if disk is not None and disk["blocks_not_taken"]:
        text += (
            f" The disk did not take {number(disk['blocks_not_taken'])} blocks: too many were "
            "still to be written."
        )
    headers = ["tier", "blocks loaded", "tokens", "bandwidth", "in use at the end", "room"]
    return section(
        "tiers", "KV blocks outside the cache", paragraph(text), table("By tier", headers, rows)
    )


def _loaded(tier: dict[str, Any]) -> tuple[str, str]:
    return number(tier["blocks_loaded"]), number(tier["tokens_loaded"])


def _room(tier: dict[str, Any], limit: int) -> tuple[str, str]:
    return format_bytes(tier["bytes_at_end"]), format_bytes(limit)
