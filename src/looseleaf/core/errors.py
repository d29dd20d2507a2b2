"""The errors a user can cause. Their messages name the value, the limit and what to do."""


class LooseleafError(Exception):
    """Base of every error that is the caller's to mend; shown without a traceback."""


class ConfigError(LooseleafError, ValueError):
    """A setting that cannot work, whatever the requests."""


class CapacityError(LooseleafError, ValueError):
    """A request that can never fit, however long it waits."""
