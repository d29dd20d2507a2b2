"""The one validator: what must hold between any two steps. On in every test."""

from collections import Counter

from looseleaf.core.block_tables import blocks_for
from looseleaf.core.errors import InvariantError, ensure
from looseleaf.core.policy import POLICIES
from looseleaf.core.request import Status
from looseleaf.core.scheduler import Scheduler

__all__ = ["InvariantError", "check"]


def check(scheduler: Scheduler) -> None:
    """Raise InvariantError if anything is inconsistent. O(blocks + tokens); changes nothing."""
    _check_requests(scheduler)
    allocator = scheduler.allocator
    tables, size = allocator.tables(), allocator.block_size
    running = {r.request_id: r for r in scheduler.running}
    ensure(set(tables) == set(running), "exactly the running requests have block tables")
    for request_id, table in tables.items():
        request, held = running[request_id], len(table)
        enough = held >= blocks_for(request.num_computed_tokens, size)
        ensure(enough, f"{request} holds {held} blocks, fewer than its stored tokens need")
        ensure(len(set(table)) == held, f"{request} has a block twice in its table {table}")
        for i, block_id in enumerate(table):
            key = allocator.key_of(block_id)
            stored = request.token_ids[i * size : min(request.num_computed_tokens, (i + 1) * size)]
            known = () if key is None else key.token_ids
            same = all(a == b for a, b in zip(stored, known, strict=False))
            ensure(same, f"block {block_id} of {request} is found under tokens it does not hold")
    allocator.check()
    if not scheduler.requests:
        free, total = allocator.num_available, allocator.num_blocks - len(allocator.pinned)
        ensure(free == total, f"no request is left, but {total - free} of {total} blocks are held")


def _check_requests(scheduler: Scheduler) -> None:
    running, waiting, held = scheduler.running, scheduler.waiting, scheduler.leaders.held()
    key = POLICIES[scheduler.config.policy]
    ensure(running == sorted(running, key=key), "running requests are in the policy's order")
    ensure(waiting == sorted(waiting, key=key), "waiting requests are in the policy's order")
    children = [child for r in (*running, *waiting, *held) for child in r.children]
    known = Counter(r.request_id for r in (*running, *waiting, *held, *children))
    ensure(set(known) == set(scheduler.requests), "every live request is in one of the lists")
    ensure(all(n == 1 for n in known.values()), "no request is in two lists")
    most = scheduler.config.max_num_seqs
    ensure(len(running) <= most, f"{len(running)} requests run, but at most {most} may")
    for status, members in (
        (Status.RUNNING, running),
        (Status.WAITING, waiting),
        (Status.HELD, [*held, *children]),
    ):
        for request in members:
            ensure(request.status is status, f"{request} is among those {status}")
            computed, total = request.num_computed_tokens, request.num_tokens
            if status is Status.RUNNING:
                ensure(0 <= computed < total, f"{request} runs with nothing left to compute")
            else:
                ensure(computed == 0, f"{request} has computed tokens and no blocks")
            ensure(total <= request.max_total_tokens, f"{request} is longer than it may be")
    scheduler.leaders.check(running)
