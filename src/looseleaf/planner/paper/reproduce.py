"""All figures, by the names that users ask for them."""

from collections.abc import Callable

from looseleaf.planner.paper import costs, memory, rates
from looseleaf.planner.paper.figure import Figure
from looseleaf.planner.paper.trials import Trials

FIGURES: dict[str, Callable[[Trials], Figure]] = {
    "table1": memory.setups,
    "2": memory.waste,
    "12": rates.basic,
    "13": memory.batched,
    "14": rates.sampling,
    "15": memory.sharing,
    "16": rates.shared_prefix,
    "17": rates.chatbot,
    "18": costs.block_sizes,
    "19": costs.recompute_or_swap,
}

ASSUMED = (
    "The scheduler, block tables and reservation allocators are those that serve, on a virtual "
    "clock. Steps take what a roofline of the A100 says (70% of its peak, 85% of its bandwidth, "
    "80% of NVLink's, 20 us for a sum over devices, nothing else), the paged kernel 23% more for "
    "attention at blocks of 16; no step has more than 2,560 tokens, and memory alone limits its "
    "sequences. Prompts are computed whole, beside whoever decodes. Lengths are gamma distributed "
    "with the paper's means (ShareGPT's outputs with the spread that Fig. 2 tells, sentences and "
    "Alpaca's instructions with one of 0.6, others exponential); sentences to translate have 30 "
    "tokens, and 45 translated. A preempted sample finds its prompt again while another one runs. "
    "Rates are those while requests wait, which long traces come to at any latency."
)
