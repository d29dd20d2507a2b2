"""Builders for tests of the bookkeeping core: a pool, a scheduler, an executor that checks."""

from looseleaf.core import invariants
from looseleaf.core.allocator import KVAllocator
from looseleaf.core.block_tables import BlockTables
from looseleaf.core.config import CacheConfig, SchedulerConfig
from looseleaf.core.events import EventLog
from looseleaf.core.hashing import BlockHasher, Hasher, sha256_hasher
from looseleaf.core.request import Request
from looseleaf.core.scheduler import Drafter, Scheduler
from looseleaf.core.step import Step, Update
from looseleaf.engine.contiguous import ContiguousTables
from looseleaf.executors.scripted import ScriptedExecutor, expected_token
from looseleaf.sampling.params import SamplingParams
from looseleaf.tiers.host import HostStore
from looseleaf.tiers.tiers import KVTiers

VOCAB_SIZE = 1 << 20


def make_tables(
    num_blocks: int,
    block_size: int = 4,
    *,
    prefix_caching: bool = True,
    hasher: Hasher = sha256_hasher,
    events: EventLog | None = None,
    tier: KVTiers | None = None,
    num_pinnable: int = 0,
) -> BlockTables:
    config = CacheConfig(num_blocks, block_size, prefix_caching, num_pinnable)
    return BlockTables(config, BlockHasher(block_size, b"secret", hasher), events, tier)


def make_request(
    request_id: str,
    prompt: list[int] | range | int,
    *,
    max_tokens: int | None = 4,
    n: int = 1,
    priority: int = 0,
    salt: str | None = None,
    stop_token_ids: frozenset[int] = frozenset(),
    prompt_logprobs: bool = False,
) -> Request:
    """A request; a number as its prompt means that many tokens of its own."""
    if isinstance(prompt, int):
        start = 500 * (1 + sum(request_id.encode()))
        prompt = range(start, start + prompt)
    params = SamplingParams(
        n=n, max_tokens=max_tokens, temperature=0, seed=1, prompt_logprobs=prompt_logprobs
    )
    extra = () if salt is None else (("cache_salt", salt),)

    def sample(index: int, children: tuple[Request, ...] = ()) -> Request:
        return Request(
            request_id if index == 0 else f"{request_id}/{index}",
            list(prompt),
            params,
            priority=priority,
            extra_keys=extra,
            stop_token_ids=stop_token_ids,
            sample_index=index,
            children=children,
            takes_drafts=not prompt_logprobs,
        )

    return sample(0, tuple(sample(i) for i in range(1, n)))


class Bench:
    """A scheduler with the scripted executor: steps are computed, checked and counted."""

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 4,
        *,
        max_model_len: int | None = None,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 64,
        long_prefill_token_threshold: int | None = None,
        admission_headroom: int = 0,
        policy: str = "fcfs",
        prefix_caching: bool = True,
        allocator: str = "paged",
        hasher: Hasher = sha256_hasher,
        tier_blocks: int | None = None,
        drafter: Drafter | None = None,
        num_pinnable: int = 0,
    ) -> None:
        self.events = EventLog()
        self.executor = ScriptedExecutor(num_blocks, block_size, vocab_size=VOCAB_SIZE)
        self.tiers: KVTiers | None = None
        if tier_blocks is not None:
            num_bytes = self.executor.block_bytes
            self.tiers = KVTiers(block_size, num_bytes, HostStore(tier_blocks * num_bytes))
        max_model_len = max_model_len or num_blocks * block_size
        tables: KVAllocator
        if allocator == "paged":
            tables = make_tables(
                num_blocks,
                block_size,
                prefix_caching=prefix_caching,
                hasher=hasher,
                events=self.events,
                tier=self.tiers,
                num_pinnable=num_pinnable,
            )
        else:
            tables = ContiguousTables(
                CacheConfig(num_blocks, block_size), allocator, max_model_len, self.events
            )
        self.tables = tables
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_model_len=max_model_len,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                long_prefill_token_threshold=long_prefill_token_threshold,
                admission_headroom=admission_headroom,
                policy=policy,
            ),
            tables,
            drafter,
        )
        self.steps: list[Step] = []
        self.updates: list[Update] = []
        self.outputs: dict[str, list[int]] = {}
        self.finish_reasons: dict[str, str] = {}
        self.now = 0.0

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add(request)
            for member in (request, *request.children):
                self.outputs[member.request_id] = []
        invariants.check(self.scheduler)

    def abort(self, request_id: str) -> bool:
        aborted = self.scheduler.abort(self.scheduler.requests[request_id].request_id)
        invariants.check(self.scheduler)
        return aborted

    def schedule(self) -> Step:
        """The next step, with blocks moved to the tier and from it."""
        step = self.scheduler.schedule(self.now)
        while self.tiers is not None and not self.tiers.move(step, self.executor):
            self.scheduler.discard()
            invariants.check(self.scheduler)
            step = self.scheduler.schedule(self.now)
        return step

    def step(self) -> Step:
        step = self.schedule()
        result = self.executor.execute(step)
        for update in self.scheduler.apply(result, self.now):
            self.updates.append(update)
            self.outputs[update.request_id].extend(update.token_ids)
            if update.finish_reason is not None:
                self.finish_reasons[update.request_id] = update.finish_reason
        self.steps.append(step)
        self.now += 1.0
        invariants.check(self.scheduler)
        return step

    def run(self, max_steps: int = 10_000) -> None:
        """Until nothing is left; fails if a step neither computes nor frees anything for long."""
        idle = 0
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return
            idle = 0 if self.step().sequences else idle + 1
            assert idle < 3, "there is work, and nothing is scheduled"
        raise AssertionError(f"still not finished after {max_steps} steps")

    def tokens_computed(self, request_id: str) -> int:
        return sum(
            len(sequence.token_ids)
            for step in self.steps
            for sequence in step.sequences
            if sequence.request_id == request_id
        )

    def num_in_use(self) -> int:
        return self.tables.num_blocks - self.tables.num_available


def expected_output(request: Request, num_tokens: int) -> list[int]:
    """What `request` must generate, whatever happened to it: a function of its tokens alone."""
    token_ids = request.token_ids[: request.num_prompt_tokens]
    for _ in range(num_tokens):
        token_ids.append(expected_token(token_ids, request.sample_index, vocab_size=VOCAB_SIZE))
    return token_ids[request.num_prompt_tokens :]
