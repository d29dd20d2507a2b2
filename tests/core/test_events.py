"""A viewer that starts from a snapshot and folds events must see what the core itself says."""

import random
from collections import Counter

import pytest
from bookkeeping import Bench, make_request

from looseleaf.core import events as ev
from looseleaf.engine.snapshot import Snapshot, snapshot


class Mirror:
    """Block tables and findable blocks, from a snapshot and the events after it."""

    def __init__(self, start: Snapshot) -> None:
        self.sequence = start.sequence
        self.tables = {r.request_id: list(r.table) for r in start.requests if r.table}
        self.hashes = {b.block_id: b.hash for b in start.blocks if b.hash is not None}
        self.status = {r.request_id: r.status for r in start.requests}

    def fold(self, event: ev.Event) -> None:
        assert event.sequence == self.sequence + 1
        self.sequence += 1
        match event:
            case ev.TableChanged(_, request_id, start, block_ids):
                self.tables.setdefault(request_id, [])[start:] = block_ids
            case ev.TableFreed(_, request_id):
                del self.tables[request_id]
            case ev.BlockPublished(_, block_id, block_hash, _):
                assert block_hash not in self.hashes.values(), "one findable copy at most"
                self.hashes[block_id] = block_hash
            case ev.BlockUnpublished(_, block_id, block_hash):
                assert self.hashes.pop(block_id) == block_hash
            case ev.RequestAdded(_, request_id):
                self.status[request_id] = "waiting"
            case ev.RequestMoved(_, request_id, "finished"):
                self.status.pop(request_id, None)
            case ev.RequestMoved(_, request_id, status):
                self.status[request_id] = status

    def compare(self, now: Snapshot) -> None:
        assert self.sequence == now.sequence
        assert self.tables == {r.request_id: list(r.table) for r in now.requests if r.table}
        assert self.hashes == {b.block_id: b.hash for b in now.blocks if b.hash is not None}
        references = Counter(b for table in self.tables.values() for b in table)
        assert {b.block_id: b.ref_count for b in now.blocks if b.ref_count} == references
        # Further samples of a prompt are announced when they begin to run.
        announced = {r.request_id: r.status for r in now.requests if r.request_id in self.status}
        assert self.status == announced
        assert {r.request_id for r in now.requests if r.status != "held"} <= set(announced)


@pytest.mark.parametrize("seed", range(20))
def test_c036_a_mirror_of_the_events_equals_the_snapshot_at_any_moment(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(num_blocks=10, block_size=2, max_model_len=20, max_num_seqs=5)
    mirrors = [Mirror(snapshot(bench.scheduler))]
    for i in range(120):
        if rng.random() < 0.4:
            prompt = [rng.randint(0, 1) for _ in range(rng.randint(1, 9))]
            n, max_tokens = rng.choice([1, 2]), rng.randint(1, 9)
            bench.add(make_request(f"r{i}", prompt, max_tokens=max_tokens, n=n))
        if rng.random() < 0.1 and bench.scheduler.requests:
            bench.abort(rng.choice(sorted(bench.scheduler.requests)))
        bench.step()
        for event in bench.events.drain():
            for mirror in mirrors:
                mirror.fold(event)
        now = snapshot(bench.scheduler)
        for mirror in mirrors:
            mirror.compare(now)
        if i % 30 == 29:
            mirrors.append(Mirror(now))  # a viewer that connects now gets a snapshot first
    assert bench.scheduler.counters.preemptions > 0


def test_c036_two_copies_of_one_content_are_one_findable_hash() -> None:
    """Both compute the same block; the hash stays findable until its one published copy goes."""
    bench = Bench(num_blocks=8, block_size=4)
    bench.add(make_request("a", range(8), max_tokens=1))
    bench.run()
    bench.add(make_request("b", range(8), max_tokens=1))
    bench.run()
    findable = {b.hash for b in snapshot(bench.scheduler).blocks if b.hash}
    published = {e.hash for e in bench.events.drain() if isinstance(e, ev.BlockPublished)}
    assert len(findable) == bench.tables.pool.num_published
    assert findable <= published
    assert bench.tables.match(make_request("c", [*range(8), 9])).num_tokens == 8


def test_a_reader_that_comes_too_late_sees_the_gap() -> None:
    log = ev.EventLog(capacity=3)
    for i in range(5):
        log.emit(ev.TableFreed, f"r{i}")
    assert [event.sequence for event in log.drain()] == [3, 4, 5]
    assert log.drain() == []
    assert log.sequence == 5
