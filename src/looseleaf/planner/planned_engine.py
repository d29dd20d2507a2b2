"""The server's engine with all that its settings ask for, on a virtual clock of its own."""

from collections.abc import Callable
from math import inf

from looseleaf.core.errors import ConfigError
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings
from looseleaf.engine.tiers import planned_tiers
from looseleaf.planner.clock import VirtualClock
from looseleaf.planner.executor import PlannedExecutor
from looseleaf.planner.replay import Replay, planned_scheduler
from looseleaf.planner.step_times import StepTimes
from looseleaf.planner.summary_times import SummaryTimes
from looseleaf.tiers.virtual_disk import ASSUMED, DiskSpeed

MOST = 1e9
"""Of what is given as a number: requests a second, how many times as fast, GB/s."""

UP_TO = f" and at most {MOST:g}"


def planned_replay(
    settings: EngineSettings,
    memory: MemoryPlan,
    times: StepTimes,
    *,
    swap_bandwidth: float | None = None,
    disk_speed: DiskSpeed = ASSUMED,
    sample_seconds: float | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Replay:
    """Blocks go to the host's memory and come back at `swap_bandwidth`, in bytes a second. Raises
    ConfigError for settings that cannot be planned with."""
    check_plannable(settings, swap_bandwidth)
    clock = VirtualClock()
    tiers = planned_tiers(settings, memory, clock, disk_speed)
    request_seconds = 0.0
    if isinstance(times, SummaryTimes):
        request_seconds = times.request_seconds
        times = times.for_replay(memory.block_size, clock)
    block_seconds = memory.block_bytes / (swap_bandwidth or inf)
    return Replay(
        planned_scheduler(settings, memory, tiers),
        PlannedExecutor(times, clock, block_seconds=block_seconds),
        tiers=tiers,
        sample_seconds=sample_seconds,
        on_progress=on_progress,
        request_seconds=request_seconds,
    )


def check_plannable(settings: EngineSettings, swap_bandwidth: float | None = None) -> None:
    """Raises ConfigError for settings that would be ignored."""
    for name in ("pin_budget", "speculative_ngram"):
        if getattr(settings, name):
            raise ConfigError(f"{name} cannot be planned with: leave it out")
    if swap_bandwidth is None and (settings.swap_space or settings.kv_disk) is not None:
        raise ConfigError(
            "how fast do blocks get to the host's memory? Pass --swap-bandwidth, in GB/s, or add "
            "host_link to the hardware"
        )
    if swap_bandwidth is not None and not 0 < swap_bandwidth <= MOST * 1e9:
        raise ConfigError(
            f"swap_bandwidth is {swap_bandwidth / 1e9:g}, but it must be above 0{UP_TO}"
        )
