"""Where lessons are played: the engine's own loop over an executor that makes up tokens and checks
every read; and pictures of what is held."""

from collections.abc import Iterable, Sequence

from looseleaf.core.allocator import KVAllocator
from looseleaf.core.block_tables import BlockTables
from looseleaf.core.config import CacheConfig, SchedulerConfig
from looseleaf.core.free_queue import BlockId
from looseleaf.core.hashing import BlockHasher
from looseleaf.core.request import Request, RequestId, Status
from looseleaf.core.scheduler import Scheduler
from looseleaf.core.step import BlockCopy, Step, StepResult, Update
from looseleaf.engine.contiguous import ContiguousTables
from looseleaf.engine.engine import Engine
from looseleaf.engine.usage import Usage, usage
from looseleaf.executors.scripted import ScriptedExecutor
from looseleaf.sampling.params import SamplingParams
from looseleaf.studio.lessons.scene import Block, Figures, Holder, Lane, Pool

VOCAB_SIZE = 1 << 20
SECRET = b"lesson"
PAGED = "paged"


class Stage:
    """An engine whose requests are known by name. `rule` is `paged` or one of `contiguous.RULES`.

    `lanes` grow by a cell with each step.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        max_num_seqs: int = 16,
        max_model_len: int | None = None,
        rule: str = PAGED,
    ) -> None:
        cache = CacheConfig(num_blocks, block_size)
        length = max_model_len or num_blocks * block_size
        self.allocator: KVAllocator
        if rule == PAGED:
            self.allocator = BlockTables(cache, BlockHasher(block_size, SECRET))
        else:
            self.allocator = ContiguousTables(cache, rule, length)
        config = SchedulerConfig(length, max_num_seqs, max_num_batched_tokens=256)
        self.scheduler = Scheduler(config, self.allocator)
        executor = ScriptedExecutor(num_blocks, block_size, vocab_size=VOCAB_SIZE)
        self.engine = Engine(self.scheduler, executor, lambda: float(self.num_steps))
        self.engine.observers.append(self._observe)
        self.requests: dict[str, Request] = {}
        self.num_steps = 0
        self.last: Step | None = None
        self._cells: dict[str, list[str]] = {}
        self._reached: dict[str, int] = {}
        """How many tokens of each were stored at some time."""

    def add(self, name: str, prompt: int | Sequence[int], max_tokens: int, n: int = 1) -> None:
        """A number as the prompt means so many tokens that nobody else has. Of several samples the
        first is `name`, the others are `name` with their numbers."""
        if isinstance(prompt, int):
            start = 1000 * (1 + len(self.requests))
            prompt = range(start, start + prompt)
        params = SamplingParams(n=n, max_tokens=max_tokens, seed=0)
        names = [name if n == 1 else f"{name}{i + 1}" for i in range(n)]
        samples = [
            Request(RequestId(sample), prompt, params, sample_index=i)
            for i, sample in enumerate(names)
        ]
        samples[0].children = tuple(samples[1:])
        for sample in samples:
            self.requests[sample.request_id] = sample
            self._cells[sample.request_id] = [""] * self.num_steps
        self.engine.add(samples[0])

    def step(self) -> list[Update]:
        before = {name: r.num_preemptions for name, r in self.requests.items()}
        updates = self.engine.step()
        self.num_steps += 1
        for name, request in self.requests.items():
            cell = self._computed(request)
            if not cell and request.status in (Status.WAITING, Status.HELD):
                cell = "w" if request.num_preemptions == before[name] else "x"
            self._cells[name].append(cell)
        return updates

    def run(self) -> None:
        while self.engine.has_work:
            self.step()

    def running(self) -> list[Request]:
        return list(self.scheduler.running)

    def usage(self) -> Usage:
        return usage(self.allocator, self.scheduler.running)

    def pool(self, *, kinds: bool = False) -> Pool:
        copies = () if self.last is None else self.last.copies
        return pool_of(self.allocator, self.scheduler.running, copies, kinds=kinds)

    def lanes(self) -> tuple[Lane, ...]:
        return tuple(Lane(name, tuple(cells)) for name, cells in self._cells.items())

    def _observe(self, step: Step, result: StepResult) -> None:
        self.last = step

    def _computed(self, request: Request) -> str:
        """What the last step computed of it."""
        assert self.last is not None
        name = request.request_id
        for sequence in self.last.sequences:
            if sequence.request_id == name:
                first, count = sequence.first_position, len(sequence.token_ids)
                again = first < self._reached.get(name, 0)
                self._reached[name] = max(self._reached.get(name, 0), first + count)
                if again:
                    return f"r{count}"
                return "d" if first >= request.num_prompt_tokens else f"p{count}"
        return ""


def pool_of(
    allocator: KVAllocator,
    requests: Iterable[Request],
    copies: Sequence[BlockCopy] = (),
    *,
    mark: tuple[int, int] | None = None,
    kinds: bool = False,
) -> Pool:
    """The pool as it is now; `requests` are those that hold blocks. Slots are counted as
    `engine.usage` does."""
    size = allocator.block_size
    stored_in: dict[int, int] = {}
    ever_in: dict[int, int] = {}
    lost: list[int] = []
    sequences = []
    for request in requests:
        table = allocator.table(request.request_id)
        stored = min(request.num_computed_tokens, len(table) * size)
        last = max(stored, request.max_total_tokens - 1)
        for i, block_id in enumerate(table):
            for filled, end in ((stored_in, stored), (ever_in, last)):
                here = min(size, max(0, end - i * size))
                filled[block_id] = max(filled.get(block_id, 0), here)
        if isinstance(allocator, ContiguousTables) and table:
            region = allocator.region_blocks(request.request_id)
            lost += range(table[0] + len(table), table[0] + region)
        sequences.append(Holder(request.request_id, stored, table))
    blocks = []
    for block_id in map(BlockId, range(allocator.num_blocks)):
        if block_id in stored_in:
            refs = 1
            if isinstance(allocator, BlockTables):
                refs = allocator.pool.ref_count(block_id)
            blocks.append(Block(block_id, refs, stored_in[block_id], ever_in[block_id]))
        elif block_id in lost:
            blocks.append(Block(block_id, 0, 0, 0))
        elif (key := allocator.key_of(block_id)) is not None:
            num_tokens = len(key.token_ids)
            blocks.append(Block(block_id, 0, num_tokens, num_tokens))
    return Pool(
        size,
        allocator.num_blocks,
        tuple(blocks),
        tuple(sequences),
        tuple((copy.source, copy.destination) for copy in copies),
        mark,
        kinds,
    )


def slots(now: Usage) -> Figures:
    """Where the slots are, as figures."""
    return {
        "stored": now.stored,
        "reserved": now.reserved,
        "internal": now.internal,
        "external": now.external,
        "allocated": now.allocated,
        "total": now.total,
        "waste": now.waste,
        "physical": now.physical,
        "blocks": now.blocks_allocated,
        "saved": now.blocks_saved,
    }
