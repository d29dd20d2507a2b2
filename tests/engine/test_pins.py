"""Prefixes that stay in the KV cache, and memory that does not."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from looseleaf import LLM, CapacityError, LooseleafError, SamplingParams
from looseleaf.compiled import compiled
from looseleaf.core import invariants
from looseleaf.core.errors import ConfigError
from looseleaf.engine.settings import EngineSettings, memory_range

PREFIX = [65 + i % 26 for i in range(40)]
GREEDY = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)


@pytest.fixture
def llm(tiny_model: Path) -> Iterator[LLM]:
    """With 20 blocks of 16 tokens, of which 5 may be pinned."""
    with LLM(str(tiny_model)) as sized:
        memory = 20 * sized.stack.memory.block_bytes
    with LLM(str(tiny_model), kv_cache_memory=memory, max_model_len=200, pin_budget=0.25) as made:
        yield made
        invariants.check(made.engine.scheduler)


def crowd(llm: LLM) -> None:
    """Fill the pool with other things, several times over."""
    prompts = [[100 + i, *range(60, 180)] for i in range(8)]
    llm.generate(prompts, GREEDY, use_tqdm=False)


def cached(llm: LLM) -> int:
    (output,) = llm.generate([[*PREFIX, 90, 91]], GREEDY, use_tqdm=False)
    return output.num_cached_tokens


def test_a_pinned_prefix_outlives_the_crowd(llm: LLM) -> None:
    pin = llm.pin(PREFIX)
    assert (pin.num_tokens, len(pin.block_ids)) == (40, 3)
    crowd(llm)
    assert cached(llm) == 40
    assert llm.pins() == [pin]
    assert llm.unpin(pin.pin_id)
    assert not llm.unpin(pin.pin_id)
    assert llm.pins() == []
    crowd(llm)
    assert cached(llm) < 40


def test_without_a_pin_it_does_not(llm: LLM) -> None:
    assert cached(llm) == 0
    crowd(llm)
    assert cached(llm) < 40


def test_a_pin_ends_with_its_time(llm: LLM) -> None:
    now = [time.monotonic()]
    llm.engine.clock = lambda: now[0]
    pin = llm.pin(PREFIX, ttl=5.0)
    crowd(llm)
    assert cached(llm) == 40
    now[0] += 4.9
    assert llm.pins() == [pin]
    now[0] += 0.2
    crowd(llm)  # every step looks at the clock
    assert cached(llm) < 40
    assert llm.pins() == []
    assert not llm.engine.scheduler.allocator.pinned


def test_prefixes_share_what_they_have_in_common(llm: LLM) -> None:
    first = llm.pin(PREFIX[:32])
    second = llm.pin([*PREFIX[:32], 1, 2, 3])
    assert second.block_ids[:2] == first.block_ids
    assert len(llm.engine.scheduler.allocator.pinned) == 3
    llm.unpin(first.pin_id)
    crowd(llm)
    invariants.check(llm.engine.scheduler)
    assert cached(llm) == 32


def test_no_more_is_pinned_than_the_budget(llm: LLM) -> None:
    with pytest.raises(CapacityError, match="6 KV blocks would be pinned, but at most 5 may be"):
        llm.pin(list(range(96)))
    assert llm.pins() == []
    with pytest.raises(LooseleafError, match="ttl is -1, but it must be"):
        llm.pin(PREFIX, ttl=-1)


def test_requests_cannot_count_on_what_may_be_pinned(llm: LLM) -> None:
    assert llm.stack.memory.max_model_len == 200
    with pytest.raises(ConfigError, match="set max_model_len to 240 or less"):
        LLM(
            llm.stack.settings.model,
            kv_cache_memory=20 * llm.stack.memory.block_bytes,
            max_model_len=256,
            pin_budget=0.25,
        )
    llm.pin(PREFIX)
    long = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    outputs = llm.generate([[i] * 100 for i in range(3)], long, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [100] * 3


@pytest.mark.parametrize("budget", [-0.1, 0.95])
def test_a_budget_that_is_no_share(budget: float) -> None:
    with pytest.raises(ConfigError, match=f"pin_budget is {budget}, but it is a share"):
        EngineSettings(pin_budget=budget)


def test_without_a_budget_nothing_is_pinned(tiny_model: Path) -> None:
    with LLM(str(tiny_model)) as llm, pytest.raises(CapacityError, match="at most 0 may be"):
        llm.pin(PREFIX)


@pytest.mark.skipif(compiled() is None, reason="the compiled part is not installed")
def test_idle_memory_goes_back_to_the_system(tiny_model: Path) -> None:
    size = 64 * 2**20
    with LLM(str(tiny_model), kv_cache_memory=f"1MiB:{size}") as llm:
        executor: Any = llm.engine.executor
        (before,) = llm.generate([PREFIX], GREEDY, use_tqdm=False)
        block = executor.read_block(0)
        for block_id in range(4, llm.stack.memory.num_blocks):
            executor.write_block(block_id, block)
        full = resident_bytes()
        while llm.engine.trim():
            pass
        assert full - resident_bytes() > 0.8 * size
        # What stays is what was used last: it is found, and as it was.
        assert executor.read_block(0) == block
        (again,) = llm.generate([PREFIX], GREEDY, use_tqdm=False)
        assert again.num_cached_tokens == len(PREFIX) - 1
        assert again.outputs == before.outputs
        invariants.check(llm.engine.scheduler)


def test_all_goes_with_a_floor_of_nothing(tiny_model: Path) -> None:
    with LLM(str(tiny_model), kv_cache_memory="0:8MiB") as llm:
        (before,) = llm.generate([PREFIX], GREEDY, use_tqdm=False)
        while llm.engine.trim():
            invariants.check(llm.engine.scheduler)
        assert llm.engine.scheduler.allocator.pool.num_free == llm.stack.memory.num_blocks
        (again,) = llm.generate([PREFIX], GREEDY, use_tqdm=False)
        assert again.num_cached_tokens == 0
        assert again.outputs == before.outputs


def test_ranges_of_memory() -> None:
    assert memory_range("1MiB:2MiB") == (2**20, 2**21)
    assert memory_range("2k") == (None, 2000)
    assert memory_range(7) == (None, 7)
    with pytest.raises(ConfigError, match="more at the least than at the most"):
        memory_range("2MiB:1MiB")


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    pytest.skip("this system does not say how much memory is resident")


def test_what_is_trimmed_is_on_the_disk(tiny_model: Path, tmp_path: Path) -> None:
    with LLM(str(tiny_model), kv_cache_memory="0:8MiB", kv_disk=str(tmp_path)) as llm:
        llm.generate([PREFIX], GREEDY, use_tqdm=False)
        while llm.engine.trim():
            pass
        assert cached(llm) == 32
        assert llm.engine.tiers is not None
        assert llm.engine.tiers.counters.loaded_from_disk == 2


def test_a_prefix_is_not_computed_for_nothing(llm: LLM) -> None:
    with pytest.raises(CapacityError, match="at most 5 may be"):
        llm.pin(list(range(96)))
    assert llm.engine.scheduler.counters.computed_tokens == 0


def test_a_pin_while_guesses_hold_blocks_ahead(tiny_model: Path) -> None:
    """A request whose guesses were wrong holds a block after the one it writes; a pin on that one
    makes it copy, and keep the other."""
    prompt = [65 + i % 7 for i in range(24)]
    asked = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    with LLM(str(tiny_model), pin_budget=0.5) as llm:
        (expected,) = llm.generate([prompt], asked, use_tqdm=False)
    with LLM(str(tiny_model), pin_budget=0.5) as llm:
        llm.engine.scheduler.drafter = lambda request, room: [1] * min(room, 8)
        pins = llm.engine.pins
        assert pins is not None
        deltas = llm.stream(prompt, asked)
        next(deltas)
        next(deltas)
        pins.add(prompt, llm.engine.clock())
        group, _ = next(deltas)
        for _ in deltas:
            invariants.check(llm.engine.scheduler)
        assert tuple(group.samples[0].token_ids) == expected.outputs[0].token_ids
        copies = llm.engine.scheduler.allocator.num_copies
        assert copies == 1
