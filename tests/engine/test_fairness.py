"""Shares of tenants: in the numbers alone, and in a scheduler that follows them."""

from bookkeeping import Bench, make_request

from looseleaf.engine.fairness import FIRST_GUESS, OUTPUT_COST, FairShares

COST = 100 + OUTPUT_COST * FIRST_GUESS


def served(places: dict[str, tuple[str, int]], count: int) -> list[str]:
    """The tenants of the first requests to be served."""
    return [tenant for tenant, _ in sorted(places.values(), key=lambda item: item[1])[:count]]


def fill(shares: FairShares, tenant: str, count: int, weight: float = 1.0) -> dict[str, tuple]:
    names = [f"{tenant}-{number}" for number in range(count)]
    return {name: (tenant, shares.enter(name, tenant, weight, 100, 1)) for name in names}


def test_a_crowd_delays_a_single_request_by_none_that_came_later() -> None:
    shares = FairShares()
    crowd = fill(shares, "crowd", 100)
    assert [place for _, place in crowd.values()] == [i * COST for i in range(100)]
    alone = shares.enter("alone", "alone", 1.0, 100, 1)
    assert sum(place < alone for _, place in crowd.values()) == 0
    shares.leave("alone", 100, FIRST_GUESS)
    # After ten of the crowd have been served, somebody new still waits for none but these.
    for number in range(10):
        shares.leave(f"crowd-{number}", 100, FIRST_GUESS)
    late = shares.enter("late", "late", 1.0, 100, 1)
    assert late == 10 * COST


def test_two_crowds_take_turns_and_weights_count() -> None:
    shares = FairShares()
    even = fill(shares, "a", 20) | fill(shares, "b", 20)
    assert served(even, 20).count("a") == 10
    shares = FairShares()
    uneven = fill(shares, "light", 40) | fill(shares, "heavy", 40, weight=3.0)
    assert 29 <= served(uneven, 40).count("heavy") <= 31


def test_a_pause_brings_no_credit() -> None:
    shares = FairShares()
    shares.enter("early", "sleeper", 1.0, 100, 1)
    shares.leave("early", 100, FIRST_GUESS)
    for name in fill(shares, "busy", 50):
        shares.leave(name, 100, FIRST_GUESS)
    shares.enter("now", "busy", 1.0, 100, 1)
    back = shares.enter("back", "sleeper", 1.0, 100, 1)
    assert back >= 50 * COST


def test_what_was_not_computed_is_not_charged() -> None:
    shares = FairShares()
    shares.enter("cached", "a", 1.0, 1000, 1)
    shares.leave("cached", 10, 5)
    assert shares.enter("next", "a", 1.0, 100, 1) == 10 + OUTPUT_COST * 5
    shares.leave("next", 0, 0)
    shares.leave("next", 0, 0)  # as often as one likes
    shares.leave("never came", 0, 0)


def test_the_scheduler_follows_the_places() -> None:
    bench = Bench(num_blocks=64, block_size=4, max_num_seqs=2, policy="fair")
    shares = FairShares()

    def add(name: str, tenant: str) -> None:
        place = shares.enter(name, tenant, 1.0, 8, 1)
        bench.add(make_request(name, 8, max_tokens=3, priority=place))

    for number in range(20):
        add(f"crowd-{number}", "crowd")
    for _ in range(4):
        bench.step()
    add("alone", "alone")
    while "alone" in bench.scheduler.requests:
        bench.step()
    left = [name for name in bench.scheduler.requests if name.startswith("crowd")]
    assert len(left) >= 20 - 6, "it waited for those that ran, and for none of those that waited"
    assert bench.scheduler.counters.preemptions == 0
    bench.run()
