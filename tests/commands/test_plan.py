"""`looseleaf plan`"""

import json
from pathlib import Path

import pytest

from looseleaf.commands.plan_recording import PlanRecorder
from looseleaf.studio.frames import Snapshot
from looseleaf.studio.picture import Picture
from looseleaf.studio.recording import frames_of
from looseleaf.studio.showcase import Showcase, Traffic

MODEL = ("--model", "meta-llama/Llama-3.1-8B", "--hardware", "RTX-4090")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Eleven requests, the last too long for anything, and two rows that are none."""
    path = tmp_path / "trace.jsonl"
    rows = [
        {
            "timestamp": 100 * i,
            "input_length": 1000,
            "output_length": 20,
            "hash_ids": [1, 100 + i],
        }
        for i in range(10)
    ]
    rows.append({"timestamp": 2000, "input_length": 10**6, "output_length": 1, "hash_ids": []})
    lines = [json.dumps(row) for row in rows]
    lines.insert(3, "{")
    lines.append('{"timestamp": "x", "input_length": 1, "output_length": 1}')
    path.write_text("\n".join(lines))
    return path


def test_a_report(call, trace: Path) -> None:
    report = call("plan", str(trace), *MODEL, "--json").json
    summary = report["summary"]
    assert (summary["requests"], summary["refused"]) == (10, 1)
    assert (summary["prompt_tokens"], summary["output_tokens"]) == (10_000, 200)
    assert summary["prefix_hits"] == 9 * 512
    assert 0 < summary["ttft"]["p50"] < summary["e2e"]["p50"] < 5
    assert 0.01 < summary["tpot"]["p50"] < 0.1
    assert report["trace"]["bad_rows"] == 2
    assert report["trace"]["first_bad_rows"] == [
        {"line": 4, "reason": "is not JSON"},
        {"line": 13, "reason": "timestamp is 'x', but it must be a number from 0 to 2^53"},
    ]
    assert report["kv_cache"]["block_size"] == 16
    assert report["settings"]["max_num_seqs"] == 256
    assert "roofline" in report["cost_model"]["name"]
    assert "1000000 tokens" in report["first_refused"][0]["reason"]
    assert any("can never fit" in warning for warning in report["warnings"])


def test_for_people(call, trace: Path) -> None:
    outcome = call("plan", str(trace), *MODEL)
    assert outcome.status == 0
    for told in (
        "10 requests in",
        "time to first token",
        "46.1% of the prompt tokens found stored",
        "line 4: is not JSON",
        "warning: 1 requests can never fit",
        "roofline of",
    ):
        assert told in outcome.out
    assert "us a token" in outcome.err


def test_settings_matter(call, trace: Path) -> None:
    base = call("plan", str(trace), *MODEL, "--json").json["summary"]
    for options, worse in (
        (("--max-num-seqs", "1"), lambda s: s["waiting_peak"] > base["waiting_peak"]),
        (("--num-blocks", "70"), lambda s: s["waiting_peak"] > base["waiting_peak"]),
        (("--no-enable-prefix-caching",), lambda s: s["ttft"]["mean"] > base["ttft"]["mean"]),
        (("--bandwidth-efficiency", "0.4"), lambda s: s["tpot"]["mean"] > base["tpot"]["mean"]),
        (("--step-overhead", "0.1"), lambda s: s["tpot"]["mean"] > base["tpot"]["mean"]),
        (("--speed", "10"), lambda s: s["duration"] < base["duration"]),
        (("--limit", "2"), lambda s: s["requests"] == 2),
        (("--kv-allocator", "contiguous-max"), lambda s: s["prefix_hits"] == 0),
    ):
        assert worse(call("plan", str(trace), *MODEL, "--json", *options).json["summary"]), options


def test_lengths_alone_need_a_rate(call, tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n" + "300,20\n" * 50)
    call("plan", str(path), *MODEL).check_refused("--rate")
    report = call("plan", str(path), *MODEL, "--rate", "5", "--json").json
    assert report["summary"]["requests"] == 50
    assert 5 < report["summary"]["duration"] < 20
    assert any("does not say what prompts share" in w for w in report["warnings"])


def test_measured_kernels(call, shared_dir: Path) -> None:
    folder = shared_dir / "traces" / "llmservingsim"
    profile = sorted((folder / "profile").glob("*4090*_attention.csv"))[0]
    prefix = str(profile).removesuffix("_attention.csv")
    report = call(
        *("plan", str(folder / "sharegpt-300.jsonl"), *MODEL, "--limit", "30"),
        *("--kernel-profile", prefix, "--num-blocks", "2588", "--json"),
    ).json
    assert report["cost_model"]["name"].startswith("kernels of")
    assert report["summary"]["requests"] == 30
    assert 0.01 < report["summary"]["tpot"]["p50"] < 0.1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rate", "0"), ("rate is 0",)),
        (("--speed", "-1"), ("speed is -1",)),
        (("--hardware", "abacus"), ("abacus",)),
        (("--kernel-profile", "x", "--compute-efficiency", "0.5"), ("no efficiencies",)),
        (("--compute-efficiency", "2"), ("compute_efficiency is 2",)),
        (("--routing", "random", "--replicas", "2"), ("round-robin",)),
        (("--search",), ("--slo",)),
        (("--slo", "ttft=soon"), ("'soon'", "like 1.5s or 50ms")),
        (("--sweep", "block_size"), ("block_size=8,16,32",)),
        (("--sweep", "blocks_size=8"), ("blocks_size", "did you mean block_size", "max_num_seqs")),
        (("--sweep", "block_size=8,x"), ("--block-size", "'x'")),
        (("--sweep", "enable_prefix_caching=maybe"), ("maybe", "true or false")),
        (("--sweep", "seed=1", "--sweep", "seed=2"), ("seed is swept twice",)),
        (("--sweep", "json=1"), ("json",)),
        (("--sweep", "seed=1", "--search", "--slo", "ttft=1s"), ("leave out one",)),
        (("--sweep", "max_model_len=9999999"), ("max_model_len",)),
        (("--price-per-hour", "0"), ("must be above 0",)),
    ],
)
def test_mistakes(call, trace: Path, options: tuple[str, ...], words: tuple[str, ...]) -> None:
    call("plan", str(trace), *MODEL, *options).check_refused(*words)


def test_a_trace_that_is_not_there(call) -> None:
    call("plan", "nowhere.jsonl", *MODEL).check_refused("nowhere.jsonl", "No such file")


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    """Twenty conversations of three turns, each of which begins with all that was said before."""
    rows = []
    for talk in range(20):
        for turn in range(3):
            hash_ids = [10 * talk + part for part in range(turn + 2)]
            rows.append(
                {
                    "timestamp": 1700 * talk + 4100 * turn,
                    "input_length": 512 * len(hash_ids),
                    "output_length": 40,
                    "hash_ids": hash_ids,
                }
            )
    rows.sort(key=lambda row: row["timestamp"])
    path = tmp_path / "talks.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_replicas(call, talks: Path) -> None:
    asked = ("plan", str(talks), *MODEL, "--replicas", "4")
    by_turns = call(*asked, "--json").json
    affine = call(*asked, "--routing", "prefix-affinity", "--json").json
    assert by_turns["replicas"]["routing"] == "round-robin"
    assert [one["requests"] for one in by_turns["replicas"]["summaries"]] == [15] * 4
    assert affine["summary"]["hit_rate"] > 1.3 * by_turns["summary"]["hit_rate"]
    assert any("round-robin over 4 replicas lowers" in w for w in by_turns["warnings"])
    assert affine["warnings"] == []
    told = call(*asked, "--slo", "ttft=1ms,tpot=1s").out
    for words in ("4 replicas, round-robin", "KV peak", "at most 1.0 ms: NOT kept", "1.00 s: kept"):
        assert words in told


def test_a_sweep_is_the_same_however_many_processes(call, talks: Path) -> None:
    base = ("plan", str(talks), *MODEL, "--limit", "20", "--slo", "ttft=1s", "--json")
    asked = (
        *base,
        "--num-blocks",
        "2000",
        "--sweep",
        "block_size=16,64",
        "--sweep",
        "replicas=1,2",
    )
    one, two = call(*asked), call(*asked, "--jobs", "2")
    assert one.out == two.out
    points = one.json["points"]
    assert [point["settings"] for point in points] == [
        {"block_size": size, "replicas": num} for size in (16, 64) for num in (1, 2)
    ]
    assert [point["num_blocks"] for point in points] == [2000, 2000, 500, 500]
    alone = call(*base, "--num-blocks", "500", "--block-size", "64", "--replicas", "2").json
    assert {name: alone[name] for name in ("summary", "slo", "warnings")} == {
        name: points[3][name] for name in ("summary", "slo", "warnings")
    }


def test_a_sweep_of_folders(call, talks: Path) -> None:
    asked = ("plan", str(talks), *MODEL, "--limit", "5", "--sweep", "kv_disk=a,b", "--json")
    found = [point["settings"] for point in call(*asked).json["points"]]
    assert found == [{"kv_disk": "a"}, {"kv_disk": "b"}]


def test_a_sweep_for_people(call, talks: Path) -> None:
    asked = ("plan", str(talks), *MODEL, "--limit", "10")
    told = call(*asked, "--sweep", "hardware=a100-40gb,rtx-4090").out.splitlines()
    titles = ["hardware", "output/s", "ttft", "p95", "tpot", "p95", "hits", "unfilled", "preempted"]
    assert told[0].split() == titles
    assert [row.split()[0] for row in told[1:3]] == ["a100-40gb", "rtx-4090"]
    assert "██" in told[1]
    told = call(*asked, "--sweep", "max_model_len=4000,9999999").out.splitlines()
    assert "-" in told[2]
    assert told[3].startswith("max_model_len 9999999: a request of max_model_len 9999999 tokens")


def test_a_search(call, talks: Path) -> None:
    asked = ("plan", str(talks), *MODEL, "--limit", "8", "--search")
    limits = ("--slo", "ttft=1s,tpot=60ms", "--price-per-hour", "2.5")
    one, two = call(*asked, *limits, "--json"), call(*asked, *limits, "--jobs", "2", "--json")
    assert one.out == two.out
    report = one.json
    assert [row["block_size"] for row in report["block_sizes"]] == [8, 16, 32, 64]
    best, needed = report["best"], report["replicas_needed"]
    assert best["rate"] >= max(row["rate"] for row in report["block_sizes"]) / 1.02
    assert 1 < best["rate"] < 50
    assert best["binding"] in ("ttft p95", "tpot p95", "queue")
    assert all(one["met"] for one in best["measured"])
    assert needed["replicas"] == 1
    assert 0 < best["cost"]["per_million_tokens"] < needed["cost"]["per_million_tokens"]
    told = call(*asked, "--slo", "ttft=1us").out
    for words in ("then broken", "no rate keeps the limits: ttft p95", "assumed: "):
        assert words in told


def test_a_closed_loop_on_replicas_and_in_a_search(call, talks: Path) -> None:
    asked = ("plan", str(talks), *MODEL, "--limit", "12", "--concurrency", "2", "--swap-space", "1")
    report = call(*asked, "--replicas", "2", "--json").json
    assert (report["trace"]["users"], report["replicas"]["num_replicas"]) == (2, 2)
    assert report["swap"]["space"] == 2 * 2**30
    assert report["summary"]["running_peak"] <= 2
    search = call(*asked, "--search", "--slo", "tpot=60ms", "--json").json
    assert search["best"]["concurrency"] >= 2
    assert search["replicas_needed"]["concurrency"] == 2
    assert search["replicas_needed"]["rate"] > 0
    assert "clients" in call(*asked, "--search", "--slo", "tpot=60ms").out


def test_what_describes_one_replay_is_not_asked_of_several(
    call, talks: Path, tmp_path: Path
) -> None:
    page, frames = str(tmp_path / "plan.html"), str(tmp_path / "plan.ndjson")
    asked = ("plan", str(talks), *MODEL)
    call(*asked, "--html", page, "--replicas", "2").check_refused("--html", "--replicas")
    call(*asked, "--html", page, "--sweep", "block_size=8,16").check_refused("--html", "--sweep")
    call(*asked, "--studio-record", frames, "--search", "--slo", "ttft=1s").check_refused(
        "--studio-record", "--search"
    )
    assert not list(tmp_path.glob("plan.*"))


def test_a_search_without_times(call, tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n" + "300,20\n" * 15)
    report = call("plan", str(path), *MODEL, "--slo", "tpot=30ms", "--search", "--json").json
    assert report["best"]["rate"] > 1
    assert report["replicas_needed"] is None


def test_a_run_is_recorded_for_the_studio(call, trace: Path, tmp_path: Path) -> None:
    plain = call("plan", str(trace), *MODEL, "--json").json
    path = tmp_path / "plan.ndjson.gz"
    report = call("plan", str(trace), *MODEL, "--json", "--studio-record", str(path)).json
    for name in ("kv_filled", "kv_waste"):  # looked at after other steps
        assert report["summary"].pop(name) == pytest.approx(plain["summary"].pop(name), abs=0.01)
    assert report["summary"] == plain["summary"]
    first, *deltas = frames_of(path)
    assert isinstance(first, Snapshot)
    assert (first.time, first.model) == (0.0, report["model"])
    assert first.num_blocks == report["kv_cache"]["num_blocks"]
    picture = Picture(first)
    for delta in deltas:
        picture.apply(delta)
    assert picture.requests == {}
    assert all(block.ref_count == 0 for block in picture.blocks.values())
    assert picture.counters.prefix_hits == report["summary"]["prefix_hits"]
    assert picture.counters.output_tokens == report["summary"]["output_tokens"]
    assert picture.counters.misses
    ended = [r for d in deltas for r in d.requests if r.status == "finished"]
    assert len(ended) == report["summary"]["requests"]
    # Ten frames a second of its own time, and one before nothing happens for a while.
    assert len(deltas) <= 10 * picture.time + len(ended) + 1
    assert picture.time == pytest.approx(report["summary"]["duration"], abs=0.01)
    for run in (run for delta in deltas for run in delta.steps):
        assert run.start < run.end


def test_a_recording_of_a_run_is_bounded(call, trace: Path, tmp_path: Path) -> None:
    showcase = Showcase(Traffic(), seed=1)
    now = 0.0

    def clock() -> float:
        return now

    showcase.engine.clock = clock
    path, before = tmp_path / "plan.ndjson", tmp_path / "plan.before.ndjson"
    with PlanRecorder(path, 60_000, model="m", block_bytes=1) as recorder:
        stepped = recorder.watch(showcase.engine)
        while not before.exists():
            now += 0.06
            showcase.add()
            showcase.step()
            stepped()
    first, *_, last = frames_of(before)
    assert isinstance(first, Snapshot)
    newer = next(iter(frames_of(path)))
    assert isinstance(newer, Snapshot)
    assert newer.seq == last.seq  # nothing is between them
    outcome = call("plan", str(trace), *MODEL, "--studio-record", str(tmp_path / "no" / "x"))
    outcome.check_refused("cannot write", "No such file")
    options = ("--studio-record", str(path), "--studio-record-limit", "1KiB")
    call("plan", str(trace), *MODEL, *options).check_refused("1.0 KiB", "at least 1.0 MiB")


def test_what_is_drawn_at_random(call, tmp_path: Path) -> None:
    path = tmp_path / "workload.yaml"
    path.write_text(
        "requests: 60\narrivals: {rate: 4}\nprompt: {exponential: 200}\noutput: 30\n"
        "turns: 3\nthink: 1\naborts: {share: 0.3, after: 5}\n"
    )
    report = call("plan", str(path), *MODEL, "--json").json
    summary = report["summary"]
    assert summary["requests"] == 60
    assert 5 < summary["aborted"] < 35
    assert summary["hit_rate"] > 0.4
    assert report["trace"]["users"] is None
    loop = call("plan", str(path), *MODEL, "--concurrency", "2", "--seed", "3", "--json").json
    assert (loop["trace"]["users"], loop["trace"]["seed"]) == (2, 3)
    assert loop["summary"]["running_peak"] <= 2
    assert "given up" in call("plan", str(path), *MODEL).out
    call("plan", str(path), *MODEL, "--rate", "1", "--concurrency", "2").check_refused("leave one")
    path.write_text("request: 5")
    call("plan", str(path), *MODEL).check_refused("did you mean requests?")


def test_lengths_from_a_cdf(call, tmp_path: Path) -> None:
    path = tmp_path / "lengths.json"
    path.write_text("[[200, 0.5], [800, 1.0]]")
    command = ("plan", str(path), *MODEL, "--output-share", "0.1")
    call(*command).check_refused("--rate", "--concurrency")
    summary = call(*command, "--rate", "9", "--limit", "80", "--json").json["summary"]
    assert summary["requests"] == 80
    share = summary["output_tokens"] / (summary["output_tokens"] + summary["prompt_tokens"])
    assert 0.09 < share < 0.11


def test_a_swap_space(call, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    row = {"input_length": 300, "output_length": 200}
    path.write_text("".join(json.dumps(row | {"timestamp": 50 * i}) + "\n" for i in range(12)))
    command = ("plan", str(path), *MODEL, "--num-blocks", "100", "--admission-headroom", "0")
    plain = call(*command, "--json").json
    assert plain["swap"] is None
    options = ("--swap-space", "4", "--preemption-mode", "swap")
    swapped = call(*command, *options, "--json").json
    assert swapped["swap"]["space"] == 4 * 2**30
    assert swapped["swap"]["bandwidth"] == 25.6e9
    assert swapped["swap"]["blocks_loaded"] > 10
    assert swapped["summary"]["recomputed_tokens"] < plain["summary"]["recomputed_tokens"]
    assert "blocks saved and" in call(*command, *options, "--swap-bandwidth", "10").out
    call(*command, *options, "--swap-bandwidth", "0").check_refused("swap_bandwidth is 0")
    call(*command, "--preemption-mode", "swap").check_refused("set swap_space")
