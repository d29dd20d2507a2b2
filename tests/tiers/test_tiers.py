"""What is loaded and what is computed, and what a whole engine makes of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from kv_blocks import BLOCK_BYTES, data_of, key_of, save_of

from looseleaf import LLM, SamplingParams
from looseleaf.core.step import BlockLoad, ScheduledSequence, Step, StepResult
from looseleaf.tiers import tiers as module
from looseleaf.tiers.block_file import MIN_LIMIT, BlockFile
from looseleaf.tiers.disk import DiskStore
from looseleaf.tiers.host import HostStore
from looseleaf.tiers.tiers import KVTiers

PROMPT = [65 + i % 50 for i in range(100)]
GREEDY = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)


class Memory:
    """Of a pool: content by block."""

    def __init__(self) -> None:
        self.blocks: dict[int, bytes] = {}

    def read_block(self, block_id: int) -> bytes:
        return self.blocks[block_id]

    def write_block(self, block_id: int, data: bytes) -> None:
        self.blocks[block_id] = data


def step(saves: Sequence[Any] = (), loads: Sequence[Any] = (), num_tokens: int = 0) -> Step:
    sequences = ()
    if num_tokens:
        sequences = (ScheduledSequence("r", (1,) * num_tokens, 0, 0, (), ()),)  # type: ignore[arg-type, assignment]
    return Step(1, sequences, saves=tuple(saves), loads=tuple(loads))


def load(block_id: int, number: int) -> BlockLoad:
    return BlockLoad(block_id, key_of(number).hash)  # type: ignore[arg-type]


def test_what_the_host_has_no_room_for_goes_to_the_disk(tmp_path: Path) -> None:
    disk = DiskStore(tmp_path, MIN_LIMIT, "{}")
    tiers = KVTiers(2, BLOCK_BYTES, HostStore(2 * BLOCK_BYTES), disk)
    memory = Memory()
    for number in range(5):
        memory.blocks[0] = data_of(number)
        assert tiers.move(step([save_of(number)]), memory)
    assert [tiers.num_found([key_of(number)]) for number in range(6)] == [1, 1, 1, 1, 1, 0]
    assert tiers.move(step(loads=[load(i, i) for i in range(5)]), memory)
    assert [memory.blocks[i] for i in range(5)] == [data_of(i) for i in range(5)]
    figures = tiers.figures()
    assert (figures.saved, figures.loaded_from_host, figures.loaded_from_disk) == (5, 2, 3)
    assert figures.host_bytes == 2 * BLOCK_BYTES
    assert figures.disk_bytes > 0
    tiers.clear()
    assert tiers.num_found([key_of(4)]) == 0
    tiers.close([], memory)


def test_a_save_may_push_out_what_the_same_step_loads() -> None:
    tiers = KVTiers(2, BLOCK_BYTES, HostStore(BLOCK_BYTES))
    memory = Memory()
    memory.blocks[0] = data_of(1)
    tiers.move(step([save_of(1)]), memory)
    memory.blocks[0] = data_of(2)
    assert tiers.move(step([save_of(2)], [load(0, 1)]), memory)
    assert memory.blocks[0] == data_of(1)
    assert tiers.num_found([key_of(1)]) == 0
    assert tiers.num_found([key_of(2)]) == 1


def test_a_block_of_another_size_is_not_loaded(tmp_path: Path) -> None:
    disk = DiskStore(tmp_path, MIN_LIMIT, "{}")
    tiers = KVTiers(2, BLOCK_BYTES + 1, None, disk)
    disk.put(save_of(1), data_of(1))
    assert tiers.num_found([key_of(1)]) == 1
    assert not tiers.move(step(loads=[load(0, 1)]), Memory())
    disk.flush(10)
    assert tiers.num_found([key_of(1)]) == 0
    assert tiers.counters.lost == 1
    disk.close()


def test_what_is_cheaper_to_compute_is_not_loaded() -> None:
    now = [100.0]
    tiers = KVTiers(2, BLOCK_BYTES, HostStore(BLOCK_BYTES), clock=lambda: now[0])
    memory = Memory()
    memory.blocks[0] = data_of(1)
    tiers.move(step([save_of(1)]), memory)
    wanted = [key_of(1)]
    assert tiers.num_found(wanted) == 1  # nothing is known yet
    tiers.move(step(loads=[load(0, 1)]), memory)
    tiers.load_seconds = 3.0
    tiers.observe(step(num_tokens=100), StepResult(1, (), durations=(("forward", 100.0),)))
    assert tiers.compute_seconds == 1.0
    assert tiers.num_found(wanted) == 0  # 3 seconds against 2
    tiers.observe(step(num_tokens=3), StepResult(1, (), durations=(("forward", 100.0),)))
    assert tiers.compute_seconds == 1.0  # so short a step says nothing
    tiers.load_seconds = 1.9
    assert tiers.num_found(wanted) == 1
    tiers.load_seconds = 3.0
    now[0] += module.STALE_SECONDS + 1
    assert tiers.num_found(wanted) == 1  # perhaps it has become faster


def answer(llm: LLM, prompt: Sequence[int] = PROMPT) -> Any:
    (output,) = llm.generate([list(prompt)], GREEDY, use_tqdm=False)
    return output


@pytest.mark.parametrize("executor", ["reference", "auto"])
def test_a_restarted_engine_goes_on_from_the_disk(
    tiny_model: Path, tmp_path: Path, executor: str
) -> None:
    settings: dict[str, Any] = {"executor": executor, "kv_disk": tmp_path}
    with LLM(str(tiny_model), **settings) as llm:
        first = answer(llm)
    with LLM(str(tiny_model), **settings) as llm:
        again = answer(llm)
        assert llm.engine.tiers is not None
        assert llm.engine.tiers.counters.loaded_from_disk == 6
    assert (first.num_cached_tokens, again.num_cached_tokens) == (0, 96)
    assert again.outputs == first.outputs


def test_other_settings_have_other_blocks(tiny_model: Path, tmp_path: Path) -> None:
    with LLM(str(tiny_model), executor="reference", kv_disk=tmp_path) as llm:
        answer(llm)
    for other in ({"block_size": 8}, {"executor": "auto"}):
        with LLM(str(tiny_model), **{"executor": "reference", "kv_disk": tmp_path} | other) as llm:
            if other == {"executor": "auto"} and llm.stack.settings.executor == "reference":
                pytest.skip("the compiled part is not installed")
            assert answer(llm).num_cached_tokens == 0


def test_pinned_prefixes_survive_too(tiny_model: Path, tmp_path: Path) -> None:
    with LLM(str(tiny_model), kv_disk=tmp_path, pin_budget=0.5) as llm:
        llm.pin(PROMPT[:64])
    with LLM(str(tiny_model), kv_disk=tmp_path) as llm:
        assert answer(llm).num_cached_tokens == 64


def test_markers_do_not_cross_between_prompts(tiny_model: Path) -> None:
    """C-031: with offloading on, nobody gets what is another's."""
    with LLM(str(tiny_model)) as sized:
        block_bytes = sized.stack.memory.block_bytes
    prompts = [[*PROMPT[:40], 130 + i, *range(60, 100)] for i in range(20)]
    with LLM(str(tiny_model), max_model_len=128) as llm:
        alone = [answer(llm, prompt).outputs for prompt in prompts]
    with LLM(
        str(tiny_model),
        max_model_len=128,
        kv_cache_memory=20 * block_bytes,
        swap_space=30 * block_bytes,
        preemption_mode="swap",
        admission_headroom=0,
    ) as llm:
        for _ in range(3):
            outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
            assert [output.outputs for output in outputs] == alone
        assert llm.engine.tiers is not None
        assert llm.engine.tiers.counters.loaded_from_host > 0


