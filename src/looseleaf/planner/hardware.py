"""What a device can do: peak, bandwidth, memory. A built-in table, and users' own in YAML."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from looseleaf.core.errors import ConfigError
from looseleaf.engine.settings import format_bytes, parse_bytes
from looseleaf.planner.yaml_keys import read_yaml, shown

_TABLE = Path(__file__).parent / "data" / "hardware.toml"

KINDS = ("gpu", "cpu")
PEAK_DTYPES = ("f32", "bf16", "f16", "fp8", "int8", "fp4")
_KEYS = (
    "name",
    "title",
    "kind",
    "memory",
    "visible",
    "bandwidth",
    "host_link",
    "peer_link",
    "peak",
    "source",
)

LINK_EFFICIENCY = 0.8
"""An assumption, as the roofline's are: large copies get so far, after the protocol's overhead."""

_COMPUTED_IN = {"int4": "bf16", "mxfp4": "bf16"}
"""Weights that are widened before they are multiplied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One device. `memory` and `visible_memory`, what programs see of it, are in bytes; None is
    what is put in. `bandwidth` is in bytes a second; `peak` in FLOP/s by what is multiplied.
    `host_link` is what the link to the host's memory carries each way, in bytes a second, and
    `peer_link` that to other devices, where it is not the same."""

    name: str
    title: str
    kind: str
    memory: int | None
    visible_memory: int | None
    bandwidth: float
    peak: Mapping[str, float]
    source: str
    host_link: float | None = None
    peer_link: float | None = None

    @property
    def swap_bandwidth(self) -> float | None:
        """What of its link, or of its memory's bandwidth, copies of KV blocks can be expected to
        reach; None if nobody says. In a processor's memory each byte is read and written."""
        if self.kind == "cpu":
            return LINK_EFFICIENCY * self.bandwidth / 2
        return None if self.host_link is None else LINK_EFFICIENCY * self.host_link

    @property
    def peer_bandwidth(self) -> float | None:
        """What a device can be expected to send others; None if nobody says."""
        link = self.host_link if self.peer_link is None else self.peer_link
        return None if link is None else LINK_EFFICIENCY * link

    @property
    def usable_memory(self) -> int | None:
        return self.memory if self.visible_memory is None else self.visible_memory

    def peak_flops(self, dtype: str) -> float:
        """Of products with weights of this dtype: its own peak, or that of what the device has to
        widen it to."""
        for name in (dtype, _COMPUTED_IN.get(dtype, dtype), "bf16", "f32"):
            if name in self.peak:
                return self.peak[name]
        return max(self.peak.values())


@cache
def known_hardware() -> Mapping[str, Hardware]:
    """The built-in table (data/hardware.toml), by name."""
    with _TABLE.open("rb") as file:
        rows = tomllib.load(file)["hardware"]
    return {row["name"]: _hardware(row, str(_TABLE.name)) for row in rows}


def load_hardware(name: str) -> Hardware:
    """One of the built-in table, in any case, or of a YAML file with its keys:

        name: my-gpu
        memory: 48GiB
        bandwidth: 960           # GB/s
        peak: {bf16: 180}        # TFLOP/s

    Raises ConfigError, which says what there is.
    """
    if name.endswith((".yaml", ".yml")):
        return _hardware(read_yaml(Path(name).expanduser()), name)
    known = known_hardware()
    wanted = name.lower().replace("_", "-").replace(" ", "-")
    if wanted in known:
        return known[wanted]
    starting = [row for row in known if wanted and row.startswith(wanted)]
    if len(starting) == 1:
        return known[starting[0]]
    close = starting or get_close_matches(wanted, known, n=1)
    near = f"did you mean {' or '.join(close)}? " if close else ""
    raise ConfigError(
        f"no hardware is called {name[:40]!r}: {near}choose one of {', '.join(known)}, or pass a "
        ".yaml file"
    )


def _hardware(row: Any, where: str) -> Hardware:
    if not isinstance(row, dict):
        raise ConfigError(f"{where} must hold settings, each like bandwidth: 960")
    if unknown := [str(key) for key in row if key not in _KEYS]:
        raise ConfigError(
            f"{where}: there is no setting {unknown[0][:40]!r}; there are {', '.join(_KEYS)}"
        )
    name = str(row.get("name") or Path(where).stem)
    kind = row.get("kind", "gpu")
    if kind not in KINDS:
        raise ConfigError(f"{where}: kind is {kind!s:.40}, but it must be gpu or cpu")
    peaks = row.get("peak")
    if not isinstance(peaks, dict) or not peaks or any(key not in PEAK_DTYPES for key in peaks):
        raise ConfigError(
            f"{where}: peak must hold TFLOP/s by dtype, like {{bf16: 180}}; the dtypes are "
            f"{', '.join(PEAK_DTYPES)}"
        )
    memory, visible = _memory(row, "memory", where), _memory(row, "visible", where)
    if memory is not None and visible is not None and visible > memory:
        raise ConfigError(
            f"{where}: visible is {format_bytes(visible)}, but it must be at most the memory of "
            f"{format_bytes(memory)}"
        )
    return Hardware(
        name=name,
        title=str(row.get("title", name)),
        kind=kind,
        memory=memory,
        visible_memory=visible,
        bandwidth=_positive(row.get("bandwidth"), "bandwidth", where) * 1e9,
        peak={key: _positive(value, f"peak {key}", where) * 1e12 for key, value in peaks.items()},
        source=str(row.get("source", where)),
        host_link=_link(row, "host_link", where),
        peer_link=_link(row, "peer_link", where),
    )


def _memory(row: Mapping[str, Any], key: str, where: str) -> int | None:
    value = row.get(key)
    if value is None:
        return None
    try:
        size = parse_bytes(str(value))
    except ConfigError as error:
        raise ConfigError(f"{where}: {key}: {error}") from None
    if not size:
        raise ConfigError(f"{where}: {key} is 0, but it must be above 0: leave it out if unknown")
    return size


def _link(row: Mapping[str, Any], key: str, where: str) -> float | None:
    value = row.get(key)
    return None if value is None else _positive(value, key, where) * 1e9


def _positive(value: Any, key: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise ConfigError(
            f"{where}: {key} is {shown(value)}, but it must be a number above 0 and below 1e9"
        )
    return float(value)
