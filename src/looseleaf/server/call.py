"""One HTTP request as everything on its way sees it: whose it is, and how long it may take."""

from contextvars import ContextVar
from dataclasses import dataclass

from looseleaf.server.keys import ANYBODY, Tenant


@dataclass(slots=True)
class Call:
    """`deadline` is on the event loop's clock; None is none."""

    tenant: Tenant = ANYBODY
    deadline: float | None = None


_current: ContextVar[Call] = ContextVar("call")


def begin(call: Call) -> None:
    """What this task, and those and the threads that it starts, work for from here on."""
    _current.set(call)


def current() -> Call:
    """That of the HTTP request that is being answered; outside of one, a call of nobody's."""
    return _current.get(None) or Call()