@pytest.mark.parametrize("num_blocks", [0, 1, 3])
def test_a_full_swap_space_falls_back_to_computing(tiny_model: Path, num_blocks: int) -> None:
    """C-049: with little or no swap space, groups beyond the pool are still answered."""
    with LLM(str(tiny_model)) as sized:
        block_bytes = sized.stack.memory.block_bytes
    params = SamplingParams(n=2, seed=1, max_tokens=60, ignore_eos=True)
    prompts = [[*PROMPT[:20], 130 + i] for i in range(6)]
    found = []
    for memory, swap in ((64, 0), (8, num_blocks)):
        with LLM(
            str(tiny_model),
            max_model_len=100,
            kv_cache_memory=memory * block_bytes,
            swap_space=swap * block_bytes,
            admission_headroom=0,
        ) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            found.append([output.outputs for output in outputs])
            preemptions = llm.engine.scheduler.counters.preemptions
    assert preemptions > 0
    assert found[0] == found[1]


def test_the_heads_of_chains_stay_longest(tiny_model: Path, tmp_path: Path) -> None:
    """What is saved when an engine ends leaves the disk in the same order as the pool."""
    with LLM(str(tiny_model), kv_disk=tmp_path) as llm:
        answer(llm, range(70, 120))
        answer(llm)
        roots = [llm.engine.scheduler.allocator._hasher.root(())]  # type: ignore[attr-defined]
        llm.close()
        llm.close()  # as leaving the block does once more
    file = BlockFile(tmp_path)
    (space,) = file.spaces()
    rows = file._database.execute("SELECT hash, parent FROM block ORDER BY used DESC").fetchall()
    file.close()
    assert space.num_blocks == len(rows) == 6 + 3
    known = {roots[0].hash}
    for block_hash, parent in rows:
        assert parent in known, "a block would be left without the one before it"
        known.add(block_hash)


def test_more_than_others_should_wait_for_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOADED_BYTES", 3 * BLOCK_BYTES)
    tiers = KVTiers(2, BLOCK_BYTES, HostStore(10 * BLOCK_BYTES))
    memory = Memory()
    for number in range(5):
        memory.blocks[0] = data_of(number)
        tiers.move(step([save_of(number)]), memory)
    assert tiers.num_found([key_of(number) for number in range(5)]) == 3
