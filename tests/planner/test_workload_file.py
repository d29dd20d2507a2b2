"""Workloads in YAML: what is drawn is what was asked for, and mistakes are told."""

import itertools
import math
import random
from collections import Counter
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

import pytest

from looseleaf.core.errors import ConfigError
from looseleaf.planner.distribution import (
    Exponential,
    LogNormal,
    Uniform,
    mean_whole,
    read_cdf,
    whole,
)
from looseleaf.planner.recorded_trace import read_workload
from looseleaf.planner.trace_types import Trace, TraceRequest
from looseleaf.planner.workload import prompt_tokens
from looseleaf.planner.workload_file import _KEYS

EXAMPLE = Path(__file__).resolve().parents[2] / "deploy" / "workload.yaml"
ONE = "prompt: 100\noutput: 10\n"


def drawn(folder: Path, text: str, **options: Any) -> Trace:
    path = folder / "workload.yaml"
    path.write_text(text)
    return read_workload(path, **options)


def starts(trace: Trace) -> list[float]:
    return [r.arrival or 0.0 for r in trace.requests if not r.num_history]


def gaps(trace: Trace) -> list[float]:
    return [later - before for before, later in itertools.pairwise(starts(trace))]


@pytest.mark.parametrize(
    ("arrivals", "cv"),
    [
        ("{rate: 20}", 1.0),
        ("{process: gamma, rate: 20, cv: 2.5}", 2.5),
        ("{process: gamma, rate: 20, cv: 0.5}", 0.5),
        ("{process: constant, rate: 20}", 0.0),
    ],
)
def test_arrivals_have_their_rate_and_spread(tmp_path: Path, arrivals: str, cv: float) -> None:
    trace = drawn(tmp_path, f"requests: 6000\narrivals: {arrivals}\n{ONE}")
    found = gaps(trace)
    assert len(trace.requests) == 6000
    assert fmean(found) == pytest.approx(0.05, rel=0.08)
    assert pstdev(found) / fmean(found) == pytest.approx(cv, rel=0.08, abs=1e-9)
    assert trace.requests[0].arrival == 0


def test_a_rate_counts_the_turns_of_sessions(tmp_path: Path) -> None:
    text = f"duration: 1000\narrivals: {{rate: 12}}\nturns: {{uniform: [1, 5]}}\n{ONE}"
    trace = drawn(tmp_path, text)
    assert len(trace.requests) == pytest.approx(12_000, rel=0.06)
    assert max(starts(trace)) <= 1000
    assert len(starts(trace)) == pytest.approx(4000, rel=0.06)


def test_the_same_seed_is_the_same_traffic_and_a_rate_changes_only_times(tmp_path: Path) -> None:
    text = "requests: 300\nseed: 4\narrivals: {{rate: {}}}\n" + ONE.replace(
        "100", "{{exponential: 300}}"
    )
    one = drawn(tmp_path, text.format(5))
    assert one == drawn(tmp_path, text.format(5))
    lengths = [r.num_prompt_tokens for r in one.requests]
    assert [r.num_prompt_tokens for r in drawn(tmp_path, text.format(50)).requests] == lengths
    other = drawn(tmp_path, text.format(5), seed=5)
    assert [r.num_prompt_tokens for r in other.requests] != lengths


def test_history_grows_and_answers_are_in_it(tmp_path: Path) -> None:
    trace = drawn(
        tmp_path,
        "requests: 40\narrivals: {rate: 1}\nprompt: 33\noutput: 20\nturns: 4\n"
        "think: 2\nshared_prefix: {length: 50, groups: 2}\n",
    )
    one = [r for r in trace.requests if r.session == 3]
    assert [r.num_history for r in one] == [0, 117, 170, 223]
    # The prefix of 50 is of whole blocks of 16.
    assert [r.num_prompt_tokens for r in one] == [97, 150, 203, 256]
    assert [r.delay for r in one] == [0, 2, 2, 2]
    for before, later in itertools.pairwise(one):
        assert later.hash_ids[: len(before.hash_ids)] == before.hash_ids
        assert len(later.hash_ids) == later.num_prompt_tokens // 16
    beginnings = {r.hash_ids[:4] for r in trace.requests}
    assert len(beginnings) == 2
    owned = [set(r.hash_ids[4:]) for r in trace.requests if not r.num_history]
    assert len(set.union(*owned)) == sum(map(len, owned))


