"""Errors a user can cause, whose messages name the value, the limit and what to do; and ours."""


class LooseleafError(Exception):
    """Base of every error that is the caller's to mend; shown without a traceback."""


class ConfigError(LooseleafError, ValueError):
    """A setting that cannot work, whatever the requests."""


class CapacityError(LooseleafError, ValueError):
    """A request that can never fit, however long it waits."""


class InvariantError(AssertionError):
    """The bookkeeping contradicts itself: a bug in Looseleaf."""


def ensure(holds: bool, message: str) -> None:
    """Raise InvariantError unless it holds."""
    if not holds:
        raise InvariantError(message)
