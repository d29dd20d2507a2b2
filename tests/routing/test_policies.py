"""Who gets a request, by hand."""

from collections.abc import Sequence

import pytest

from looseleaf.routing.known_prefixes import KnownPrefixes
from looseleaf.routing.policies import POLICIES, LeastLoaded, PrefixAffinity, RoundRobin, router


def test_prefixes_are_known_from_their_first_block_on() -> None:
    known = KnownPrefixes(5)
    known.add([1, 2, 3])
    assert [known.match(h) for h in ([1, 2, 3, 4], [1, 9, 4], [8, 9], [])] == [3, 1, 0, 0]
    known.add([1, 7, 8])
    assert len(known) == 5
    known.add([1, 2])
    known.add([5])  # the ends of prompts are forgotten before their beginnings
    assert known.match([1, 2, 3]) == 2
    assert known.match([1, 7, 8]) == 3
    with pytest.raises(ValueError, match="at least 1"):
        KnownPrefixes(0)


def test_one_after_the_other_whoever_there_is() -> None:
    by_turns: RoundRobin[str] = RoundRobin()
    three = {"a": 0, "b": 9, "c": 0}
    assert [by_turns.route(three, ()) for _ in range(4)] == ["a", "b", "c", "a"]
    assert by_turns.route({"a": 0}, ()) == "a"
    assert by_turns.route({"c": 0, "d": 0}, ()) == "d"


def test_the_least_loaded_and_who_is_next_of_several() -> None:
    least: LeastLoaded[str] = LeastLoaded()
    assert [least.route({"a": 1, "b": 1, "c": 1}, ()) for _ in range(4)] == ["a", "b", "c", "a"]
    assert least.route({"a": 3, "b": 2, "c": 5}, ()) == "b"
    assert least.route({"a": 0, "b": 0, "c": 0}, ()) == "c"


def test_prompts_go_where_their_beginning_went() -> None:
    affine: PrefixAffinity[str] = PrefixAffinity()
    idle = {"a": 0, "b": 0}
    assert affine.route(idle, [1, 2]) == "a"
    assert affine.route(idle, [9]) == "b"
    assert [affine.route(idle, [1, 2, i]) for i in (3, 4, 5)] == ["a", "a", "a"]
    assert affine.route({"a": 4, "b": 0}, [1, 2, 3]) == "a"
    assert affine.route({"a": 0, "b": 0}, []) == "b"
    # Too much to do: the other one gets it, and has the beginning too from then on.
    assert affine.route({"a": 5, "b": 0}, [1, 2, 3]) == "b"
    assert affine.route({"a": 3, "b": 2}, [1, 2, 3]) == "b"
    assert affine.route({"a": 1, "b": 2}, [1, 2, 3]) == "a"
    assert affine.route({"a": 1, "b": 1}, [1, 2, 5, 6]) == "a"  # three of four blocks, not two


def test_what_all_prompts_begin_with_does_not_hold_them_together() -> None:
    affine: PrefixAffinity[str] = PrefixAffinity()
    idle = {"a": 0, "b": 0, "c": 0}
    prompts = [[0, 10 * i, 10 * i + 1, 10 * i + 2] for i in range(1, 7)]
    assert [affine.route(idle, prompt) for prompt in prompts] == list("abcabc")
    assert [affine.route(idle, [*prompt, 99]) for prompt in prompts] == list("abcabc")


def test_a_full_cache_counts_against_a_short_match() -> None:
    affine: PrefixAffinity[str] = PrefixAffinity(capacity=6)
    idle = {"a": 0, "b": 0}
    assert affine.route(idle, [1, 2, 3, 4]) == "a"
    assert affine.route(idle, [1, 2, 5, 6]) == "a"  # no room for more there
    assert affine.route(idle, [1, 2, 7, 8, 9]) == "b"  # two blocks found, three lost
    assert affine.route(idle, [1, 2, 3, 4, 10]) == "a"  # four found, one lost


def test_of_many_requests_a_quarter_more_than_the_mean_is_allowed() -> None:
    affine: PrefixAffinity[str] = PrefixAffinity()
    assert affine.route({"a": 0, "b": 0}, [1]) == "a"
    assert affine.route({"a": 124, "b": 76}, [1]) == "a"  # 125 of 201
    assert affine.route({"a": 126, "b": 75}, [1]) == "b"


def test_a_replica_that_comes_back_has_forgotten() -> None:
    affine: PrefixAffinity[str] = PrefixAffinity()
    assert affine.route({"a": 0, "b": 0}, [1]) == "a"
    assert affine.route({"b": 0}, [2]) == "b"
    assert affine.route({"a": 0, "b": 0}, [2]) == "b"
    assert affine.route({"a": 1, "b": 0}, [1]) == "b"


def test_names_of_policies() -> None:
    def hits(policy: str) -> int:
        routing = router(policy)
        caches: list[KnownPrefixes] = [KnownPrefixes(100) for _ in range(3)]
        prompts: Sequence[Sequence[int]] = [(i % 4, 10 + i % 4) for i in range(40)]
        found = 0
        for prompt in prompts:
            chosen = routing.route(dict.fromkeys(range(3), 0), prompt)
            found += caches[chosen].match(prompt)
            caches[chosen].add(prompt)
        return found

    assert {policy: hits(policy) for policy in POLICIES} == {
        "round-robin": 2 * (40 - 12),
        "least-loaded": 2 * (40 - 12),
        "prefix-affinity": 2 * (40 - 4),
    }
    with pytest.raises(ValueError, match="choose one of round-robin"):
        router("random")
