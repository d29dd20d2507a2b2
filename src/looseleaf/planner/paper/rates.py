"""How many requests a second: Figs. 12, 14, 16 and 17."""

from looseleaf.planner.paper.figure import Cell, Figure, Row
from looseleaf.planner.paper.published import CHATBOT, RATE_RATIOS, SHARED_PREFIX, SPEED_UP
from looseleaf.planner.paper.setups import MAX, OPTS, ORACLE, POW2, VLLM
from looseleaf.planner.paper.trials import LATENCY, Trials

BASELINES = (ORACLE, POW2, MAX)


def basic(trials: Trials) -> Figure:
    rows, tried = [], []
    for name in ("ShareGPT", "Alpaca"):
        for setup in OPTS if name == "ShareGPT" and not trials.quick else OPTS[:1]:
            rates = {s: trials.sustained(name, s, setup)[0] for s in (VLLM, *BASELINES)}
            published = RATE_RATIOS if name == "ShareGPT" else {}
            cells = [
                Cell(published.get(system.name), rates[VLLM] / rates[system])
                for system in BASELINES
            ]
            rows.append(Row(f"{name}, {setup.name}", (Cell(None, rates[VLLM]), *cells)))
            for system in (VLLM, *BASELINES):
                points = trials.sustained(name, system, setup)[1]
                shown = ", ".join(f"{p.rate:.2f}: {p.latency:.3f}" for p in points)
                tried.append(f"{name}, {setup.name}, {system.name}: {shown}")
    return Figure(
        "Fig. 12",
        f"requests/s at a mean latency of {LATENCY} s a token, and vLLM's over the others' "
        "(paper | here)",
        ("vLLM, requests/s", *(f"over {system.name}" for system in BASELINES)),
        tuple(rows),
        tolerance=0.0,
        reason="a roofline has no cost of starting kernels or of Python; one that is the same for "
        "small batches and large would favour the larger (not measured)",
        notes=(
            "the paper's ranges are over the three models on ShareGPT; FasterTransformer, which "
            "serves whole batches, is not replayed",
            "requests/s tried: s a token",
            *tried,
        ),
    )


def sampling(trials: Trials) -> Figure:
    rows = []
    for kind, width in (
        *(("samples", n) for n in (1, 2, 4, 6)),
        *(("beams", n) for n in (() if trials.quick else (2, 4, 6))),
    ):
        ours, oracle = (
            trials.full("Alpaca", system, kind=kind, width=width) for system in (VLLM, ORACLE)
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
        "requests/s while requests wait, OPT-13B on Alpaca, samples and beams (paper | here)",
        ("vLLM", "Orca (Oracle)", "vLLM over Oracle", "of its batch"),
        tuple(rows),
        tolerance=0.15,
        relative=True,
        reason="with so many sequences products are bound by the A100's arithmetic in a roofline, "
        "so that the larger batch of beams gains less than the memory allows",
        notes=(
            "Orca's beams are replayed as samples: its copies between regions take no time here; "
            "quick runs are too short for beams",
        ),
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
    return Figure(
        "Fig. 16",
        "requests/s behind a shared prefix, LLaMA-13B, translations (paper | here)",
        ("vLLM", "Orca (Oracle)", "vLLM over Oracle"),
        tuple(rows),
        tolerance=0.15,
        relative=True,
        reason="a roofline computes prompts at 70% of the A100's peak, so that computing a prefix "
        "again costs Orca little, while each of vLLM's sequences reads all of it in each step; and "
        "the sentences' lengths are assumed (30 tokens, 45 translated)",
    )


def chatbot(trials: Trials) -> Figure:
    ours = trials.chatting(VLLM)
    rows = [Row(VLLM.name, (Cell(None, ours.rate), Cell(None, ours.batch), Cell(None, None)))]
    for system in BASELINES:
        found = trials.chatting(system)
        ratio = Cell(CHATBOT, ours.rate / found.rate)
        rows.append(Row(system.name, (Cell(None, found.rate), Cell(None, found.batch), ratio)))
    return Figure(
        "Fig. 17",
        "requests/s of a chatbot, OPT-13B, prompts of 1,024 tokens (paper | here)",
        ("requests/s", "batch", "vLLM over it"),
        tuple(rows),
        tolerance=0.15,
        relative=True,
        reason="all prompts have 1,024 tokens here, so that memory holds at most 1.7 times as many "
        "and larger steps take longer; the paper's had shorter ones among them, for "
        "which Orca reserves as much",
    )