def test_prefixes_are_shared_by_so_many(tmp_path: Path) -> None:
    text = "requests: 6000\narrivals: {{rate: 1}}\n" + ONE + "shared_prefix: {}\n"
    trace = drawn(tmp_path, text.format("{length: 64, groups: 5, share: 0.6, zipf: 1}"))
    found = Counter(r.hash_ids[:4] for r in trace.requests if r.hash_ids[0] < 20)
    counts = [count for _, count in found.most_common()]
    assert sum(counts) / 6000 == pytest.approx(0.6, abs=0.03)
    assert counts[0] / counts[1] == pytest.approx(2, rel=0.15)
    assert counts[0] / counts[4] == pytest.approx(5, rel=0.25)
    even = drawn(tmp_path, text.format("{length: 64, groups: 5}"))
    assert min(Counter(r.hash_ids[:4] for r in even.requests).values()) > 1000
    first, second = (prompt_tokens(r, i, 16) for i, r in enumerate(even.requests[:2]))
    assert (first[:64] == second[:64]) == (
        even.requests[0].hash_ids[0] == even.requests[1].hash_ids[0]
    )
    assert set(first[64:]).isdisjoint(second[64:])


def test_classes_weights_and_what_they_ask_for(tmp_path: Path) -> None:
    trace = drawn(
        tmp_path,
        """
duration: 2000
arrivals: {rate: 4}
classes:
  - {name: a, weight: 3, prompt: 10, output: 10, n: 3, priority: -2}
  - {name: b, prompt: 20, output: 40, aborts: {share: 0.25, after: {uniform: [1, 39]}}}
  - {prompt: 30, output: 5, beam_width: 4}
""",
    )
    kinds = Counter(r.num_prompt_tokens for r in trace.requests)
    assert kinds[10] / len(trace.requests) == pytest.approx(0.6, abs=0.02)
    by_kind = {n: next(r for r in trace.requests if r.num_prompt_tokens == n) for n in kinds}
    assert (by_kind[10].num_samples, by_kind[10].priority) == (3, -2)
    assert by_kind[30].beam_width == 4
    second = [r for r in trace.requests if r.num_prompt_tokens == 20]
    left = [r.leaves_after for r in second if r.leaves_after is not None]
    assert len(left) / len(second) == pytest.approx(0.25, abs=0.04)
    assert fmean(left) == pytest.approx(20, rel=0.1)
    assert all(r.leaves_after is None for r in trace.requests if r.num_prompt_tokens != 20)


def test_a_closed_loop(tmp_path: Path) -> None:
    text = f"requests: 50\narrivals: {{users: 7, think: {{exponential: 3}}}}\n{ONE}"
    trace = drawn(tmp_path, text)
    assert (trace.users, len(trace.requests)) == (7, 50)
    assert {r.arrival for r in trace.requests} == {0.0}
    assert fmean(r.delay for r in trace.requests) == pytest.approx(3, rel=0.5)


def test_lengths_have_the_distributions_they_should() -> None:
    rng = random.Random(0)
    shares = [rng.random() for _ in range(20_000)]

    def values(distribution: Any) -> list[float]:
        return [distribution.at(share) for share in shares]

    assert fmean(values(Uniform(10, 20))) == pytest.approx(15, rel=0.01)
    assert fmean(values(Exponential(80))) == pytest.approx(80, rel=0.03)
    found = values(LogNormal.of_mean(400, 1.5))
    assert fmean(found) == pytest.approx(400, rel=0.05)
    assert pstdev(found) / fmean(found) == pytest.approx(1.5, rel=0.15)
    found = sorted(values(LogNormal.of_p95(100, 900)))
    assert median(found) == pytest.approx(100, rel=0.03)
    assert found[19_000] == pytest.approx(900, rel=0.06)
    assert whole(Exponential(0.01), 0.3) == 1
    assert mean_whole(Uniform(1, 6)) == pytest.approx(3.5)


