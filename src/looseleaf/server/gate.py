"""Who may come in: a queue with an end, and what each tenant may take."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from looseleaf.engine.groups import Group
from looseleaf.server.call import Call
from looseleaf.server.errors import ApiError
from looseleaf.server.keys import Tenant

DEFAULT_MAX_QUEUED_REQUESTS = 1024
BYTES_PER_TOKEN = 4
"""Of a body that nobody has tokenized yet; a rule of thumb, for English."""
MAX_RETRY_SECONDS = 60
REMEMBERED_SECONDS = 30.0


class Gate:
    """Counts what waits for its first step. Belongs to the event loop's thread.

    Beyond `max_requests` or `max_tokens` of prompts (None is no limit) it refuses, first when a
    request comes, by the size of its body, and again when its tokens are known; never what it once
    let in. An empty queue takes anything. `clock` is in seconds.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        max_requests: int = DEFAULT_MAX_QUEUED_REQUESTS,
        max_tokens: int | None = None,
        max_model_len: int | None = None,
    ) -> None:
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self._clock = clock
        self._max_model_len = max_model_len
        self._waiting: dict[str, Group] = {}
        self._coming: dict[int, int] = {}
        """Calls that are being read and tokenized, and the tokens they are taken to have."""
        self._rate = _Rate(clock())
        self._tenants: dict[str, _Account] = {}

    def enter(self, call: Call, num_bytes: int) -> None:
        """A request has come. Raises ApiError 429; otherwise `leave` must follow."""
        account = self._account(call.tenant)
        account.check(call.tenant, self._clock())
        tokens = num_bytes // BYTES_PER_TOKEN
        if self._max_model_len is not None:
            tokens = min(tokens, self._max_model_len)
        self._check(1, tokens)
        account.enter(call.tenant, self._clock())
        self._coming[id(call)] = tokens

    def leave(self, call: Call) -> None:
        """It has been answered, or its client has gone."""
        self._coming.pop(id(call), None)
        self._account(call.tenant).num_open -= 1

    def stay(self, call: Call) -> None:
        """It goes on after it has been answered: `leave` must follow once more."""
        self._account(call.tenant).num_open += 1

    def admit(self, call: Call, prompts: list[list[int]]) -> None:
        """Its prompts are known, and about to be submitted. Raises ApiError 429."""
        self._coming.pop(id(call), None)
        self._check(len(prompts), sum(map(len, prompts)))

    def queued(self, group: Group) -> None:
        """It was submitted, and waits for its first step."""
        self._waiting[group.request_id] = group

    def gone(self, group: Group) -> None:
        """It waits no more, one way or another."""
        self._waiting.pop(group.request_id, None)

    def charge(self, tenant: Tenant, num_tokens: int) -> None:
        """So many tokens of prompts and answers were computed for a tenant."""
        self._account(tenant).charge(tenant, num_tokens, self._clock())

    def waiting(self) -> tuple[int, int]:
        """How many requests wait or are still being read, and the tokens of their prompts."""
        busy, passed = bool(self._waiting), 0
        for group in list(self._waiting.values()):
            if group.request.first_scheduled_time is not None:
                passed += group.num_prompt_tokens
                self.gone(group)
        self._rate.passed(passed, self._clock(), busy=busy)
        tokens = sum(group.num_prompt_tokens for group in self._waiting.values())
        return len(self._waiting) + len(self._coming), tokens + sum(self._coming.values())

    def _check(self, num_requests: int, num_tokens: int) -> None:
        requests, tokens = self.waiting()
        most = math.inf if self.max_tokens is None else self.max_tokens
        fits = requests + num_requests <= self.max_requests and tokens + num_tokens <= most
        if requests == 0 or fits:
            return
        seconds = self._rate.seconds_for(tokens / 2)
        of_tokens = "" if self.max_tokens is None else f" of {self.max_tokens}"
        raise too_many(
            f"the server is busy: {requests} of {self.max_requests} requests wait, with {tokens}"
            f"{of_tokens} prompt tokens; half of them will have been served in about {seconds} s",
            seconds,
        )

    def _account(self, tenant: Tenant) -> "_Account":
        return self._tenants.setdefault(tenant.label, _Account())


def too_many(message: str, seconds: int) -> ApiError:
    """429, to be tried again after so many seconds."""
    return ApiError(429, message, code="rate_limit_exceeded", headers={"retry-after": str(seconds)})


class _Rate:
    """Prompt tokens that leave the queue in a second while there is a queue."""

    def __init__(self, now: float) -> None:
        self._last = now
        self._seconds = 0.0
        self._tokens = 0.0

    def passed(self, num_tokens: int, now: float, *, busy: bool) -> None:
        if busy:
            self._seconds += now - self._last
            self._tokens += num_tokens
        self._last = now
        if self._seconds > REMEMBERED_SECONDS:
            self._seconds /= 2
            self._tokens /= 2

    def seconds_for(self, num_tokens: float) -> int:
        if self._tokens == 0:
            return max(1, min(MAX_RETRY_SECONDS, math.ceil(self._seconds)))
        return max(1, min(MAX_RETRY_SECONDS, math.ceil(num_tokens * self._seconds / self._tokens)))


@dataclass(slots=True)
class _Account:
    """What a tenant has under way, and took within the last minute."""

    num_open: int = 0
    requests: deque[float] = field(default_factory=deque)
    tokens: deque[tuple[float, int]] = field(default_factory=deque)
    num_tokens: int = 0

    def check(self, tenant: Tenant, now: float) -> None:
        """Raises ApiError 429 for what goes beyond its limits."""
        limits = tenant.limits
        most = limits.max_concurrent_requests
        if most is not None and self.num_open >= most:
            raise too_many(f"this API key has {most} requests under way, which is its limit", 1)
        self._forget(now)
        most = limits.requests_per_minute
        if most is not None and len(self.requests) >= most:
            left = math.ceil(self.requests[-most] + 60 - now)
            raise too_many(f"this API key may send {most} requests a minute", max(1, left))
        most = limits.tokens_per_minute
        if most is not None and self.num_tokens >= most:
            left = math.ceil(self.tokens[0][0] + 60 - now)
            raise too_many(
                f"this API key has used {self.num_tokens} tokens within a minute, and may use "
                f"{most}",
                max(1, left),
            )

    def enter(self, tenant: Tenant, now: float) -> None:
        self.num_open += 1
        if tenant.limits.requests_per_minute is not None:
            self.requests.append(now)

    def charge(self, tenant: Tenant, num_tokens: int, now: float) -> None:
        self._forget(now)
        if tenant.limits.tokens_per_minute is not None:
            self.tokens.append((now, num_tokens))
            self.num_tokens += num_tokens

    def _forget(self, now: float) -> None:
        while self.requests and self.requests[0] <= now - 60:
            self.requests.popleft()
        while self.tokens and self.tokens[0][0] <= now - 60:
            self.num_tokens -= self.tokens.popleft()[1]
