"""The engine behind an event loop: one owner thread computes, any number of tasks wait.

Commands reach the owner through a queue and run between steps; updates come back in one hand-over
per step. Everything about text stays on the event loop's side.
"""

import asyncio
import itertools
import logging
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from looseleaf.core.errors import LooseleafError
from looseleaf.core.hashing import ExtraKeys
from looseleaf.core.request import FinishReason, RequestId
from looseleaf.core.step import Update
from looseleaf.engine.beams import BeamSearch, BeamSearchParams
from looseleaf.engine.engine import Engine
from looseleaf.engine.fairness import FairShares
from looseleaf.engine.groups import Delta, Group, Router
from looseleaf.engine.mailbox import Mailbox
from looseleaf.engine.meter import Meter
from looseleaf.engine.pins import EVERYBODY, Holder, Pin, pins_of
from looseleaf.engine.searches import Searches
from looseleaf.sampling.params import SamplingParams
from looseleaf.text.tokenizer import Tokenizer

T = TypeVar("T")

IDLE_SECONDS = 5.0
"""Without work, until memory above the floor goes back to the system."""

logger = logging.getLogger(__name__)


class EngineDeadError(LooseleafError):
    """The engine has failed or was stopped, so that this request cannot be answered."""


class Load(NamedTuple):
    """Requests that run and that wait, and the share of the pool's blocks that is in use."""

    num_running: int
    num_waiting: int
    kv_usage: float


class _Command:
    """Something for the owner thread to do between two steps; `future` is for who waits for it."""

    def __init__(self, function: Callable[[Engine], Any], future: Future[Any] | None) -> None:
        self._function = function
        self._future = future

    def run(self, engine: Engine) -> None:
        """An error is the waiter's, if there is one; otherwise it is the engine's."""
        if self._future is None:
            self._function(engine)
        elif self._future.set_running_or_notify_cancel():
            try:
                self._future.set_result(self._function(engine))
            except Exception as error:
                self._future.set_exception(error)

    def refuse(self, error: Exception) -> None:
        if self._future is not None and self._future.set_running_or_notify_cancel():
            self._future.set_exception(error)


