"""`looseleaf reproduce sosp23`: what comes out against the PagedAttention paper's own figures."""

from itertools import pairwise

import pytest

from looseleaf.planner.paper import costs, memory
from looseleaf.planner.paper.beams import moved_share, parents_at, recorded_parents
from looseleaf.planner.paper.figure import Cell, Figure, Row, as_json, as_text
from looseleaf.planner.paper.setups import MAX, OPTS, ORACLE, POW2, VLLM
from looseleaf.planner.paper.trials import SLOW_STEPS, Trials
from looseleaf.planner.paper.workloads import chats, draw


@pytest.fixture(scope="module")
def trials() -> Trials:
    return Trials(quick=True)


def ours(figure: Figure) -> dict[str, list[float]]:
    return {row.label: [cell.ours or 0.0 for cell in row.cells] for row in figure.rows}


def test_slots_are_those_of_table_1(trials: Trials) -> None:
    assert [setup.token_bytes for setup in OPTS] == [819_200, 2_359_296, 4_718_592]
    assert [setup.num_slots for setup in OPTS] == [15_728, 9_557, 60_074]
    weights = [cells[0] for cells in ours(memory.setups(trials)).values()]
    assert weights == pytest.approx([26, 132, 346], rel=0.02)


@pytest.mark.parametrize(
    ("name", "means"), [("ShareGPT", (161.31, 337.99)), ("Alpaca", (19.31, 58.45))]
)
def test_lengths_have_the_means_of_the_paper(name: str, means: tuple[float, float]) -> None:
    requests = draw(name, 2_000, seed=1)
    found = [
        sum(r.num_prompt_tokens for r in requests) / 2_000,
        sum(r.num_output_tokens for r in requests) / 2_000,
    ]
    assert found == pytest.approx(means, rel=0.03)
    assert max(r.num_prompt_tokens + r.num_output_tokens for r in requests) <= 2048


def test_the_memory_is_split_as_in_figure_2(trials: Trials) -> None:
    figure = memory.waste(trials)
    assert "Orca (Pow2)" in as_text(figure)
    split = ours(figure)
    assert split["Orca (Max)"] == pytest.approx([20.4, 13.3, 57.3, 8.9], abs=3)
    # Some hundreds of requests: where regions happen to fit is a matter of luck.
    assert split["Orca (Pow2)"] == pytest.approx([26.8, 17.9, 13.6, 41.6], abs=6)
    assert split["Orca (Oracle)"] == pytest.approx([38.2, 25.2, 0, 36.6], abs=7)
    assert split["vLLM"][0] == pytest.approx(96.3, abs=3)
    assert all(sum(parts) == pytest.approx(100) for parts in split.values())


def test_as_many_run_as_in_figure_13(trials: Trials) -> None:
    assert trials.full("ShareGPT", MAX).batch == 7  # exactly: floor(15,728 / 2,048)
    assert trials.full("ShareGPT", POW2).batch == pytest.approx(9.81, rel=0.15)
    assert trials.full("ShareGPT", ORACLE).batch == pytest.approx(13.62, rel=0.15)
    assert trials.full("ShareGPT", VLLM).batch == pytest.approx(30.42, rel=0.2)


def test_sharing_saves_what_it_does_in_figure_15(trials: Trials) -> None:
    parallel = [memory.saved(trials.shared("Alpaca", "samples", n).usage) for n in (2, 6)]
    assert parallel == pytest.approx([6.09, 9.79], abs=4)  # at 4 samples a full run is 3.4 off
    beams = memory.saved(trials.shared("Alpaca", "beams", 4).usage)
    assert beams == pytest.approx(53.13, abs=3)


def test_samples_go_on_sharing_their_prompt_when_memory_is_full(trials: Trials) -> None:
    found = trials.shared("ShareGPT", "samples", 6)
    assert found.num_preemptions > 0
    assert 16.2 < memory.saved(found.usage) < 30.5


def test_beams_that_oust_each_other_less_share_less(trials: Trials) -> None:
    often, seldom = (
        memory.saved(trials.shared("Alpaca", "beams", 2, every).usage) for every in (1, 4)
    )
    assert seldom < often
    assert 0 < moved_share(2) < moved_share(6) < 1


