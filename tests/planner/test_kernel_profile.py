"""The cost model of measured kernels, against rows that it is made of and rows that it is not."""

import csv
import itertools
from pathlib import Path
from statistics import fmean

import pytest

from looseleaf.core.errors import ConfigError
from looseleaf.planner.cost_model import StepPart, summarize
from looseleaf.planner.kernel_profile import PER_LAYER, KernelProfile, load_profile

PROFILES = Path(__file__).resolve().parents[3] / "shared" / "traces" / "llmservingsim" / "profile"
GPUS = ("RTX4090", "RTXPRO6000")
NUM_LAYERS = 32

Point = tuple[int, int, int, int]


def parts_of(chunk: int, kv_prefill: int, num_decodes: int, kv_decode: int) -> list[StepPart]:
    """A step that is one call of the profiler's."""
    prefill = [StepPart(chunk, kv_prefill)] if chunk else []
    return prefill + [StepPart(1, kv_decode - 1)] * num_decodes


@pytest.fixture(params=GPUS)
def measured(request: pytest.FixtureRequest) -> tuple[KernelProfile, dict[Point, float]]:
    """A profile, and its rows of attention in seconds."""
    if not PROFILES.is_dir():
        pytest.skip(f"no profiles in {PROFILES}")
    path = PROFILES / f"{request.param}_llama31-8b_tp1"
    with Path(f"{path}_attention.csv").open() as file:
        rows = {
            (
                int(row["prefill_chunk"]),
                int(row["kv_prefill"]),
                int(row["n_decode"]),
                int(row["kv_decode"]),
            ): float(row["time_us"]) * 1e-6
            for row in csv.DictReader(file)
        }
    return load_profile(path, NUM_LAYERS), rows


def kernels_of(path: str) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    with (PROFILES / path).open() as file:
        for layer, number, time in itertools.islice(csv.reader(file), 1, None):
            found.setdefault(layer, {})[int(number)] = float(time) * 1e-6
    return found


def attention(profile: KernelProfile, point: Point) -> float:
    """Of one layer, from what whole steps take."""
    parts = parts_of(*point)
    step = profile.seconds(parts)
    num_tokens = sum(part.num_new_tokens for part in parts)
    rest = profile.dense.at(num_tokens) + profile.per_sequence.at(len(parts))
    return (step - rest) / profile.num_layers


def test_measured_attention_comes_out_as_it_was_measured(
    measured: tuple[KernelProfile, dict[Point, float]],
) -> None:
    profile, rows = measured
    grid = [point for point in rows if all(x & (x - 1) == 0 for x in point)]
    assert len(grid) == 8643
    for point in grid[::7]:
        assert attention(profile, point) == pytest.approx(rows[point], rel=1e-6), point


