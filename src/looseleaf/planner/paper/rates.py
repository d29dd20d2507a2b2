"""How many requests a second: Figs. 12, 14, 16 and 17.

All are what a system does while requests wait. Over a trace as long as the paper's hour, waiting
passes every latency that one may ask for soon above that rate, so the ratios are those at equal
latencies.
"""

from typing import Any

from looseleaf.planner.paper.beams import moved_share
from looseleaf.planner.paper.figure import Cell, Figure, Row
from looseleaf.planner.paper.published import CHATBOT, RATE_RATIOS, SHARED_PREFIX, SPEED_UP
from looseleaf.planner.paper.setups import MAX, OPT_13B, OPTS, ORACLE, POW2, VLLM, Overhead, Setup
from looseleaf.planner.paper.trials import SLOW_STEPS, Trials

BASELINES = (ORACLE, POW2, MAX)

FIXED = Overhead(step=0.012)
"""Of a step, as a test of what it would change: a third of a step's time at a full memory."""

SLOW = Overhead(step=0.03)
"""As another: a step takes more than twice as long."""


def basic(trials: Trials) -> Figure:
    rows = []
    for name in ("ShareGPT", "Alpaca"):
        for setup in _setups(trials) if name == "ShareGPT" else OPTS[:1]:
            rates = {s: trials.full(name, s, setup).rate for s in (VLLM, *BASELINES)}
            published = RATE_RATIOS if name == "ShareGPT" else {}
            cells = [
                Cell(published.get(system.name), rates[VLLM] / rates[system])
                for system in BASELINES
            ]
            rows.append(Row(f"{name}, {setup.name}", (Cell(None, rates[VLLM]), *cells)))
    return Figure(
        "Fig. 12",
        "requests/s while requests wait, and vLLM's over the others'",
        ("vLLM, requests/s", *(f"over {system.name}" for system in BASELINES)),
        tuple(rows),
        tolerance=0.0,
        reason="what a step takes beyond the roofline decides how much a larger batch is worth",
        tested=(_with_overheads(trials),),
        notes=(
            "the paper's ranges are over the three models on ShareGPT, at equal latencies; "
            "FasterTransformer, which serves whole batches, is not replayed",
        ),
    )


def _with_overheads(trials: Trials) -> str:
    def ratio(setup: Setup, overhead: Overhead) -> str:
        ours, oracle = (
            trials.full("ShareGPT", system, setup, overhead=overhead).rate
            for system in (VLLM, ORACLE)
        )
        return f"{ours / oracle:.2f}"

    fixed = ", ".join(f"{ratio(setup, FIXED)} of {setup.name}" for setup in _setups(trials)[::2])
    return (
        f"over Orca (Oracle) it is {fixed} with {1000 * FIXED.step:g} ms more a step, but "
        f"{ratio(OPT_13B, SLOW_STEPS)} of {OPT_13B.name} with {1000 * SLOW_STEPS.sequence:g} ms "
        "more for each sequence in it"
    )


def _setups(trials: Trials) -> tuple[Setup, ...]:
    return OPTS[:1] if trials.quick else OPTS


COPY_LAUNCH_SECONDS = 6e-6
"""Of one copy of one layer's keys or values, as in Fig. 19."""


def sampling(trials: Trials) -> Figure:
    rows = []
    tried = [("samples", 1), ("samples", 2), ("samples", 6)]
    if not trials.quick:
        tried.append(("beams", 6))
    for kind, width in tried:
        ours, oracle = (
            trials.full("Alpaca", system, kind=kind if system.paged else "samples", width=width)
            for system in (VLLM, ORACLE)
        )
        cells = (
            Cell(None, ours.rate),
            Cell(None, oracle.rate),
            Cell(SPEED_UP.get((kind, width)), ours.rate / oracle.rate),
            Cell(None, ours.batch / oracle.batch),
        )
        rows.append(Row(f"{kind}, {width}", cells))
    return Figure(
        "Fig. 14",
        "requests/s while requests wait, OPT-13B on Alpaca, samples and beams",
        ("vLLM", "Orca (Oracle)", "vLLM over Oracle", "of its batch"),
        tuple(rows),
        tolerance=0.15,
        relative=True,
        reason="Orca's beams are replayed as samples: its copies between regions take no time here",
        tested=() if trials.quick else (_with_copies(trials),),
        notes=("beams are replayed in full runs only",) if trials.quick else (),
    )


