"""What the steps of an engine tell: why prompts were not found, how long blocks stay."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from bookkeeping import VOCAB_SIZE, make_tables

from looseleaf.core.config import SchedulerConfig
from looseleaf.core.request import RequestId
from looseleaf.core.scheduler import Scheduler
from looseleaf.engine import misses
from looseleaf.engine.distribution import Distribution
from looseleaf.engine.engine import Engine
from looseleaf.engine.meter import Meter, Return
from looseleaf.engine.misses import MissReason, ObservedRequest, PrefixMiss
from looseleaf.executors.scripted import ScriptedExecutor
from looseleaf.sampling.params import SamplingParams
from looseleaf.tiers.host import HostStore
from looseleaf.tiers.tiers import KVTiers


class Metered:
    """An engine on a clock that moves a second a step, with a meter."""

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 4,
        *,
        kv_sample: float | None = None,
        tier_blocks: int | None = None,
        prefix_caching: bool = True,
    ) -> None:
        executor = ScriptedExecutor(num_blocks, block_size, vocab_size=VOCAB_SIZE)
        tiers = None
        if tier_blocks is not None:
            host = HostStore(tier_blocks * executor.block_bytes)
            tiers = KVTiers(block_size, executor.block_bytes, host, always_load=True)
        self.tables = make_tables(num_blocks, block_size, prefix_caching=prefix_caching, tier=tiers)
        config = SchedulerConfig(num_blocks * block_size, 16, 64)
        self.now = 0.0
        self.engine = Engine(
            Scheduler(config, self.tables), executor, clock=lambda: self.now, tiers=tiers
        )
        self.meter = Meter(self.engine, kv_sample)
        self._ids = itertools.count()

    def add(
        self,
        prompt: Sequence[int],
        *,
        salt: str | None = None,
        max_tokens: int = 2,
        n: int = 1,
        prompt_logprobs: bool = False,
    ) -> ObservedRequest:
        params = SamplingParams(
            n=n, max_tokens=max_tokens, temperature=0, seed=1, prompt_logprobs=prompt_logprobs
        )
        extra = () if salt is None else (("cache_salt", salt),)
        name = f"r{next(self._ids)}"

        def sample(index: int, children: tuple[Any, ...] = ()) -> ObservedRequest:
            return ObservedRequest(
                RequestId(f"{name}/{index}"),
                list(prompt),
                params,
                extra_keys=extra,
                sample_index=index,
                children=children,
            )

        request = sample(0, tuple(sample(i) for i in range(1, n)))
        self.engine.add(request)
        return request

    def run(self) -> None:
        while self.engine.has_work:
            self.engine.step()
            self.now += 1

    def miss(self, prompt: Sequence[int], **how: Any) -> PrefixMiss | None:
        request = self.add(prompt, **how)
        self.run()
        return request.prefix_miss


def test_a_prompt_is_first_seen_and_then_found() -> None:
    metered = Metered()
    assert metered.miss(range(20)) == (MissReason.FIRST_SEEN, 0, 19)
    assert metered.miss(range(20)) is None
    assert metered.meter.misses.cacheable_tokens == 38


def test_a_prompt_shorter_than_a_block_is_found_too() -> None:
    metered = Metered(block_size=16)
    assert metered.miss([7, 8, 9]) == (MissReason.FIRST_SEEN, 0, 2)
    assert metered.miss([7, 8, 9]) is None
    assert metered.miss([7]) == (MissReason.TOO_SHORT, 0, 0)


def test_a_prompt_that_goes_on_where_what_is_stored_ends() -> None:
    metered = Metered()
    metered.miss(range(8), max_tokens=1)
    assert metered.miss(range(20)) == (MissReason.FIRST_SEEN, 8, 11)


@pytest.mark.parametrize("position", [1, 3, 4, 6, 8, 11])
def test_where_a_prompt_diverged(position: int) -> None:
    metered = Metered()
    metered.miss(range(20))
    other = [*range(position), *range(500, 520 - position)]
    assert metered.miss(other) == (MissReason.DIVERGED, position, 19 - position)


def test_many_others_went_on_differently() -> None:
    metered = Metered(num_blocks=128)
    for i in range(10):
        metered.miss([*range(8), 100 + i, 200 + i])
    assert metered.miss([*range(8), 300, 301]) == (MissReason.DIVERGED, 8, 1)


def test_what_was_evicted_is_known_as_such() -> None:
    metered = Metered(num_blocks=8)
    metered.miss(range(20))
    metered.miss(range(100, 130))
    miss = metered.miss(range(20))
    assert miss is not None
    assert miss.reason is MissReason.EVICTED
    assert metered.meter.num_evicted > 0
    # One shorter than a block, which goes with the others.
    metered.miss([1, 2, 3])
    metered.miss(range(200, 231))
    assert metered.miss([1, 2, 3]) == (MissReason.EVICTED, 0, 2)


def test_what_is_remembered_of_the_evicted_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(misses, "LEAST_REMEMBERED", 8)
    metered = Metered(num_blocks=8)
    metered.miss(range(20))
    for start in range(100, 2100, 100):
        metered.miss(range(start, start + 24))
    memory = metered.meter.misses._stored
    assert len(memory._newer) + len(memory._older) <= 16
    assert metered.miss(range(20)) == (MissReason.FIRST_SEEN, 0, 19)


def test_what_a_salt_keeps_apart() -> None:
    metered = Metered()
    metered.miss(range(20))
    assert metered.miss(range(20), salt="a") == (MissReason.SALTED, 0, 19)
    assert metered.miss(range(20), salt="a") is None
    # What others sent with a salt is nobody's business.
    metered.miss(range(600, 620), salt="b")
    assert metered.miss(range(600, 620), salt="c") == (MissReason.FIRST_SEEN, 0, 19)
    assert metered.miss(range(600, 620)) == (MissReason.FIRST_SEEN, 0, 19)
    # A few tokens in common are no reason: most prompts begin the same way.
    assert metered.miss([0, *range(700, 720)], salt="d") == (MissReason.FIRST_SEEN, 0, 20)


def test_log_probabilities_and_no_cache() -> None:
    metered = Metered()
    metered.miss(range(20))
    assert metered.miss(range(20), prompt_logprobs=True) == (MissReason.LOGPROBS, 0, 19)
    metered = Metered(prefix_caching=False)
    for _ in range(2):
        assert metered.miss(range(20)) == (MissReason.DISABLED, 0, 19)


def test_hits_and_missed_tokens_are_all_that_there_are() -> None:
    metered = Metered(num_blocks=16)
    for i in range(40):
        metered.add([*range(10 * (i % 3)), *range(100 * i, 100 * i + 9)], n=1 + i % 3)
        if i % 4 == 0:
            metered.run()
    metered.run()
    counters, found = metered.engine.scheduler.counters, metered.meter.misses
    assert counters.prefix_hits + sum(found.tokens.values()) == found.cacheable_tokens
    assert found.cacheable_tokens == counters.prefix_queries - 40
    assert not found._watched or not metered.engine.has_work


def test_tokens_by_step() -> None:
    metered = Metered()
    metered.add(range(20), max_tokens=3)
    metered.run()
    found = metered.meter.step_tokens
    assert found.total == 22 == metered.engine.scheduler.counters.computed_tokens
    assert found.counts[0] == 2
    assert sum(found.counts) == 3


def test_who_comes_back_after_a_preemption() -> None:
    metered = Metered(num_blocks=8)
    for start in (0, 100):
        metered.add(range(start, start + 8), max_tokens=14)
    metered.run()
    counters, returns = metered.engine.scheduler.counters, metered.meter.returns
    assert counters.preemptions > 0
    assert sum(returns.values()) == counters.preemptions
    assert not metered.meter._preempted


def test_who_is_aborted_while_preempted_is_forgotten() -> None:
    metered = Metered(num_blocks=8)
    metered.add(range(8), max_tokens=14)
    second = metered.add(range(100, 108), max_tokens=14)
    while not second.num_preemptions:
        metered.engine.step()
    metered.engine.abort(second.request_id)
    metered.run()
    assert not metered.meter._preempted
    assert not sum(metered.meter.returns.values())


def test_blocks_that_come_from_another_tier() -> None:
    metered = Metered(num_blocks=8, tier_blocks=64)
    metered.miss(range(20))
    assert (metered.meter.external_queries, metered.meter.external_hits) == (19, 0)
    metered.miss(range(100, 130))
    assert metered.miss(range(20)) is not None or metered.meter.external_hits
    assert 0 < metered.meter.external_hits <= 16
    for start in (0, 100):
        metered.add(range(start, start + 8), max_tokens=14)
    metered.run()
    assert metered.meter.returns[Return.LOADED] > 0


def test_how_long_blocks_stay() -> None:
    metered = Metered(num_blocks=8, kv_sample=1.0)
    metered.add(range(16), max_tokens=1)
    metered.run()
    metered.now = 10.0
    metered.add(range(16), max_tokens=1)
    metered.run()
    residency = metered.meter.residency
    assert residency is not None
    # Three whole blocks were found; the last one was copied to compute its last token.
    assert (sum(residency.reuse_gap.counts), residency.reuse_gap.total) == (3, 30.0)
    assert sum(residency.lifetime.counts) == 0
    metered.now = 100.0
    metered.add(range(100, 131), max_tokens=1)
    metered.run()
    evicted = metered.meter.num_evicted
    assert sum(residency.lifetime.counts) == sum(residency.idle.counts) == evicted > 3
    assert residency.lifetime.total > residency.idle.total > 80 * evicted


def test_a_sample_of_the_blocks_is_watched() -> None:
    every, some = (Metered(num_blocks=64, kv_sample=share) for share in (1.0, 0.25))
    for metered in (every, some):
        for start in range(0, 4000, 100):
            metered.miss(range(start, start + 20))
    counts = [
        sum(metered.meter.residency.lifetime.counts)  # type: ignore[union-attr]
        for metered in (every, some)
    ]
    assert 0.15 < counts[1] / counts[0] < 0.35


def test_a_meter_that_fails_harms_no_request(caplog: pytest.LogCaptureFixture) -> None:
    metered = Metered()
    metered.meter.misses = None  # type: ignore[assignment]
    first, second = metered.add(range(8)), metered.add(range(100, 108))
    metered.run()
    assert (first.num_output_tokens, second.num_output_tokens) == (2, 2)
    assert len([r for r in caplog.records if "meter failed" in r.getMessage()]) == 1
    assert not metered.engine.observers


def test_a_distribution_counts_what_is_at_most_a_bound() -> None:
    found = Distribution((1.0, 2.0, 5.0))
    for value, times in ((0.5, 1), (1.0, 2), (1.5, 1), (5.0, 1), (6.0, 3)):
        found.add(value, times)
    other = found.copy()
    found.add(100.0)
    assert other.cumulative() == [3, 4, 5, 8]
    assert other.total == 27.0
    assert found.cumulative()[-1] == 9
