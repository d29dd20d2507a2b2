"""What guessing tokens from earlier ones is worth, where text repeats and where it does not.

    python benchmarks/speculation.py [--tokens K ...] [--rounds N] [--json]

One request at a time, and eight at once. `repeating` asks for a text that the prompt already has,
as edits and quotations do; `free` continues a story. Answers must be the same with and without.
Settings take turns; figures are medians over rounds.
"""

import argparse
import json
import time
from statistics import median
from typing import Any

from machine import facts

from looseleaf.engine.llm import LLM
from looseleaf.sampling.params import SamplingParams

STORY = (
    "The lighthouse keeper wrote down the weather every morning: the height of the waves, the "
    "direction of the wind, the colour of the sky, and whether any ship had passed in the night. "
)
PROMPTS = {"repeating": STORY * 4, "free": "Once upon a time, in a village by the sea, "}
MAX_TOKENS = 128


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    options = parser.parse_args()
    rows = []
    engines = {k: LLM(options.model, speculative_ngram=k) for k in [0, *options.tokens]}
    for kind, prompt in PROMPTS.items():
        for count in (1, 8):
            rows += measure(engines, kind, prompt, count, options.rounds)
    for llm in engines.values():
        llm.close()
    if options.json:
        print(json.dumps({"rows": rows, "rounds": options.rounds, "machine": facts()}))
        return
    for row in rows:
        print(
            f"{row['kind']:10} {row['requests']} at once, {row['tokens']} guessed: "
            f"{row['output_tokens_per_s']:6.0f} tok/s, {row['times']:.2f} times as fast, "
            f"{row['accepted']:.0%} of guesses right"
        )


def measure(
    engines: dict[int, LLM], kind: str, prompt: str, count: int, rounds: int
) -> list[dict[str, Any]]:
    seconds: dict[int, list[float]] = {k: [] for k in engines}
    answers: dict[int, Any] = {}
    right: dict[int, float] = {}
    params = [
        SamplingParams(temperature=0.2, seed=i, max_tokens=MAX_TOKENS, ignore_eos=True)
        for i in range(count)
    ]
    for _ in range(rounds + 1):  # the first computes the prompt
        for k, llm in engines.items():
            counters = llm.engine.scheduler.counters
            drafted, accepted = counters.draft_tokens, counters.accepted_tokens
            start = time.perf_counter()
            outputs = llm.generate([prompt] * count, params, use_tqdm=False)
            seconds[k].append(time.perf_counter() - start)
            answers[k] = [output.outputs for output in outputs]
            made = counters.draft_tokens - drafted
            right[k] = (counters.accepted_tokens - accepted) / made if made else 0.0
    if any(answers[k] != answers[0] for k in engines):
        raise SystemExit("answers differ: guesses must not change them")
    return [
        {
            "kind": kind,
            "requests": count,
            "tokens": k,
            "output_tokens_per_s": count * MAX_TOKENS / median(seconds[k][1:]),
            "times": median(a / b for a, b in zip(seconds[0][1:], seconds[k][1:], strict=True)),
            "accepted": right[k],
        }
        for k in engines
    ]


if __name__ == "__main__":
    main()