@pytest.mark.parametrize("measured", ["RTXPRO6000"], indirect=True)
def test_attention_between_the_measured_points(
    measured: tuple[KernelProfile, dict[Point, float]],
) -> None:
    """10,721 rows of this profile are off the grid that the model is made of."""
    profile, rows = measured
    off = [point for point in rows if any(x & (x - 1) for x in point)]
    errors = [attention(profile, point) / rows[point] - 1 for point in off if point[2] <= 128]
    assert len(errors) > 10_000
    assert abs(fmean(errors)) < 0.005
    assert fmean(map(abs, errors)) < 0.033
    errors.sort()
    assert errors[len(errors) // 20] > -0.1
    assert errors[-len(errors) // 20] < 0.1


@pytest.mark.parametrize("gpu", GPUS)
def test_a_step_is_the_sum_of_its_kernels(gpu: str) -> None:
    if not PROFILES.is_dir():
        pytest.skip(f"no profiles in {PROFILES}")
    name = f"{gpu}_llama31-8b_tp1"
    profile = load_profile(PROFILES / name, NUM_LAYERS, step_overhead=0.001)
    dense, rows = kernels_of(f"{name}_dense.csv"), kernels_of(f"{name}_per_sequence.csv")
    for num in (1, 4, 64, 128):
        layers = sum(times * dense[layer][num] for layer, times in PER_LAYER.items())
        once = sum(dense[layer][num] for layer in dense if layer not in PER_LAYER)
        once += sum(rows[layer][num] for layer in rows)
        expected = NUM_LAYERS * (layers + profile.decode.at(num, 256)) + once + 0.001
        assert profile.seconds(parts_of(0, 0, num, 256)) == pytest.approx(expected, rel=1e-9)


def test_what_decoding_takes_is_near_what_reading_the_weights_takes(
    measured: tuple[KernelProfile, dict[Point, float]],
) -> None:
    """16.06 GB less an embedding of 1.05 GB, at 1,008 or 1,597 GB/s: no faster, and not much
    slower."""
    profile, _ = measured
    bandwidth = 1597e9 if "PRO" in profile.name else 1008e9
    floor = 15.01e9 / bandwidth
    assert floor < profile.seconds([StepPart(1, 15)]) < 1.25 * floor


def test_more_work_takes_longer(measured: tuple[KernelProfile, dict[Point, float]]) -> None:
    profile, _ = measured
    for few, many in (
        ([(1, 1000)] * 8, [(1, 1000)] * 48),
        ([(1, 1000)] * 8, [(1, 9000)] * 8),
        ([(512, 0)], [(2048, 0)]),
        ([(512, 0)], [(512, 8000)]),
        ([(512, 0)], [(512, 0)] + [(1, 1000)] * 32),
        ([(1, 30_000)] * 300, [(1, 60_000)] * 300),
        ([(4096, 0)], [(8192, 30_000)]),
    ):
        assert profile.seconds([StepPart(*x) for x in few]) < profile.seconds(
            [StepPart(*x) for x in many]
        )


# --- a small profile, written here ---


def decode_time(num: int, kv: int) -> float:
    return 10 + 0.01 * num * kv


def write_profile(folder: Path, *, without: Point | None = None, text: str = "") -> Path:
    """Kernels whose times are linear, so that what lies between points is known."""
    lines = ["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"]
    numbers, stored = (1, 2, 4, 8), (16, 64, 256)
    for chunk, kv in itertools.product((16, 64, 256), (0, 64, 256)):
        lines.append(f"{chunk},{kv},0,0,{20 + 0.1 * chunk + 0.02 * kv}")
        for num, kd in itertools.product(numbers, stored):
            if (chunk, kv, num, kd) != without:
                time = 20 + 0.1 * chunk + 0.02 * kv + decode_time(num, kd)
                lines.append(f"{chunk},{kv},{num},{kd},{time}")
    lines += [f"0,0,{num},{kd},{decode_time(num, kd)}" for num in numbers for kd in stored]
    (folder / "p_attention.csv").write_text("\n".join(lines) + "\n" + text)
    dense = [f"{layer},{n},{5 + n}" for layer in (*PER_LAYER, "embedding") for n in (1, 10, 100)]
    (folder / "p_dense.csv").write_text("\n".join(["layer,tokens,time_us", *dense]))
    rows = [f"lm_head,{n},{100 + n}" for n in (1, 10)]
    (folder / "p_per_sequence.csv").write_text("\n".join(["layer,sequences,time_us", *rows]))
    return folder / "p"


def microseconds(profile: KernelProfile, *parts: tuple[int, int]) -> float:
    return profile.seconds([StepPart(*part) for part in parts]) * 1e6


def dense_time(num_tokens: float, num_layers: int) -> float:
    return (sum(PER_LAYER.values()) * num_layers + 1) * (5 + num_tokens)


def test_linear_kernels_come_out_exact(tmp_path: Path) -> None:
    profile = load_profile(write_profile(tmp_path), 2)
    expected = dense_time(3, 2) + 103 + 2 * decode_time(3, 100)
    assert microseconds(profile, (1, 99), (1, 79), (1, 119)) == pytest.approx(expected)
    chunk = dense_time(40, 2) + 101 + 2 * (20 + 0.1 * 40 + 0.02 * 100)
    assert microseconds(profile, (40, 100)) == pytest.approx(chunk, rel=1e-3)
    mixed = dense_time(42, 2) + 103 + 2 * (26 + decode_time(2, 100))
    assert microseconds(profile, (40, 100), (1, 99), (1, 99)) == pytest.approx(mixed, rel=1e-3)


def test_beyond_what_was_measured_the_last_step_goes_on(tmp_path: Path) -> None:
    profile = load_profile(write_profile(tmp_path), 1)
    expected = dense_time(16, 1) + 110 * 1.6 + decode_time(16, 512)
    assert microseconds(profile, *[(1, 511)] * 16) == pytest.approx(expected)
    twice = 105 * 2 * (sum(PER_LAYER.values()) + 1)
    assert profile.dense.at(200) * 1e6 == pytest.approx(twice)


def test_below_what_was_measured_it_is_the_least(tmp_path: Path) -> None:
    profile = load_profile(write_profile(tmp_path), 1)
    assert microseconds(profile, (1, 0)) == pytest.approx(microseconds(profile, (1, 15)))


def test_prompts_that_do_not_read_each_other_count_as_the_pairs_that_they_are(
    tmp_path: Path,
) -> None:
    profile = load_profile(write_profile(tmp_path), 1)
    two, one = summarize([StepPart(100, 0)] * 2), summarize([StepPart(200, 0)])
    assert (two.pairs, one.pairs) == (2 * 5050, 20_100)
    together = microseconds(profile, (200, 0)) - 101  # less what is for each sequence
    apart = microseconds(profile, (100, 0), (100, 0)) - 102
    assert together - apart == pytest.approx(0.1 * (200 - (4 * 5050) ** 0.5), rel=1e-2)


def test_the_longest_counts_by_its_share(tmp_path: Path) -> None:
    path = write_profile(tmp_path)
    even, skewed = load_profile(path, 1), load_profile(path, 1, skew=0.1)
    parts = ((1, 19), (1, 179))
    more = 0.1 * (decode_time(2, 180) - decode_time(2, 100))
    assert microseconds(skewed, *parts) - microseconds(even, *parts) == pytest.approx(more)
    same = ((1, 99), (1, 99))
    assert microseconds(skewed, *same) == microseconds(even, *same)


def test_a_step_of_nothing_takes_no_time(tmp_path: Path) -> None:
    assert load_profile(write_profile(tmp_path), 1, step_overhead=1.0).seconds([]) == 0


def test_a_grid_with_a_gap(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no row for \(64, 64, 2, 64\)"):
        load_profile(write_profile(tmp_path, without=(64, 64, 2, 64)), 1)


@pytest.mark.parametrize("text", ["1,2,3\n", "a,0,1,16,5\n", "0,0,1,16,soon\n"])
def test_rows_that_are_no_numbers_are_named(tmp_path: Path, text: str) -> None:
    path = write_profile(tmp_path, text=text)
    num_lines = len(Path(f"{path}_attention.csv").read_text().splitlines())
    with pytest.raises(ConfigError, match=rf"attention\.csv, line {num_lines}: it must hold"):
        load_profile(path, 1)


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("p_dense.csv", "layer,tokens,time_us\nqkv_proj,1,1\n", "no rows for act_fn, down_proj"),
        ("p_dense.csv", "layer,tokens,time_us\n", "has no rows"),
        ("p_per_sequence.csv", "", "has no rows"),
        (
            "p_attention.csv",
            "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n",
            "must be rows",
        ),
    ],
)
def test_files_that_are_no_profile(tmp_path: Path, file: str, text: str, words: str) -> None:
    path = write_profile(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_profile(path, 1)


def test_a_profile_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"p_attention\.csv cannot be read"):
        load_profile(tmp_path / "p", 1)


def test_its_name_and_its_error_are_told(tmp_path: Path) -> None:
    profile = load_profile(write_profile(tmp_path), 1)
    assert profile.name == "kernels of p"
    assert "3.1%" in profile.known_error
