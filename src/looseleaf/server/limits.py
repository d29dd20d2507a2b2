"""What a server takes from its clients, and whom it lets in from other sites' pages."""

import resource
from dataclasses import dataclass

from looseleaf.core.errors import ConfigError
from looseleaf.server.gate import DEFAULT_MAX_QUEUED_REQUESTS

DEFAULT_READ_TIMEOUT = 60.0
DEFAULT_HEADER_TIMEOUT = 20.0
DEFAULT_KEEP_ALIVE = 5
DEFAULT_HEADER_BYTES = 64 * 2**10
MAX_CONNECTIONS = 4096
"""By default, unless fewer files may be open."""
RESERVED_FILES = 128
"""Of those that may be open, so many are for other things than connections, ..."""
SPARE_CONNECTIONS = 32
"""... such as for telling so many clients that there are too many."""
QUEUED_POOLS = 4
"""By default the prompts that wait may have so many times the tokens that the pool holds, ..."""
LEAST_QUEUED_TOKENS = 65_536
"""... and in a small pool so many: they take next to no memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Times are in seconds. `max_queued_tokens` None is by the size of the pool;
    `request_timeout` None is none; `max_connections` None is by the files that may be open. With
    `isolate_cache`, each key has a prefix cache of its own. A request's head (its line and headers)
    must come within `header_timeout`, all of it within `read_timeout`; between two requests a
    connection is kept for `keep_alive`."""

    max_queued_requests: int = DEFAULT_MAX_QUEUED_REQUESTS
    max_queued_tokens: int | None = None
    read_timeout: float = DEFAULT_READ_TIMEOUT
    request_timeout: float | None = None
    isolate_cache: bool = False
    header_timeout: float = DEFAULT_HEADER_TIMEOUT
    max_header_bytes: int = DEFAULT_HEADER_BYTES
    keep_alive: int = DEFAULT_KEEP_ALIVE
    max_connections: int | None = None

    def connections(self) -> int:
        """The limit in force."""
        if self.max_connections is not None:
            return self.max_connections
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files == resource.RLIM_INFINITY:
            return MAX_CONNECTIONS
        return max(1, min(MAX_CONNECTIONS, files - RESERVED_FILES))

    def queued_tokens(self, pool_tokens: int) -> int:
        """The limit in force, for a pool of so many."""
        return self.max_queued_tokens or max(LEAST_QUEUED_TOKENS, QUEUED_POOLS * pool_tokens)

    def __post_init__(self) -> None:
        counts = ("max_queued_requests", "max_queued_tokens", "max_header_bytes", "max_connections")
        for name in counts:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}, but it must be at least 1")
        for name in ("read_timeout", "request_timeout", "header_timeout", "keep_alive"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e9:
                raise ConfigError(f"{name} is {value:g}, but it must be a time above 0 s")


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cors:
    """What pages of other origins may do; "*" is any."""

    origins: tuple[str, ...]
    methods: tuple[str, ...] = ("*",)
    headers: tuple[str, ...] = ("*",)
    credentials: bool = False

    def __post_init__(self) -> None:
        if self.credentials and "*" in self.origins:
            raise ConfigError(
                "credentials are for origins that are trusted, but every one (*) is allowed: name "
                "the origins, or leave out --allow-credentials"
            )
