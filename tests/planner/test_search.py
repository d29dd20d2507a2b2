"""The largest rate that keeps limits, against trying many."""

import dataclasses

import pytest
from planning import linear_times

from looseleaf.core.errors import ConfigError
from looseleaf.engine.memory import MemoryPlan
from looseleaf.engine.settings import EngineSettings
from looseleaf.planner.price import price
from looseleaf.planner.search import (
    PRECISION,
    QUEUE,
    Scenario,
    attempt,
    largest_load,
    replicas_needed,
)
from looseleaf.planner.search_report import Found, Needed, as_json, as_text, warnings
from looseleaf.planner.slo import parse_slo
from looseleaf.planner.trace_types import Trace, TraceRequest


def scenario(limits: str, *, num: int = 60, gap: float = 1.0, seats: int = 8) -> Scenario:
    """Prompts of 50 tokens, which take 19 ms, and answers of 10."""
    requests = tuple(TraceRequest(gap * i, 50, 10) for i in range(num))
    return Scenario(
        trace=Trace(requests, (), True, 16),
        settings=EngineSettings(max_num_batched_tokens=128, max_num_seqs=seats),
        memory=MemoryPlan(400, 16, 1, 6400),
        times=linear_times(),
        slo=parse_slo(limits),
    )


def found(one: Scenario, **settings: float) -> Found:
    rate = largest_load(one)
    needed = None
    if rate.rate is not None:
        needed = Needed(one.demand, replicas_needed(one, rate.rate), 64)
    return Found(
        scenario=one,
        by_size={16: rate},
        best=16,
        needed=needed,
        devices_per_replica=2,
        price_per_hour=settings.get("price"),
        model="tiny",
        hardware="paper",
        cost_model="linear",
        known_error="none",
    )


@pytest.mark.parametrize(
    ("limits", "binding"),
    [("ttft=40ms", "ttft p95"), ("tpot=10ms", "tpot p95"), ("tpot=1s", QUEUE)],
)
def test_the_rate_is_kept_and_a_little_more_is_not(limits: str, binding: str) -> None:
    one = scenario(limits)
    rate = largest_load(one)
    assert rate.binding == binding
    assert rate.best is not None
    assert rate.rate == pytest.approx(rate.best.load)  # one request a second, times as fast
    assert attempt(one, rate.best.load).kept
    assert not attempt(one, PRECISION * rate.best.load).kept
    assert rate.best.summary is not None
    assert rate.best.summary.requests == 60
    assert rate.num_trials < 20
    # From elsewhere it is found as well, to the precision.
    other = largest_load(one, start=1000.0, step=3)
    assert other.rate is not None
    assert 1 / PRECISION < other.rate / rate.rate < PRECISION


def closed(limits: str, users: int = 4, num: int = 80, **changed: int) -> Scenario:
    one = scenario(limits, num=num, gap=0.0, seats=16)
    return dataclasses.replace(one, trace=one.trace._replace(users=users), **changed)


@pytest.mark.parametrize("users", [1, 4, 60])
@pytest.mark.parametrize(
    ("limits", "binding"), [("ttft=60ms", "ttft p95"), ("tpot=12ms", "tpot p95")]
)
def test_of_a_closed_loop_the_most_clients(limits: str, binding: str, users: int) -> None:
    one = closed(limits, users)
    kept = [n for n in range(1, 30) if attempt(one, n).kept]
    most = largest_load(one)
    assert most.best is not None
    assert most.best.load == kept[-1] == len(kept)
    assert most.binding == binding
    assert 2 < most.best.load < 20
    summary = most.best.summary
    assert summary is not None
    assert most.rate == pytest.approx(80 / summary.duration)
    assert largest_load(one, start=1, step=1.1).best == most.best


