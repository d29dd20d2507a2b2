"""Limits: how they are written, and whether they are kept."""

import pytest

from looseleaf.core.errors import ConfigError
from looseleaf.core.request import FinishReason, RequestId
from looseleaf.planner.replay import Outcome
from looseleaf.planner.slo import Limit, as_lines, parse_slo


def outcome(first: float | None, end: float, tokens: int, *, ended: bool = True) -> Outcome:
    reason = FinishReason.LENGTH if ended else FinishReason.ABORT
    return Outcome(RequestId("0/0"), 1.0, 1.0, first, end, 10, tokens, 0, 0, reason, True)


def test_how_limits_are_written() -> None:
    assert parse_slo("ttft=1s,tpot=50ms").limits == (Limit("ttft", 1.0), Limit("tpot", 0.05))
    assert parse_slo(" e2e = 2min , e2e_p=0.5").limits == (Limit("e2e", 120.0, 0.5),)
    assert parse_slo("tpot_p=1,tpot=0.2").limits == (Limit("tpot", 0.2, 1.0),)
    assert (
        str(parse_slo("ttft=1s,tpot=50ms,tpot_p=0.999")) == "ttft p95 <= 1 s, tpot p99.9 <= 0.05 s"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no limit"),
        ("speed=3", "'speed=3' is no limit"),
        ("ttft", "is no limit"),
        ("ttft=fast", "must be a time"),
        ("ttft=0s", "must be a time"),
        ("ttft=1s,ttft_p=95", "above 0 and at most 1"),
        ("ttft=1s,tpot_p=0.9", "tpot"),
    ],
)
def test_mistakes(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_slo(text)


def test_what_is_measured() -> None:
    slo = parse_slo("ttft=1s,ttft_p=0.5,tpot=0.2s,tpot_p=0.5,e2e=10s,e2e_p=1")
    outcomes = [
        outcome(1.5, 2.5, 11),
        outcome(2.5, 4.5, 11),
        outcome(1.5, 3.5, 1),  # no time between tokens
        outcome(9.0, 9.5, 2, ended=False),  # given up: nobody's limit
    ]
    ttft, tpot, e2e = slo.measured(outcomes)
    assert (ttft.value, tpot.value, e2e.value) == (0.5, pytest.approx(0.15), 3.5)
    assert ttft.met
    assert tpot.met
    assert e2e.met
    assert slo.attainment(outcomes) == pytest.approx(2 / 3)
    assert not parse_slo("e2e=3s,e2e_p=1").measured(outcomes)[0].met
    told = as_lines(slo.as_json(outcomes))
    assert told[0] == "limit     ttft p50 500.0 ms, at most 1.00 s: kept"
    assert "66.7%" in told[-1]


def test_nobody_breaks_what_nobody_has() -> None:
    slo = parse_slo("tpot=1ms")
    assert slo.measured([outcome(2.0, 2.0, 1)])[0] == (Limit("tpot", 0.001), None)
    assert slo.measured([outcome(2.0, 2.0, 1)])[0].met
    assert slo.attainment([]) == 1