@pytest.mark.parametrize(
    "name", ["azure_cdf", "lmsys_cdf", "lmsys_multiturn_cdf", "agent_heavy_cdf"]
)
def test_cdfs_as_they_come(shared_dir: Path, name: str) -> None:
    path = shared_dir / "traces" / "cdfs" / f"{name}.json"
    cdf = read_cdf(path)
    for value, share in zip(cdf.values, cdf.shares, strict=True):
        assert cdf.at(share) <= value + 1e-9
    trace = read_workload(path, output_share=0.25, num_drawn=4000)
    assert (len(trace.requests), trace.timed) == (4000, False)
    totals = [r.num_prompt_tokens + r.num_output_tokens for r in trace.requests]
    for value, share in zip(cdf.values, cdf.shares, strict=True):
        assert sum(t <= value for t in totals) / 4000 == pytest.approx(share, abs=0.03)
    assert sum(r.num_output_tokens for r in trace.requests) / sum(totals) == pytest.approx(
        0.25, abs=0.01
    )


def test_a_workload_names_a_cdf_beside_it(tmp_path: Path) -> None:
    (tmp_path / "lengths.json").write_text("[[100, 0.5], [200, 1.0]]")
    text = "requests: 500\narrivals: {rate: 1}\nprompt: {cdf: lengths.json, min: 150}\noutput: 1\n"
    lengths = [r.num_prompt_tokens for r in drawn(tmp_path, text).requests]
    assert (min(lengths), max(lengths) <= 200) == (150, True)
    assert lengths.count(150) / 500 == pytest.approx(0.75, abs=0.08)


