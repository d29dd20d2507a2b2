"""Random programs of add / step / fork / abort / preempt / evict against a plain dict.

The model knows only which tokens each request must have. The executor raises if a sequence ever
reads KV that is not of its own tokens; the invariants are checked after every rule.
"""

import pytest
from bookkeeping import VOCAB_SIZE, Bench, make_request
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from looseleaf.core import invariants
from looseleaf.core.errors import CapacityError
from looseleaf.core.request import Request, Status
from looseleaf.engine.pins import Pins
from looseleaf.engine.snapshot import snapshot
from looseleaf.executors.scripted import chain_of, expected_token

# Few different tokens and few lengths, so that prefixes often meet, also inside blocks.
PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=14)


class Machine(RuleBasedStateMachine):
    live = Bundle("live")
    pinned = ()

    @initialize(
        num_blocks=st.integers(5, 24),
        block_size=st.sampled_from([1, 2, 4]),
        budget=st.sampled_from([1, 5, 16, 64]),
        threshold=st.sampled_from([None, 1, 3]),
        max_num_seqs=st.integers(1, 6),
        policy=st.sampled_from(["fcfs", "priority"]),
        prefix_caching=st.booleans(),
        allocator=st.sampled_from(["paged", "paged", "paged", "max", "pow2", "oracle"]),
        tier_blocks=st.sampled_from([None, 1, 6, 40]),
        drafts=st.booleans(),
        headroom=st.sampled_from([0, 0, 1, 7]),
    )
    def start(
        self,
        num_blocks,
        block_size,
        budget,
        threshold,
        max_num_seqs,
        policy,
        prefix_caching,
        allocator,
        tier_blocks,
        drafts,
        headroom,
    ) -> None:
        self.bench = Bench(
            num_blocks,
            block_size,
            max_model_len=min(num_blocks * block_size, 24),
            max_num_batched_tokens=budget,
            long_prefill_token_threshold=threshold,
            admission_headroom=headroom,
            max_num_seqs=max_num_seqs,
            policy=policy,
            prefix_caching=prefix_caching,
            allocator=allocator,
            tier_blocks=tier_blocks,
            drafter=self.guess if drafts else None,
            num_pinnable=num_blocks // 4,
        )
        self.pinned = []
        if hasattr(self.bench.tables, "pool"):
            self.pins = Pins(self.bench.tables)
        self.expected: dict[str, list[int]] = {}
        self.requests: dict[str, Request] = {}
        self.count = 0

    def guess(self, request: Request, room: int) -> list[int]:
        """Right for some tokens, then wrong; or right to the end."""
        tokens = list(request.token_ids)
        num_right = request.num_tokens * 7 % 4
        for _ in range(num_right):
            tokens.append(expected_token(tokens, request.sample_index, vocab_size=VOCAB_SIZE))
        wrong = [1] * (request.num_tokens % 3)
        return (tokens[request.num_tokens :] + wrong)[:room]

    def track(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.expected[request.request_id] = list(request.token_ids)
        self.bench.outputs.setdefault(request.request_id, [])

    @rule(
        target=live,
        prompt=PROMPTS,
        max_tokens=st.sampled_from([0, 1, 2, 5, 12, None]),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        priority=st.integers(0, 2),
        salt=st.sampled_from([None, None, None, "tenant"]),
    )
    def add(self, prompt, max_tokens, n, priority, salt):
        self.count += 1
        request = make_request(
            f"r{self.count}", prompt, max_tokens=max_tokens, n=n, priority=priority, salt=salt
        )
        before = snapshot(self.bench.scheduler)
        try:
            self.bench.add(request)
        except CapacityError:
            assert snapshot(self.bench.scheduler)[1:] == before[1:], "a refusal changes nothing"
            return multiple()
        for member in (request, *request.children):
            self.track(member)
        return multiple(*(m.request_id for m in (request, *request.children)))

    @rule(times=st.integers(1, 5))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.bench.step()

    @rule(target=live, parent=live, tail=st.lists(st.integers(0, 2), min_size=1, max_size=3))
    def fork(self, parent: str, tail: list[int]):
        request = self.requests[parent]
        if request.status is not Status.RUNNING or request.num_computed_tokens == 0:
            return multiple()
        self.count += 1
        tokens = request.token_ids[: request.num_computed_tokens] + tail
        child = make_request(f"f{self.count}", tokens, max_tokens=3, priority=request.priority)
        child.extra_keys = request.extra_keys
        try:
            self.bench.scheduler.fork(request.request_id, child)
        except CapacityError:
            return multiple()
        self.track(child)
        return child.request_id

    @rule(victim=consumes(live))
    def abort(self, victim: str) -> None:
        self.bench.scheduler.abort(self.requests[victim].request_id)

    @rule(victim=live)
    def abort_while_a_step_is_computed(self, victim: str) -> None:
        scheduler = self.bench.scheduler
        step = self.bench.schedule()
        result = self.bench.executor.execute(step)
        scheduler.abort(self.requests[victim].request_id)
        for update in scheduler.apply(result, self.bench.now):
            self.bench.outputs[update.request_id].extend(update.token_ids)

    @precondition(lambda self: self.bench.tiers is not None)
    @rule()
    def lose_what_is_to_be_loaded(self) -> None:
        scheduler, tiers = self.bench.scheduler, self.bench.tiers
        step = scheduler.schedule(self.bench.now)
        tiers.host.take_all()
        if not tiers.move(step, self.bench.executor):
            assert step.loads
            scheduler.discard()
            return
        for update in scheduler.apply(self.bench.executor.execute(step), self.bench.now):
            self.bench.outputs[update.request_id].extend(update.token_ids)

    @precondition(
        lambda self: hasattr(self.bench.tables, "pool") and self.bench.tables.prefix_caching
    )
    @rule(of=live, length=st.integers(1, 14))
    def pin(self, of: str, length: int) -> None:
        tokens = self.requests[of].token_ids[:length]
        try:
            made = self.pins.add(tokens, 0.0, extra_keys=self.requests[of].extra_keys)
        except CapacityError:
            return
        self.pinned.append((made, tokens))

    @precondition(lambda self: self.pinned)
    @rule(choice=st.integers(0, 100))
    def unpin(self, choice: int) -> None:
        made, _ = self.pinned.pop(choice % len(self.pinned))
        assert self.pins.remove(made.pin_id)

    @invariant()
    def pinned_blocks_hold_their_tokens(self) -> None:
        size = self.bench.tables.block_size if self.pinned else 1
        for made, tokens in self.pinned:
            for i in range(len(tokens)):
                block = self.bench.executor._blocks[made.block_ids[i // size]]
                assert block[i % size + 1] == chain_of(tokens[: i + 1])

    @rule(victim=live)
    def preempt(self, victim: str) -> None:
        request = self.requests[victim]
        if request.status is Status.RUNNING:
            self.bench.scheduler._preempt(request)

    @precondition(lambda self: hasattr(self.bench.tables, "pool"))
    @rule()
    def evict_everything(self) -> None:
        self.bench.tables.pool.forget_all()

    @rule()
    def finish_all(self) -> None:
        self.bench.run()
        assert self.bench.num_in_use() == len(self.bench.tables.pinned)
        for request_id, request in self.requests.items():
            assert request.status is Status.FINISHED
            if request.finish_reason == "length":
                assert request.num_tokens == request.max_total_tokens, request_id

    @invariant()
    def consistent(self) -> None:
        if hasattr(self, "bench"):
            invariants.check(self.bench.scheduler)

    @invariant()
    def tokens_depend_on_the_request_alone(self) -> None:
        for request_id, request in getattr(self, "requests", {}).items():
            expected = self.expected[request_id]
            assert (
                request.token_ids[: request.num_prompt_tokens]
                == expected[: request.num_prompt_tokens]
            )
            while len(expected) < request.num_tokens:
                expected.append(
                    expected_token(expected, request.sample_index, vocab_size=VOCAB_SIZE)
                )
            assert request.token_ids == expected[: request.num_tokens]
            assert self.bench.outputs[request_id] == request.output_token_ids

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.finish_all()


TestMachine = pytest.mark.timeout(600)(Machine.TestCase)
TestMachine.settings = settings(stateful_step_count=40)