def test_what_a_sequence_costs_besides_makes_batches_larger(trials: Trials) -> None:
    plain = trials.served("Alpaca", VLLM, 30)
    slow = trials.served("Alpaca", VLLM, 30, overhead=SLOW_STEPS)
    assert slow.batch > 1.5 * plain.batch
    assert slow.latency > plain.latency


def test_conversations_are_cut_to_what_a_prompt_may_have() -> None:
    assert {r.num_prompt_tokens for r in chats(40, 0)} == {1024}
    short = chats(40, 0, rounds=2)
    assert max(r.num_prompt_tokens for r in short) <= 1024
    assert sum(r.num_prompt_tokens for r in short) < 40 * 600
    assert [r.num_output_tokens for r in short] == [r.num_output_tokens for r in chats(40, 0)]


def test_paging_serves_more(trials: Trials) -> None:
    ratios = [
        trials.full("ShareGPT", VLLM).rate / trials.full("ShareGPT", system).rate
        for system in (ORACLE, POW2, MAX)
    ]
    assert ratios == sorted(ratios)
    assert 1.7 * 0.95 < ratios[0] < 2.7  # some hundreds of requests are 5% off those of long runs
    assert 2.7 * 0.95 < ratios[2] < 8


@pytest.mark.parametrize(("prefix", "paper"), [(80, 1.67), (341, 3.58)])
def test_a_shared_prefix_serves_more_still(trials: Trials, prefix: int, paper: float) -> None:
    ours, oracle = (trials.translating(system, prefix) for system in (VLLM, ORACLE))
    assert ours.rate / oracle.rate == pytest.approx(paper, rel=0.15)


def test_swapping_wins_with_large_blocks_only(trials: Trials) -> None:
    both = [2 * costs.swap_seconds(size) for size in costs.BLOCK_SIZES]
    assert all(small > large for small, large in pairwise(both))
    again = costs.recompute_seconds()
    assert again < both[0] / 5
    assert again > both[-1]
    assert 0.5 < again / (2 * costs.swap_seconds(16)) < 2
    assert len(costs.recompute_or_swap(trials).rows) == 9


def test_beams_descend_as_they_were_recorded() -> None:
    for width in (2, 4, 6):
        searches = recorded_parents(width)
        assert all(search[0] == (0,) * width for search in searches)
        assert {len(step) for search in searches for step in search} == {width}
        last = len(searches[0]) - 1
        assert parents_at(width, 0, last) == searches[0][last]
        assert parents_at(width, 0, last + 1) == searches[1][1]


def test_what_is_off_is_told_with_its_reason() -> None:
    rows = (Row("a", (Cell(10.0, 12.5), Cell((1.7, 2.7), 1.5), Cell(None, 3.0))),)
    figure = Figure("Fig. 0", "a test", ("x", "y", "z"), rows, tolerance=1, reason="it is one")
    figure = figure._replace(tested=("with less, 2.1",))
    assert [column for _, column, _ in figure.misses()] == ["x"]
    rows_of_text = [line.split() for line in as_text(figure).splitlines()]
    assert ["a:", "x", "10.00", "12.50", "+2.50", "NO"] in rows_of_text
    assert ["a:", "y", "1.7", "to", "2.7", "1.50", "-0.20", "yes"] in rows_of_text
    assert ["a", "12.50", "1.50", "3.00"] in rows_of_text  # all of ours, the paper's or not
    assert ["why:", "it", "is", "one"] in rows_of_text
    assert ["tested:", "with", "less,", "2.1"] in rows_of_text
    assert "why:" not in as_text(figure._replace(tolerance=3))
    cells = as_json(figure)["rows"][0]["cells"]
    assert cells["y"]["difference"] == pytest.approx(-0.2)
    assert cells["z"]["difference"] is None
    assert [cells[name]["in_range"] for name in "xyz"] == [False, True, None]
    strict = figure._replace(tolerance=0.1, relative=True)
    assert [column for _, column, _ in strict.misses()] == ["x"]