def _with_copies(trials: Trials) -> str:
    """A beam that takes another's place takes its keys and values too."""
    width = 6
    vllm = trials.full("Alpaca", VLLM, kind="beams", width=width)
    plain = trials.full("Alpaca", ORACLE, width=width)
    tokens = sum(u.sequence_tokens for u in plain.usage) / len(plain.usage) / plain.batch
    model = OPT_13B.roofline(ORACLE)
    moved = moved_share(width)
    move = 2 * tokens * OPT_13B.token_bytes / (model.bandwidth * model.bandwidth_efficiency)
    launches = 2 * len(OPT_13B.shape.kv_layers) * COPY_LAUNCH_SECONDS
    ratios = [
        vllm.rate
        / trials.full(
            "Alpaca", ORACLE, width=width, overhead=Overhead(sequence=moved * seconds)
        ).rate
        for seconds in (move, move + launches)
    ]
    return (
        f"beams, {width}: {ratios[0]:.2f} if Orca moves the keys and values of the "
        f"{moved:.0%} of beams that take another's place ({tokens:.0f} tokens at the memory's "
        f"speed), {ratios[1]:.2f} if each layer's are copied by themselves, "
        f"{1e6 * COPY_LAUNCH_SECONDS:g} us each"
    )


def shared_prefix(trials: Trials) -> Figure:
    rows = []
    for prefix, paper in SHARED_PREFIX.items():
        ours, oracle = (trials.translating(system, prefix) for system in (VLLM, ORACLE))
        cells = (
            Cell(None, ours.rate),
            Cell(None, oracle.rate),
            Cell(paper, ours.rate / oracle.rate),
        )
        rows.append(Row(f"{prefix} tokens", cells))
    figure = Figure(
        "Fig. 16",
        "requests/s behind a shared prefix, LLaMA-13B, translations",
        ("vLLM", "Orca (Oracle)", "vLLM over Oracle"),
        tuple(rows),
        tolerance=0.15,
        relative=True,
        reason="the lengths of the sentences are assumed",
    )
    if not any(figure.misses()):
        return figure
    longer = ", ".join(
        f"{_translating_longer(trials, prefix):.2f} behind {prefix} tokens"
        for prefix in SHARED_PREFIX
    )
    return figure._replace(
        tested=(f"{longer}, with sentences of 60 tokens and 120 translated",),
    )


def _translating_longer(trials: Trials, prefix: int) -> float:
    ours, oracle = (trials.translating(s, prefix, "WMT16, longer") for s in (VLLM, ORACLE))
    return ours.rate / oracle.rate


def chatbot(trials: Trials) -> Figure:
    ours = trials.chatting(VLLM)
    rows = [Row(VLLM.name, (Cell(None, ours.rate), Cell(None, ours.batch), Cell(None, None)))]
    for system in BASELINES:
        found = trials.chatting(system)
        ratio = Cell(CHATBOT, ours.rate / found.rate)
        rows.append(Row(system.name, (Cell(None, found.rate), Cell(None, found.batch), ratio)))
    return Figure(
        "Fig. 17",
        "requests/s of a chatbot, OPT-13B, prompts of 1,024 tokens",
        ("requests/s", "batch", "vLLM over it"),
        tuple(rows),
        tolerance=0.15,
        relative=True,
        reason="all prompts have 1,024 tokens here, so that memory holds "
        f"{ours.batch / trials.chatting(ORACLE).batch:.2f} times as many of vLLM's: more is not to "
        "be had from a larger batch, and steps of a larger one are longer",
        tested=(_with_shorter_prompts(trials),),
        notes=("nothing of a conversation is kept between its rounds, as in the paper",),
    )


def _with_shorter_prompts(trials: Trials) -> str:
    def ratio(**changed: Any) -> float:
        ours, oracle = (trials.chatting(system, **changed) for system in (VLLM, ORACLE))
        return ours.rate / oracle.rate

    return (
        f"over Orca (Oracle) {ratio(overhead=SLOW):.2f} with {1000 * SLOW.step:g} ms more a "
        f"step, {ratio(rounds=2):.2f} with conversations of one or two rounds, "
        f"{ratio(rounds=4):.2f} with those of one to four"
    )
