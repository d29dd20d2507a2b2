"""`looseleaf doctor`"""

import argparse
import platform
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from looseleaf import __version__
from looseleaf.bench.machine import processor, usable_cores
from looseleaf.commands.options import add_json, print_json
from looseleaf.compiled import compiled
from looseleaf.engine.memory import available_memory
from looseleaf.engine.settings import format_bytes
from looseleaf.models.registry import supported
from looseleaf.weights.source import default_cache_dir

BANDWIDTH_BYTES = 256 * 2**20
"""Read for the measurement: several times any ordinary last-level cache."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)
    parser.add_argument(
        "--bandwidth",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="measure how fast memory is read (takes a second)",
    )


def run(options: argparse.Namespace) -> None:
    report = examine(options)
    if options.json:
        print_json(report)
        return
    for title, facts in report.items():
        print(title)
        for name, value in facts.items():
            print(f"  {name:18} {_text(value)}")


def examine(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    native = compiled()
    executors = ["reference"] if native is None else ["native", "reference"]
    threads = usable_cores()
    cache_dir = options.cache_dir or default_cache_dir()
    machine: dict[str, Any] = {
        "processor": processor(),
        "cores_usable": threads,
        "memory_available": format_bytes(available_memory()),
        "system": platform.platform(terse=True),
    }
    if native is not None:
        machine["instruction_sets"] = [n for n, has in native.cpu_features().items() if has]
        if options.bandwidth:
            speed = native.read_bandwidth(BANDWIDTH_BYTES, threads)
            machine["memory_read"] = f"{speed / 1e9:.1f} GB/s"
    return {
        "looseleaf": {
            "version": __version__,
            "python": platform.python_version(),
            "compiled_part": "present" if native is not None else "missing",
            "executors": executors,
            "auto_executor": executors[0],  # as engine.build.resolve_settings has it
            "architectures": list(supported()),
        },
        "machine": machine,
        "models": {
            "folder": str(cache_dir),
            "downloaded": sorted(path.name for path in cache_dir.rglob("*.gguf")),
        },
        "dependencies": _dependencies(),
    }


def _dependencies() -> dict[str, str]:
    try:
        wanted = requires("looseleaf") or []
    except PackageNotFoundError:
        return {}
    names = [text.split(";")[0].split(">")[0].strip() for text in wanted if "extra ==" not in text]
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
