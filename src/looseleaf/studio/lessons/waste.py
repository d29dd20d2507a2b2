"""The waste simulation of `looseleaf demo`: one run of it beside what it converges to."""

from functools import cache
from typing import Any

from looseleaf.demo import waste
from looseleaf.studio.lessons.scene import (
    Bar,
    Control,
    Figure,
    Lesson,
    Question,
    Rows,
    Scene,
    Step,
    Value,
    ordered,
)

NUM_SEQUENCES = (10, 100, 1000)
SEEDS = (0, 1, 2, 3, 4, 5, 6, 37)
"""The last one draws the figures that the write-up of the simulation prints: 84.2%, 1.1%, 6.3."""

RANGES = ("short", "medium", "long")
ALLOCATORS = ("contiguous", "power_of_two", "paged")

_simulate = cache(waste.simulate)


def _build(num_sequences: Value, seed: Value) -> Scene:
    assert isinstance(num_sequences, int)
    assert isinstance(seed, int)
    run = waste.single_run(num_sequences, seed)
    lengths = waste.draw_lengths(num_sequences, seed)
    many: dict[str, Any] = _simulate(num_sequences=num_sequences)
    exact = many["exact"]
    figures: dict[str, Figure] = {
        "sequences": num_sequences,
        "max_length": waste.MAX_LENGTH,
        "block_size": waste.BLOCK_SIZE,
        "seeds": many["seeds"],
        "tokens": sum(lengths),
        "mean": sum(lengths) / num_sequences,
        **{name: run[name] for name in (*ALLOCATORS, "concurrency")},
        "over_power": run["concurrency_over_power_of_two"],
        "per_sequence": run["per_sequence_paged"],
        **{f"exact_{name}": exact[name] for name in (*ALLOCATORS, "concurrency")},
        "sd": many["single_run_sd"]["contiguous"],
    }
    for name, (share, low, high) in zip(RANGES, waste.MIX, strict=True):
        figures |= {f"{name}_share": share, f"{name}_low": low, f"{name}_high": high}
    counts = [sum(low <= n <= high for n in lengths) for _, low, high in waste.MIX]

    def bars(*names: str) -> tuple[Bar, ...]:
        return tuple(
            Bar(name, (("used", 1 - run[name]), ("wasted", run[name])), name == names[-1])
            for name in names
        )

    rows = Rows(
        ("allocator", "this_run", "mean_of_runs", "spread", "exact"),
        tuple(
            (name, run[name], many[name], many["single_run_sd"][name], exact[name])
            for name in ALLOCATORS
        ),
    )
    size = waste.BLOCK_SIZE
    choices, answer = ordered((size - 1) / 2, (size - 1, 0, size / 4))
    mean_taken = waste.MAX_LENGTH / exact["concurrency"]
    return Scene(
        (num_sequences, seed),
        figures,
        (
            Step(
                "lengths",
                bars=tuple(
                    Bar(name, (("sequences", count),))
                    for name, count in zip(RANGES, counts, strict=True)
                ),
            ),
            Step("contiguous", bars=bars("contiguous"), unit="share"),
            Step("power", bars=bars("contiguous", "power_of_two"), unit="share"),
            Step("paged", bars=bars(*ALLOCATORS), unit="share"),
            Step("concurrency", bars=bars(*ALLOCATORS), unit="share"),
            Step("exact", rows=rows),
        ),
        Question(
            answer,
            {
                **{f"choice{i}": choice for i, choice in enumerate(choices)},
                "right": choices[answer],
                "taken": mean_taken,
                "share": choices[answer] / mean_taken,
            },
        ),
    )


WASTE = Lesson(
    "waste",
    (Control("sequences", NUM_SEQUENCES, 1000), Control("seed", SEEDS, 37)),
    _build,
)
