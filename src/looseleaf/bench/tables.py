"""The results of benchmarks as tables for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

Result = Mapping[str, Any]


_WORKLOAD_ROWS = (
    ("time, s", "wall_s", 2),
    ("first token, ms", "ttft_ms", 1),
    ("the last one's, ms", "max_ttft_ms", 1),
    ("per token then, ms", "tpot_ms", 2),
    ("prefill, tokens/s", "prefill_tokens_per_s", 1),
    ("decode, tokens/s", "decode_tokens_per_s", 1),
    ("output, tokens/s", "output_tokens_per_s", 1),
    ("prompts computed", "prompt_tokens_computed", 0),
    ("found stored", "prompt_tokens_cached", 0),
    ("most KV blocks", "blocks_peak", 0),
    ("most memory, MiB", "peak_rss_mib", 0),
)


def show_workloads(results: Sequence[Result]) -> None:
    """One or several workloads, measured with the same settings."""
    table = _table("")
    for result in results:
        table.add_column(result["workload"].replace("-", "-\n"), justify="right")
    for label, name, digits in _WORKLOAD_ROWS:
        table.add_row(label, *(_number(result[name], digits) for result in results))
    _show(results[0], [table], f"medians over rounds: {results[0]['rounds']}")


def show_products(result: Result) -> None:
    table = _table("outputs x inputs", "type")
    for title in (
        *("rows", "time, ms", "Gmadd/s", "of the peak", "reads, GB/s", "of the memory's"),
    ):
        table.add_column(title, justify="right")
    for one in result["products"]:
        table.add_row(
            f"{one['n']} x {one['k']}",
            one["type"],
            str(one["rows"]),
            _number(1000 * one["seconds"], 3),
            _number(one["gmadds_per_s"], 1),
            f"{one['share_of_peak']:.0%}",
            _number(one.get("gb_per_s"), 1),
            f"{one['share_of_bandwidth']:.0%}" if "share_of_bandwidth" in one else "",
        )
    tables = [table]
    if result["passes"]:
        tables.append(_table("rows", "decode, tok/s", "prefill, tok/s"))
        for one in result["passes"]:
            tables[1].add_row(
                str(one["rows"]),
                _number(one["decode_tokens_per_s"], 0),
                _number(one["prefill_tokens_per_s"], 0),
            )
    _show(
        result,
        tables,
        f"peaks: {result['peak_int8_gmadds_per_s']:.0f} Gmadd/s in 8 bits, "
        f"{result['peak_f32_gmadds_per_s']:.0f} in float32; memory is read at "
        f"{result['read_gb_per_s']:.1f} GB/s. The second table is what the products of the whole "
        f"model allow.",
    )


def show_attention(result: Result) -> None:
    layouts = _table("context", "block size", "shuffled, ms", "in order, ms", "ratio")
    for one in result["layouts"]:
        layouts.add_row(
            str(one["context"]),
            str(one["block_size"]),
            _number(1000 * one["paged_s"], 3),
            _number(1000 * one["contiguous_s"], 3),
            _number(one["ratio"], 3),
        )
    sharing = _table("shared prefix", "block size", "private, ms", "shared, ms", "times as fast")
    for one in result["sharing"]:
        sharing.add_row(
            f"{one['shared_tokens']} of {one['context']}",
            str(one["block_size"]),
            _number(1000 * one["private_s"], 3),
            _number(1000 * one["shared_s"], 3),
            _number(one["ratio"], 2),
        )
    _show(
        result,
        [layouts, sharing],
        f"One layer, one new token for each of {result['layouts'][0]['num_sequences']} sequences, "
        f"and of {result['sharing'][0]['num_sequences']} with a shared prefix; "
        f"{result['kv_type']} KV; medians over rounds: {result['rounds']}",
    )


def show_startup(result: Result) -> None:
    table = _table("", "s")
    table.add_row("to the first token", _number(result["first_token_s"], 3))
    table.add_row("to the end of the process", _number(result["end_s"], 3))
    table.add_row("to the first token of the very first start", _number(result["first_run_s"], 3))
    _show(result, [table], f"medians over starts after the first: {result['rounds']}")


def _table(*titles: str) -> Table:
    return Table(*titles, box=None, pad_edge=False, padding=(0, 2, 0, 0))


def _show(result: Result, tables: Sequence[Table], note: str) -> None:
    console = Console()
    machine = result["machine"]
    executor = f"{result['executor']} executor, " if "executor" in result else ""
    console.print(
        f"[bold]{result['model']}[/], {executor}threads: {result['threads']}; "
        f"{machine['cpu']}, cores: {machine['cores']}, {machine['memory_gib']} GiB",
        highlight=False,
    )
    for table in tables:
        console.print()
        console.print(table)
    console.print()
    console.print(note, highlight=False)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
