"""Who of a real model's beams descends from whom: what `looseleaf reproduce sosp23` replays.

Runs beam searches with SmolLM2-135M and prints a JSON object: by width, for each prompt a string of
steps, each with the place of every new beam's parent; `=7` are seven steps in which each beam goes
on in its own place. Prompts are text without a chat template, and searches go on past the end of an
answer, as those of OPT do, which knows neither.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby

from looseleaf.bench.progress import progress
from looseleaf.engine.beams import BeamSearch, BeamSearchParams
from looseleaf.engine.llm import LLM

MODEL = "smollm2-135m"
WIDTHS = (2, 4, 6)
NUM_TOKENS = 800
PROMPTS = (
    "Give ten tips for staying healthy, and explain each.",
    "Describe the structure of an atom in detail.",
    "How can we reduce air pollution? Write an essay.",
    "Write a long story about a person who finds a hidden treasure.",
    "Explain how a bill becomes a law in the United States.",
    "Write a list of items for a camping trip, and say what each is for.",
    "Compare and contrast the novels of two famous authors.",
    "Explain the water cycle to a child, step by step.",
    "Write a letter to a friend about a journey through Italy.",
    "Describe how to bake bread, from the flour to the loaf.",
    "What were the causes of the First World War? Answer at length.",
    "Write a dialogue between a robot and a gardener.",
)


def ancestry(search: BeamSearch, llm: LLM) -> Iterator[str]:
    search.start()
    while not search.finished:
        before = [beam.token_ids for beam in search._beams]
        search.update(llm.engine.step())
        after = [beam.token_ids for beam in search._beams]
        if after and after != before:
            yield "".join(str(before.index(token_ids[:-1])) for token_ids in after)


def shorter(steps: Sequence[str]) -> str:
    """As `planner.paper.beams.recorded_parents` reads it."""
    found: list[str] = []
    for step, same in groupby(steps):
        num = len(list(same))
        stay = step == "".join(map(str, range(len(step))))
        found += [f"={num}"] if stay else [step] * num
    return " ".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--tokens", type=int, default=NUM_TOKENS, help="of each search")
    options = parser.parse_args()
    found: dict[int, list[str]] = {}
    with (
        LLM(options.model, kv_cache_memory="256MiB") as llm,
        progress("searches", len(WIDTHS) * len(PROMPTS)) as advance,
    ):
        for width in WIDTHS:
            params = BeamSearchParams(beam_width=width, max_tokens=options.tokens, ignore_eos=True)
            for prompt in PROMPTS:
                text = f"{prompt}\n"
                search = BeamSearch(
                    llm.engine,
                    prompt,
                    llm.stack.tokenizer.encode(text, add_special=True, parse_special=False),
                    params,
                    frozenset(),
                    llm.stack.tokenizer,
                )
                found.setdefault(width, []).append(shorter(list(ancestry(search, llm))))
                advance()
    json.dump({"model": options.model, "parents": found}, sys.stdout, indent=0)
    print()


if __name__ == "__main__":
    main()
