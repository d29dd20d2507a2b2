"""One HTTP request as everything on its way sees it: whose it is, and how long it may take."""

import math
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from looseleaf.server.errors import invalid
from looseleaf.server.keys import ANYBODY, Tenant


class End(NamedTuple):
    """`time` is on the event loop's clock, `seconds` what lies between it and the arrival."""

    time: float
    seconds: float


@dataclass(slots=True)
class Call:
    """It came at `arrival`, on the event loop's clock, and has `timeout` seconds; None is any.

    `told` gives what the log tells of its generation, once it has one; `trace_headers` say which
    trace it belongs to, where spans are sent."""

    tenant: Tenant = ANYBODY
    arrival: float = 0.0
    timeout: float | None = None
    trace_headers: Mapping[str, str] = field(default_factory=dict)
    told: Callable[[], dict[str, Any]] | None = None

    def limit(self, seconds: float | None, param: str) -> None:
        """Let it take no more than that, if it is not None. Raises ApiError for what is no time;
        `param` is where it was given."""
        if seconds is None:
            return
        if not 0 < seconds < math.inf:
            raise invalid(f"{param} must be a number of seconds above 0", param)
        self.timeout = seconds if self.timeout is None else min(seconds, self.timeout)

    def end(self, timeout: float | None = None) -> End | None:
        """When it ends at the latest, if it was also given `timeout` seconds."""
        self.limit(timeout, "timeout")
        if self.timeout is None:
            return None
        return End(self.arrival + self.timeout, self.timeout)


_current: ContextVar[Call] = ContextVar("call")


def begin(call: Call) -> None:
    """What this task, and those and the threads that it starts, work for from here on."""
    _current.set(call)


def current() -> Call:
    """That of the HTTP request that is being answered; outside of one, a call of nobody's."""
    return _current.get(None) or Call()
