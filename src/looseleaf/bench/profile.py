"""The tables of `--profile`: where the time of the native executor went."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from looseleaf.bench.kernels import kernels
from looseleaf.bench.peaks import measure_peaks
from looseleaf.core.errors import ConfigError
from looseleaf.engine.engine import Engine
from looseleaf.executors.native import NativeExecutor
from looseleaf.executors.native_profile import Peaks, Work, as_dict, by_layer, by_name


def start_profile(engine: Engine) -> None:
    """Raises ConfigError if the engine's executor is not the native one."""
    _native(engine).start_profile()


def profile_json(engine: Engine) -> dict[str, Any]:
    threads = _native(engine).num_threads
    works, peaks = _native(engine).profile(), measure_peaks(threads, kernels())
    return {
        "peaks": peaks._asdict(),
        "by_op": [as_dict(work, peaks) for work in by_name(works)],
        "by_layer": [as_dict(work, peaks) for work in by_layer(works)],
    }


def show_profile(engine: Engine) -> None:
    """On standard error, which leaves standard output to the command's own result."""
    threads = _native(engine).num_threads
    works, peaks = _native(engine).profile(), measure_peaks(threads, kernels())
    total = sum(work.seconds for work in works)
    console = Console(stderr=True)
    for title, groups in (("pass", by_name(works)), ("layer", by_layer(works))):
        console.print(_table(title, groups, total, peaks))
        console.print()
    console.print(
        f"{total:.3f} s in the native runtime. Peaks measured just now: "
        f"{peaks.int8_madds / 1e9:.0f} G multiply-adds/s in 8 bits, "
        f"{peaks.f32_madds / 1e9:.0f} in float32; memory is read at {peaks.bytes / 1e9:.1f} GB/s. "
        f"What stays in a cache can pass 100%.",
        highlight=False,
    )


def _native(engine: Engine) -> NativeExecutor:
    if not isinstance(engine.executor, NativeExecutor):
        raise ConfigError("--profile measures the native executor: add --executor native")
    return engine.executor


def _table(title: str, works: Sequence[Work], total: float, peaks: Peaks) -> Table:
    table = Table(title, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("time, s", "share", "Gmadd/s", "GB/s", "of the roofline"):
        table.add_column(column, justify="right")
    for work in works:
        seconds = work.seconds or float("inf")
        madds = work.int8_madds + work.int16_madds + work.f32_madds
        name = work.name or ("outside" if work.layer is None else str(work.layer))
        table.add_row(
            name,
            f"{work.seconds:.3f}",
            f"{work.seconds / total:.0%}" if total else "-",
            f"{madds / seconds / 1e9:.1f}" if madds else "-",
            f"{work.num_bytes / seconds / 1e9:.1f}" if work.num_bytes else "-",
            f"{work.bound(peaks) / seconds:.0%}" if madds else "-",
        )
    return table