def test_the_example_of_the_documentation() -> None:
    trace = read_workload(EXAMPLE)
    assert len(trace.requests) == 600
    assert {r.num_samples for r in trace.requests} == {1, 4}
    assert {r.beam_width for r in trace.requests} == {0, 4}
    assert any(r.leaves_after for r in trace.requests)
    text = (EXAMPLE.parents[1] / "docs" / "workloads.md").read_text()
    for key in _KEYS:
        assert f"`{key}`" in text, key


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", r"workload.yaml must hold settings"),
        ("arrivals: [", r"workload.yaml is not valid YAML"),
        ("request: 5", r"there is no key 'request'; did you mean requests\?"),
        (ONE + "requests: 5", r"arrivals is missing"),
        (ONE + "arrivals: {rate: 1}", r"say how much there is: requests, or duration"),
        (ONE + "arrivals: {rate: 1}\nrequests: 5\nduration: 4", r"say how much there is"),
        (
            ONE + "arrivals: {rate: 0}\nrequests: 5",
            r"arrivals: rate is 0, but it must be .* above 0",
        ),
        (ONE + "arrivals: {rat: 2}\nrequests: 5", r"arrivals: there is no key 'rat'; did you mean"),
        (ONE + "arrivals: {process: bursty}\nrequests: 5", r"process is 'bursty'.*poisson, gamma"),
        (ONE + "arrivals: {rate: 2, cv: 2}\nrequests: 5", r"cv means nothing where .* poisson"),
        (ONE + "arrivals: {users: 2}\nduration: 5", r"a closed loop needs requests"),
        (ONE + "arrivals: {rate: 1}\nrequests: 0", r"requests is 0, .* from 1 to 1000000"),
        (ONE + "arrivals: {rate: 1000}\nduration: 5000", r"duration is 5000, .* at most 1000"),
        ("prompt: ten\noutput: 1\narrivals: {rate: 1}\nrequests: 1", r"prompt is 'ten', but it"),
        ("output: 1\narrivals: {rate: 1}\nrequests: 1", r"prompt is missing, but it must"),
        (ONE + "total: 5\narrivals: {rate: 1}\nrequests: 1", r"say prompt and output, or total"),
        (ONE + "n: 200\narrivals: {rate: 1}\nrequests: 1", r"n is 200, .* from 1 to 128"),
        (ONE + "n: 2\nbeam_width: 2\narrivals: {rate: 1}\nrequests: 1", r"n is not for a beam"),
        (ONE + "beam_width: 11\narrivals: {rate: 1}\nrequests: 1", r"beam_width is 11"),
        (
            ONE + "turns: {uniform: [6, 2]}\narrivals: {rate: 1}\nrequests: 1",
            r"turns: uniform is \[6, 2\], but it must be the smaller number first",
        ),
        (
            ONE + "turns: {uniform: [1, 2], exponential: 2}\narrivals: {rate: 1}\nrequests: 1",
            r"turns must have one of uniform",
        ),
        (
            ONE + "think: {normal: 2}\narrivals: {rate: 1}\nrequests: 1",
            r"think: there is no key 'normal'",
        ),
        (
            "prompt: {cdf: [[10, 0.5], [5, 1]]}\noutput: 1\narrivals: {rate: 1}\nrequests: 1",
            r"prompt: cdf: value 5 comes after 10",
        ),
        (
            "prompt: {cdf: [[10, 0.5]]}\noutput: 1\narrivals: {rate: 1}\nrequests: 1",
            r"its last share is 0.5, but it must be 1",
        ),
        (
            "prompt: {cdf: nowhere.json}\noutput: 1\narrivals: {rate: 1}\nrequests: 1",
            r"nowhere.json cannot be read: No such file",
        ),
        (
            "prompt: {lognormal: {median: 9, p95: 3}}\noutput: 1\narrivals: {rate: 1}\nrequests: 1",
            r"lognormal: p95 is 3, but it must be a number above 9",
        ),
        (
            "classes: [{prompt: 1, output: 1, wieght: 2}]\narrivals: {rate: 1}\nrequests: 1",
            r"classes\[0\]: there is no key 'wieght'; did you mean weight\?",
        ),
        (
            ONE + "classes: [{prompt: 1, output: 1}]\narrivals: {rate: 1}\nrequests: 1",
            r"prompt is of one class",
        ),
    ],
)
def test_mistakes_are_told(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        drawn(tmp_path, text)


def test_more_than_memory_holds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("looseleaf.planner.synthetic.MAX_PROMPT_TOKENS", 10_000)
    text = "prompt: 3000\noutput: 1\narrivals: {rate: 1}\nrequests: {}"
    drawn(tmp_path, text.replace("{}", "3"))
    with pytest.raises(ConfigError, match=r"first 4 requests have 12000 tokens .* at most 10000"):
        drawn(tmp_path, text.replace("{}", "100"))


def test_a_cdf_needs_to_know_what_the_answer_is(tmp_path: Path) -> None:
    path = tmp_path / "lengths.json"
    path.write_text("[[100, 1.0]]")
    with pytest.raises(ConfigError, match="--output-share"):
        read_workload(path)
    with pytest.raises(ConfigError, match="output_share is 1, but"):
        read_workload(path, output_share=1)
    path.write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        read_workload(path, output_share=0.5)
    path.write_text('{"cdf": [[100, "x"]]}')
    with pytest.raises(ConfigError, match="is no CDF"):
        read_workload(path, output_share=0.5)


def test_what_leaves_is_told_by_its_length() -> None:
    request = TraceRequest(0.0, 5, 50, leaves_after=7)
    assert (request.num_answered, request._replace(leaves_after=None).num_answered) == (7, 50)
    assert math.isclose(Uniform(0, 2).at(0.5), 1)
