"""Whoever applies the deltas must see what the core itself says, at every step."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from bookkeeping import Bench, make_request

from looseleaf.core.block_tables import BlockTables
from looseleaf.core.errors import LooseleafError
from looseleaf.core.events import EventLog
from looseleaf.core.free_queue import BlockId
from looseleaf.core.request import Request
from looseleaf.engine.engine import Engine
from looseleaf.engine.event_readers import add_reader, remove_reader
from looseleaf.engine.kv_events import BlockLog, KVEventSource
from looseleaf.engine.pins import Pins
from looseleaf.engine.snapshot import Snapshot, snapshot
from looseleaf.sampling.params import SamplingParams
from looseleaf.studio.feed import Feed
from looseleaf.studio.frames import (
    HASH_DIGITS,
    IN_MEMORY,
    NOT_KEPT,
    ON_DISK,
    Delta,
    Frame,
    decode,
    encode,
)
from looseleaf.studio.picture import Picture
from looseleaf.studio.steps import MAX_STEPS
from looseleaf.tiers.disk import DiskStore


def make_engine(**settings: object) -> Engine:
    bench = Bench(**settings)
    _log_to(bench, None)
    clock = iter(range(10**9))
    return Engine(bench.scheduler, bench.executor, lambda: float(next(clock)), bench.tiers)


def _log_to(bench: Bench, log: EventLog | None) -> None:
    bench.tables.events = log
    pool = getattr(bench.tables, "pool", None)
    if pool is not None:
        pool.events = log


def over_the_wire(frame: Frame) -> Frame:
    return decode(encode(frame))


def compare(picture: Picture, now: Snapshot) -> None:
    assert picture.block_size == now.block_size
    assert picture.num_blocks == len(now.blocks)
    for state in now.blocks:
        block = picture.blocks.get(state.block_id)
        name = None if state.hash is None else state.hash.hex()[:HASH_DIGITS]
        if block is None:
            assert (state.ref_count, state.hash) == (0, None)
        else:
            assert not block.free
            assert (block.ref_count, block.hash) == (state.ref_count, name)
            assert block.num_tokens == state.num_tokens
    by_id = {request.id: request for request in picture.requests.values()}
    assert set(by_id) == {state.request_id for state in now.requests}
    for state in now.requests:
        request = by_id[state.request_id]
        for name in state._fields[1:-1]:
            assert getattr(request, name) == getattr(state, name), (state, name)
        assert picture.tables.get(request.number, []) == list(state.table)


class Schedule:
    """A random one: requests of few kinds of tokens come, are aborted, forgotten, pinned."""

    def __init__(self, seed: int, engine: Engine, allocator: str) -> None:
        self.rng = random.Random(seed)
        self.engine = engine
        self.paged = allocator == "paged"
        self.num_added = 0
        self.pin_ids: list[str] = []

    def act(self) -> None:
        rng, engine = self.rng, self.engine
        if rng.random() < 0.4:
            self.num_added += 1
            prompt = [rng.randint(0, 1) for _ in range(rng.randint(1, 9))]
            engine.add(
                make_request(
                    f"r{self.num_added}",
                    prompt,
                    max_tokens=rng.randint(1, 9),
                    n=rng.choice([1, 2, 4]),
                )
            )
        live = sorted(engine.scheduler.requests)
        if live and rng.random() < 0.1:
            engine.abort(rng.choice(live))
        if self.paged and rng.random() < 0.05:
            engine.forget_cache()
        if self.paged and rng.random() < 0.1:
            self._fork()
        if engine.pins is not None and rng.random() < 0.2:
            self._pin(engine.pins)
        if engine.has_work:
            engine.step()

    def _fork(self) -> None:
        parents = [r for r in self.engine.scheduler.running if r.num_computed_tokens]
        if not parents:
            return
        parent = self.rng.choice(parents)
        tokens = [*parent.token_ids[: parent.num_computed_tokens], 1]
        if len(tokens) < 19:
            self.num_added += 1
            params = SamplingParams(max_tokens=self.rng.randint(1, 20 - len(tokens)))
            child = Request(f"r{self.num_added}", tokens, params, stop_token_ids=frozenset())
            self.engine.scheduler.fork(parent.request_id, child)

    def _pin(self, pins: Pins) -> None:
        if self.pin_ids:
            assert pins.remove(self.pin_ids.pop())
            return
        running = [r for r in self.engine.scheduler.running if r.num_computed_tokens >= 2]
        if running:
            try:
                pin = pins.add(running[0].token_ids[:2], now=0.0)
            except LooseleafError:
                return  # too much is pinned, or it is not in the cache
            self.pin_ids.append(pin.pin_id)


@pytest.mark.parametrize("tier_blocks", [None, 6])
@pytest.mark.parametrize("seed", range(12))
def test_deltas_on_a_snapshot_give_what_the_core_says(seed: int, tier_blocks: int | None) -> None:
    engine = make_engine(
        num_blocks=14,
        block_size=2,
        max_model_len=20,
        max_num_seqs=5,
        num_pinnable=2,
        tier_blocks=tier_blocks,
    )
    schedule = Schedule(seed, engine, "paged")
    for _ in range(seed % 3 * 7):  # what has happened before anybody looks
        schedule.act()
    feed = Feed(engine)
    feed.attach()
    pictures: list[Picture] = []
    copies = evicted = finished = 0
    for i in range(150):
        for _ in range(schedule.rng.choice([1, 1, 1, 4])):
            schedule.act()
        news = feed.collect(snapshot=i % 50 == 0)
        assert not news.lost
        if news.delta is not None:
            delta = over_the_wire(news.delta)
            assert isinstance(delta, Delta)
            copies += len(delta.copies)
            evicted += len(delta.evicted)
            finished += sum(request.status == "finished" for request in delta.requests)
            for picture in pictures:
                picture.apply(delta)
        if news.snapshot is not None:
            start = over_the_wire(news.snapshot)
            assert not isinstance(start, Delta)
            pictures.append(Picture(start))
        now = snapshot(engine.scheduler)
        for picture in pictures:
            compare(picture, now)
        pins = engine.scheduler.allocator.pinned
        assert {b.block_id: b.num_pins for b in pictures[0].blocks.values() if b.num_pins} == pins
    assert copies > 0
    assert evicted > 0
    assert finished > 10
    counters = engine.scheduler.counters
    assert counters.preemptions > 0
    assert pictures[0].counters.preemptions == counters.preemptions
    assert pictures[0].counters.steps == counters.steps
    feed.detach()
    assert engine.scheduler.allocator.events is None
    assert engine.observers == ([] if engine.tiers is None else [engine.tiers.observe])


@pytest.mark.parametrize("seed", range(4))
def test_the_old_way_to_reserve_is_told_as_well(seed: int) -> None:
    engine = make_engine(
        num_blocks=32, block_size=2, max_model_len=20, max_num_seqs=5, allocator="pow2"
    )
    schedule = Schedule(seed, engine, "pow2")
    feed = Feed(engine)
    feed.attach()
    start = feed.collect(snapshot=True).snapshot
    assert start is not None
    picture = Picture(start)
    for _ in range(120):
        schedule.act()
        delta = feed.collect().delta
        if delta is not None:
            picture.apply(over_the_wire(delta))
        compare(picture, snapshot(engine.scheduler))
        regions = sum(request.region_blocks or 0 for request in picture.requests.values())
        held = engine.scheduler.allocator.num_blocks - engine.scheduler.allocator.num_available
        assert regions == held


def test_moves_and_steps_tell_a_requests_way() -> None:
    engine = make_engine(num_blocks=64, block_size=4, max_num_batched_tokens=8)
    feed = Feed(engine)
    feed.attach()
    engine.add(make_request("a", range(1000, 1020), max_tokens=3))
    engine.add(make_request("b", range(1000, 1020), max_tokens=2))
    while engine.has_work:
        engine.step()
    delta = feed.collect().delta
    assert delta is not None
    number = {str(request.id): request.number for request in delta.requests}
    ways = {
        name: [(move.status, move.cause) for move in delta.moves if move.number == number[name]]
        for name in "ab"
    }
    assert ways["a"] == [("waiting", ""), ("running", ""), ("finished", "length")]
    assert ways["b"] == [
        ("waiting", ""),
        ("held", "a"),
        ("waiting", ""),
        ("running", ""),
        ("finished", "length"),
    ]
    chunks = {
        name: [
            (part.num_tokens, part.num_samples)
            for run in delta.steps
            for part in run.parts
            if part.number == number[name]
        ]
        for name in "ab"
    }
    assert chunks["a"] == [(8, 0), (8, 0), (4, 1), (1, 1), (1, 1)]
    assert chunks["b"][-2:] == [(1, 1), (1, 1)]
    for move in delta.moves:
        if move.status == "running":
            first = next(
                run for run in delta.steps if any(p.number == move.number for p in run.parts)
            )
            assert move.time == first.start
    assert delta.counters is not None
    assert delta.counters.output_tokens == 5


def test_many_steps_are_added_up() -> None:
    engine = make_engine(num_blocks=64, block_size=4)
    feed = Feed(engine)
    feed.attach()
    engine.add(make_request("a", 3, max_tokens=100))
    while engine.has_work:
        engine.step()
    delta = feed.collect().delta
    assert delta is not None
    assert len(delta.steps) <= MAX_STEPS
    assert sum(run.num_steps for run in delta.steps) == 100
    assert sum(part.num_tokens for run in delta.steps for part in run.parts) == 102


def test_nothing_new_is_no_frame() -> None:
    engine = make_engine()
    feed = Feed(engine)
    feed.attach()
    assert feed.collect() == (None, None, False)
    first = feed.collect(snapshot=True).snapshot
    assert first is not None
    assert first.seq == 0


def test_what_the_log_could_not_hold_is_mended_with_a_snapshot() -> None:
    engine = make_engine(num_blocks=64, block_size=4)
    feed = Feed(engine, capacity=10)
    feed.attach()
    engine.add(make_request("a", 30, max_tokens=30))
    for _ in range(20):
        engine.step()
    news = feed.collect()
    assert news.lost
    assert news.snapshot is not None
    assert news.delta is None
    picture = Picture(news.snapshot)
    compare(picture, snapshot(engine.scheduler))
    while engine.has_work:
        engine.step()
        news = feed.collect()
        assert not news.lost
        assert news.delta is not None
        picture.apply(news.delta)
        compare(picture, snapshot(engine.scheduler))


def test_a_gap_is_noticed() -> None:
    engine = make_engine()
    feed = Feed(engine)
    feed.attach()
    start = feed.collect(snapshot=True).snapshot
    assert start is not None
    picture = Picture(start)
    engine.add(make_request("a", 3))
    feed.collect()
    engine.step()
    delta = feed.collect().delta
    assert delta is not None
    with pytest.raises(ValueError, match="frame 2 comes after frame 0"):
        picture.apply(delta)


@pytest.mark.parametrize("told", [True, False])
def test_text_is_told_only_where_it_may_be(told: bool) -> None:
    def words(token_ids: object) -> str:
        return f"<{token_ids}>"

    decode_tokens: Callable[[object], str] | None = words if told else None
    engine = make_engine(num_blocks=16, block_size=4)
    feed = Feed(engine, decode=decode_tokens)
    feed.attach()
    engine.add(make_request("a", [7, 8, 9, 10, 11], max_tokens=2))
    while engine.has_work:
        engine.step()
    news = feed.collect(snapshot=True)
    assert news.delta is not None
    assert news.snapshot is not None
    for blocks in (news.delta.blocks, news.snapshot.blocks):
        assert {b.text for b in blocks if b.num_tokens == 4} == (
            {"<(7, 8, 9, 10)>"} if told else {None}
        )


def test_events_have_several_readers() -> None:
    engine = make_engine(
        num_blocks=14, block_size=2, max_model_len=20, max_num_seqs=5, num_pinnable=2
    )
    allocator = engine.scheduler.allocator
    assert isinstance(allocator, BlockTables)
    log = BlockLog()
    add_reader(allocator, log)
    router = KVEventSource(allocator.pool, 2, log)
    stored: set[bytes] = set()
    schedule = Schedule(3, engine, "paged")
    feeds: list[tuple[Feed, Picture]] = []
    for i in range(120):
        if i in (0, 40):
            feed = Feed(engine)
            feed.attach()
            start = feed.collect(snapshot=True).snapshot
            assert start is not None
            feeds.append((feed, Picture(start)))
        if i == 80:
            feeds.pop(0)[0].detach()
        schedule.act()
        for feed, picture in feeds:
            delta = feed.collect().delta
            if delta is not None:
                picture.apply(delta)
            compare(picture, snapshot(engine.scheduler))
        change = router.news()
        if change is not None:
            stored = stored.difference(change.removed) if change.removed is not None else set()
            stored.update(key.hash for key in change.stored)
        found = {b.hash for b in snapshot(engine.scheduler).blocks if b.num_tokens == 2}
        assert stored == found - {None}
    feeds[0][0].detach()
    assert allocator.events is log
    remove_reader(allocator, log)
    assert allocator.events is None
    assert allocator.pool.events is None


def test_a_block_tells_where_else_its_content_is(tmp_path: Path) -> None:
    engine = make_engine(
        num_blocks=14, block_size=2, max_model_len=20, max_num_seqs=5, tier_blocks=4
    )
    tiers, allocator = engine.tiers, engine.scheduler.allocator
    assert tiers is not None
    assert isinstance(allocator, BlockTables)
    tiers.disk = DiskStore(tmp_path, 1 << 27, "test")
    schedule = Schedule(5, engine, "paged")
    feed = Feed(engine)
    feed.attach()
    start = feed.collect(snapshot=True).snapshot
    assert start is not None
    picture = Picture(start)
    seen: Counter[int] = Counter()
    for _ in range(150):
        schedule.act()
        delta = feed.collect().delta  # a second passes each time, after which all are looked at
        if delta is not None:
            picture.apply(over_the_wire(delta))
        for block in picture.blocks.values():
            key = allocator.key_of(BlockId(block.block_id))
            if key is None or len(key.token_ids) < 2 or not tiers.has(key):
                assert block.kept == NOT_KEPT
            else:
                in_memory = tiers.host is not None and tiers.host.has(key)
                assert block.kept == (IN_MEMORY if in_memory else ON_DISK)
            seen[block.kept] += 1
    assert len(seen) == 3
    tiers.disk.close(5.0)
