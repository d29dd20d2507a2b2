"""An engine to look at where there is no model: the real bookkeeping, and made-up chats.

Nothing is computed: the scripted executor makes up tokens, and steps take the time that a small
model on a few cores would. Who comes when, with what prompt, follows from the seed alone.
"""

import asyncio
import random
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from looseleaf.core.block_tables import BlockTables
from looseleaf.core.config import CacheConfig, SchedulerConfig
from looseleaf.core.hashing import BlockHasher
from looseleaf.core.request import Request, RequestId
from looseleaf.core.scheduler import Scheduler
from looseleaf.core.step import Step, StepResult
from looseleaf.engine.engine import Engine
from looseleaf.executors.scripted import ScriptedExecutor
from looseleaf.sampling.params import SamplingParams

T = TypeVar("T")

VOCAB_SIZE = 1 << 15

STEP_SECONDS = 0.04
TOKEN_SECONDS = 0.0006
"""A step takes the first, and the second for each token."""

MAX_TURNS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """`chats_per_second` come on average, begin with one of `num_systems` system prompts of up to
    `system_tokens`, and go on for a few turns. `max_waiting` of them wait at most."""

    num_blocks: int = 640
    block_size: int = 16
    max_num_seqs: int = 48
    max_num_batched_tokens: int = 256
    chats_per_second: float = 2.5
    num_systems: int = 4
    system_tokens: int = 160
    question_tokens: int = 60
    answer_tokens: int = 320
    max_waiting: int = 24
    abort_share: float = 0.08
    samples_share: float = 0.15
    """Of the chats that ask for four samples."""


class _Paced(ScriptedExecutor):
    """Says that a step took as long as a model would; `seconds` is how long the last one did."""

    seconds = 0.0

    def execute(self, step: Step) -> StepResult:
        result = super().execute(step)
        self.seconds = STEP_SECONDS + TOKEN_SECONDS * step.num_tokens
        return result._replace(durations=(("forward", self.seconds),))


class Showcase:
    """`run` makes traffic until it is cancelled; `call` is for the hub that shows it."""

    def __init__(self, traffic: Traffic, seed: int = 0) -> None:
        self._traffic = traffic
        self._random = random.Random(seed)
        cache = CacheConfig(traffic.num_blocks, traffic.block_size)
        tables = BlockTables(cache, BlockHasher(traffic.block_size, secrets.token_bytes(32)))
        longest = traffic.system_tokens + MAX_TURNS * (
            traffic.question_tokens + traffic.answer_tokens
        )
        max_model_len = min(longest, traffic.num_blocks * traffic.block_size)
        config = SchedulerConfig(
            max_model_len, traffic.max_num_seqs, traffic.max_num_batched_tokens
        )
        executor = _Paced(
            traffic.num_blocks,
            traffic.block_size,
            vocab_size=VOCAB_SIZE,
            eos_token_id=0,
            mean_output_tokens=traffic.answer_tokens,
        )
        self._executor = executor
        self.engine = Engine(Scheduler(config, tables), executor)
        self._systems = [
            self._tokens(self._random.randint(traffic.system_tokens // 3, traffic.system_tokens))
            for _ in range(traffic.num_systems)
        ]
        self._ongoing: deque[list[int]] = deque(maxlen=64)
        """Chats whose next question may come."""
        self._live: dict[RequestId, Request] = {}
        self._max_model_len = max_model_len
        self._num_chats = 0
        self._next_arrival = self.engine.clock()

    async def call(self, function: Callable[[Engine], T], /) -> T:
        return function(self.engine)

    async def run(self) -> None:
        while True:
            self.arrive()
            if not self.engine.has_work:
                await asyncio.sleep(0.01)
                continue
            start = self.engine.clock()
            self.step()
            due = start + self._executor.seconds
            await asyncio.sleep(max(0.0, due - self.engine.clock()))

    def arrive(self) -> None:
        """Whoever is to have come by now."""
        now = self.engine.clock()
        while self._next_arrival <= now:
            self._next_arrival += self._random.expovariate(self._traffic.chats_per_second)
            if len(self.engine.scheduler.waiting) < self._traffic.max_waiting:
                self.add()

    def add(self) -> None:
        """One more chat, or the next turn of one."""
        traffic, rng = self._traffic, self._random
        prompt: list[int] = []
        if self._ongoing and rng.random() < 0.5:
            prompt = self._ongoing.popleft()
        if not prompt:
            prompt = list(rng.choice(self._systems))
        prompt = [*prompt, *self._tokens(rng.randint(4, traffic.question_tokens))]
        room = self._max_model_len - len(prompt)
        if room < 8:
            return
        self._num_chats += 1
        num_samples = 4 if rng.random() < traffic.samples_share else 1
        params = SamplingParams(
            n=num_samples, max_tokens=min(room, rng.randint(8, traffic.answer_tokens)), seed=0
        )
        name = f"chat-{self._num_chats}"
        samples = [
            Request(
                RequestId(name if i == 0 else f"{name}/{i}"),
                prompt,
                params,
                arrival_time=self.engine.clock(),
                sample_index=i,
                stop_token_ids=frozenset({0}),
            )
            for i in range(num_samples)
        ]
        first, *others = samples
        first.children = tuple(others)
        self.engine.add(first)
        self._live.update((sample.request_id, sample) for sample in samples)

    def step(self) -> None:
        """One step; then somebody may have gone, and chats that were answered may go on."""
        ended = [u.request_id for u in self.engine.step() if u.finish_reason is not None]
        for request_id in ended:
            request = self._live.pop(request_id, None)
            if request is not None and request.sample_index == 0 and self._random.random() < 0.7:
                self._ongoing.append(request.token_ids)
        share = self._traffic.abort_share / self._traffic.answer_tokens
        if self._live and self._random.random() < share * len(self._live):
            request_id = self._random.choice(list(self._live))
            self.engine.abort(request_id)
            self._live = {
                name: request
                for name, request in self._live.items()
                if name in self.engine.scheduler.requests
            }

    def _tokens(self, number: int) -> list[int]:
        return [self._random.randrange(1, VOCAB_SIZE) for _ in range(number)]