def test_a_closed_loop_that_keeps_or_breaks_all() -> None:
    every = largest_load(closed("tpot=1s", num=12))
    assert every.best is not None
    assert (every.best.load, every.binding) == (12, None)
    assert largest_load(closed("ttft=5ms"))[:3] == (None, None, "ttft p95")
    (warning,) = warnings(found(closed("ttft=5ms")))
    assert "no concurrency keeps the limits" in warning


def test_a_report_of_a_closed_loop() -> None:
    one = closed("ttft=60ms", users=40)
    report, told = as_json(found(one, price=2.0)), as_text(found(one, price=2.0))
    best, needed = report["best"], report["replicas_needed"]
    assert needed["concurrency"] == 40
    assert needed["replicas"] * best["concurrency"] >= 0.8 * 40
    assert needed["replicas"] > 1
    assert not attempt(one, 40, needed["replicas"] - 1).kept
    assert needed["rate"] > best["rate"]
    clients = f"up to {best['concurrency']} clients at once"
    for words in ("clients", clients, "for 40 clients at once: ", "of the whole replay"):
        assert words in told


def test_no_rate_keeps_what_a_single_request_breaks() -> None:
    one = scenario("ttft=5ms")
    rate = largest_load(one)
    assert (rate.best, rate.rate, rate.binding, rate.num_trials) == (None, None, "ttft p95", 2)
    (warning,) = warnings(found(one))
    assert "no rate keeps the limits: ttft p95" in warning
    assert "none" in as_text(found(one))


def test_a_trace_too_short_to_tell() -> None:
    one = scenario("ttft=4s", num=20)
    assert any("the trace is short" in warning for warning in warnings(found(one)))
    one = scenario("ttft=20s", num=2, seats=2)
    one = dataclasses.replace(one, num_replicas=2)
    assert largest_load(one).binding is None
    assert any("all 2 requests at once" in warning for warning in warnings(found(one)))


def test_replicas_for_a_load() -> None:
    one = dataclasses.replace(scenario("ttft=100ms", gap=0.008), routing="least-loaded")
    rate = largest_load(one)
    assert rate.rate is not None
    needed = replicas_needed(one, rate.rate)
    assert needed is not None
    assert needed.num_replicas > 1
    assert needed.kept
    assert not attempt(one, 1.0, needed.num_replicas - 1).kept
    for wrong in (0.3 * rate.rate, 3 * rate.rate):
        again = replicas_needed(one, wrong)
        assert again is not None
        assert again.num_replicas == needed.num_replicas
    calm = replicas_needed(scenario("ttft=100ms"), 1.0)
    assert calm is not None
    assert calm.num_replicas == 1


def test_what_it_costs() -> None:
    cost = price(2, 1000.0, 200.0, 3.0)
    assert cost.device_hours_per_million_tokens == pytest.approx(2 * 1000 / 3600)
    assert cost.per_million_output_tokens == pytest.approx(3 * 2 * 5000 / 3600)
    assert price(2, 1000.0, 200.0, None).per_million_tokens is None


def test_the_report() -> None:
    report = as_json(found(scenario("ttft=40ms,tpot=1s"), price=2.0))
    best, needed = report["best"], report["replicas_needed"]
    assert best["binding"] == "ttft p95"
    assert [one["metric"] for one in best["measured"]] == ["ttft", "tpot"]
    hours = best["cost"]["device_hours_per_million_tokens"]
    assert hours == pytest.approx(2 / 3600 / (60 * best["rate"]) * 1e6)
    assert best["cost"]["per_million_output_tokens"] == pytest.approx(2 * 6 * hours)
    assert (needed["replicas"], needed["rate"]) == (1, 1.0)
    told = as_text(found(scenario("ttft=40ms,tpot=1s"), price=2.0))
    for words in ("block size", "ttft p95", "best: block_size 16", "at 2 an hour", "1 replica "):
        assert words in told
    assert "device hours" in as_text(found(scenario("ttft=100ms")))


def test_requests_that_come_all_at_once_have_no_rate() -> None:
    with pytest.raises(ConfigError, match="--rate"):
        largest_load(scenario("ttft=1s", gap=0.0))