class EngineService:
    """Owns an engine from `start` to `stop`; all methods belong to the event loop's thread.

    `failure` is what the engine died of, if it did: then everyone who waits gets an
    EngineDeadError, and so does whoever comes later.
    """

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, *, kv_sample: float | None = None
    ) -> None:
        """`kv_sample` is `Meter`'s."""
        self.tokenizer = tokenizer
        self.meter = Meter(engine, kv_sample)
        self.clock = engine.clock
        self.failure: BaseException | None = None
        self._engine = engine
        self._commands: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._router = Router()
        fair = engine.scheduler.config.policy == "fair"
        self._shares = FairShares() if fair else None
        self.watchers: list[Callable[[Engine], None]] = []
        """Called in the owner's thread between steps, whenever something may have changed. They
        must not raise."""
        # From here on the owner thread's.
        self._searches = Searches()
        self._last_step = 0.0
        self._gives_back = False
        self._streams: dict[str, Mailbox[Delta | Exception]] = {}
        self._ids = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owner = threading.Thread(target=self._own, name="looseleaf-engine", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._owner.start()

    async def stop(self) -> None:
        """End what still runs and tell who waits for it; then the owner thread and the executor."""
        for group in self._router.groups():
            self._abort_samples(group)
        self._commands.put(None)
        await asyncio.to_thread(self._owner.join)
        await asyncio.to_thread(self._engine.close)

    def submit(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        extra_keys: ExtraKeys = (),
        continues_text: bool = False,
        beams: BeamSearchParams | None = None,
        tenant: str = "",
        weight: float = 1.0,
    ) -> Group:
        """Queue a request. Raises CapacityError at once if it can never fit, and EngineDeadError.

        The answer comes from `stream`, which must be called, or the group `abort`ed. With `beams`
        its samples, as many as `params.n`, are the best answers of a search. Where the policy is
        fair, `tenant` and its `weight` take the place of `priority`.
        """
        if self._closed or self.failure is not None:
            raise self._dead()
        group = Group(
            f"req-{next(self._ids)}",
            prompt_token_ids,
            params,
            self.tokenizer,
            arrival_time=self.clock(),
            priority=priority,
            extra_keys=extra_keys,
            continues_text=continues_text,
        )
        self._engine.scheduler.set_limits(group.request)
        if self._shares is not None:
            place = self._shares.enter(
                group.request_id, tenant, weight, group.num_prompt_tokens, params.n
            )
            for member in group.members:
                member.priority = place
        search = None if beams is None else self._search(group, beams)
        deltas = Mailbox[Delta | Exception]()
        self._streams[group.request_id] = deltas
        self._router.add(group, deltas.put)
        if search is None:
            self._command(lambda engine: engine.add(group.request))
        else:
            started = search
            self._command(lambda _: self._searches.start(group, started))
        return group

    def _search(self, group: Group, params: BeamSearchParams) -> BeamSearch:
        """Raises CapacityError for one that can never run."""
        search = BeamSearch(
            self._engine,
            group.request_id,
            group.prompt_token_ids,
            params,
            params.end_token_ids(self.tokenizer.eos_token_ids),
            self.tokenizer,
            priority=group.request.priority,
            extra_keys=group.request.extra_keys,
        )
        search.check()
        return search

    async def stream(self, group: Group) -> AsyncGenerator[Delta, None]:
        """The group's news until all its samples are finished; leaving early aborts it.

        What has come since the last was taken is one piece per sample: a reader that is slower than
        the engine gets fewer and longer ones.
        """
        deltas = self._streams[group.request_id]
        try:
            while not group.finished or deltas:
                pieces: dict[int, list[Delta]] = {}
                failure = None
                for news in await deltas.take():
                    if isinstance(news, Exception):
                        failure = news
                        break
                    pieces.setdefault(news.index, []).append(news)
                for same in pieces.values():
                    yield Delta.joined(same)
                if failure is not None:
                    raise failure
        finally:
            self.abort(group)

    def abort(self, group: Group) -> None:
        """Forget the group, and end what of it still runs."""
        self._abort_samples(group)
        if self._shares is not None:
            computed = group.num_prompt_tokens - group.num_cached_tokens
            started = group.request.first_scheduled_time is not None or group.num_output_tokens
            self._shares.leave(
                group.request_id, computed if started else 0, group.num_output_tokens
            )
        self._router.remove(group)
        self._streams.pop(group.request_id, None)

    def fail(self, group: Group, error: Exception) -> None:
        """End what of the group still runs; its stream raises `error` after what it has by now."""
        self._abort_samples(group)
        deltas = self._streams.get(group.request_id)
        if deltas is not None:
            deltas.put(error)

    def cancel(self, group: Group) -> None:
        """End the group early, for somebody other than who reads its stream: the stream tells."""
        deltas = self._streams.get(group.request_id)
        if deltas is not None:
            self._abort_samples(group)
            for delta in group.cancel():
                deltas.put(delta)

    def load(self) -> Load:
        """At once, and not between two steps: each number for itself is right, or was just now."""
        scheduler = self._engine.scheduler
        allocator = scheduler.allocator
        running = len(scheduler.running)
        return Load(
            running,
            max(0, len(scheduler.requests) - running),
            1 - allocator.num_available / allocator.num_blocks,
        )

    async def pin(
        self,
        prompt_token_ids: list[int],
        *,
        ttl: float | None,
        extra_keys: ExtraKeys = (),
        holder: Holder = EVERYBODY,
    ) -> Pin:
        """Compute a prefix, and hold its blocks. Raises what `Pins.add` does."""
        length = len(prompt_token_ids)
        await self.call(lambda engine: pins_of(engine).check(length, ttl, holder))
        params = SamplingParams(max_tokens=0)
        group = self.submit(prompt_token_ids, params, extra_keys=extra_keys)
        async for _ in self.stream(group):
            pass

        def add(engine: Engine) -> Pin:
            pins = pins_of(engine)
            return pins.add(
                prompt_token_ids, engine.clock(), ttl=ttl, extra_keys=extra_keys, holder=holder
            )

        return await self.call(add)

    async def call(self, function: Callable[[Engine], T]) -> T:
        """Run `function` in the owner thread between two steps and return what it returns."""
        future: Future[T] = Future()
        self._command(function, future)
        return await asyncio.wrap_future(future)

    def _command(
        self, function: Callable[[Engine], Any], future: Future[Any] | None = None
    ) -> None:
        command = _Command(function, future)
        with self._closing:
            if not self._closed:
                self._commands.put(command)
                return
        command.refuse(self._dead())

    def _dead(self) -> EngineDeadError:
        if self.failure is None:
            return EngineDeadError("the engine has been stopped")
        return EngineDeadError(f"the engine has failed: {self.failure!r}; restart the server")

    def _abort_samples(self, group: Group) -> None:
        if not group.finished:
            self._command(lambda _: self._searches.cancel(group))
        for request_id in group.unfinished_ids():
            self._end_sample(request_id, FinishReason.ABORT)

    def _end_sample(self, request_id: RequestId, reason: FinishReason) -> None:
        self._command(lambda engine: engine.abort(request_id, reason))

    def _deliver(self, updates: list[Update]) -> None:
        for request_id, reason in self._router.route(updates):
            self._end_sample(request_id, reason)

    def _end_streams(self) -> None:
        for deltas in self._streams.values():
            deltas.put(self._dead())

    def _next_command(self) -> _Command | None:
        """Waits for it. Where the last step was long ago, memory goes back to the system."""
        while self._gives_back and not self._engine.has_work:
            left = self._last_step + IDLE_SECONDS - time.monotonic()
            try:
                return self._commands.get(timeout=max(0.0, left))
            except queue.Empty:
                self._gives_back = self._engine.trim()
                self._watch()
        return self._commands.get()

    def _watch(self) -> None:
        for watch in self.watchers:
            watch(self._engine)

    def _own(self) -> None:
        """The owner thread: commands, a step, one hand-over, again."""
        assert self._loop is not None
        try:
            while True:
                self._watch()
                while not self._engine.has_work or not self._commands.empty():
                    command = self._next_command()
                    if command is None:
                        return
                    command.run(self._engine)
                    self._watch()
                updates = self._engine.step()
                self._last_step = time.monotonic()
                self._gives_back = self._engine.floor_blocks is not None
                updates += self._searches.go_on(updates)
                if updates:
                    self._loop.call_soon_threadsafe(self._deliver, updates)
        except BaseException as error:
            logger.exception("the engine failed")
            self.failure = error
        finally:
            with self._closing:
                self._closed = True
                while not self._commands.empty():
                    left = self._commands.get()
                    if left is not None:
                        left.refuse(self._dead())
            # Whoever submits from now on is refused, so nobody is missed.
            self._loop.call_soon_threadsafe(self._end_streams)
