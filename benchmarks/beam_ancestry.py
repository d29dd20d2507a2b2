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
LONG = (
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
SHORT = (
    "Name three animals that live in the desert.",
    "Rewrite this sentence in the past tense: She sings while she works.",
    "Suggest a title for a book about deep-sea divers.",
    "What is the capital of Portugal?",
    "Summarize the idea of supply and demand in two sentences.",
    "Turn this into a question: The train leaves at noon.",
    "Give an example of a metaphor.",
    "Sort these words by the alphabet: pear, lemon, apple, cherry.",
    "Why do leaves change their color in autumn?",
    "Write a short poem about rain on a tin roof.",
    "Explain what a database index does.",
    "List the steps to change a flat tire.",
    "What should one look for when buying a used bicycle?",
    "Find the mistake: He go to school every day.",
    "Convert five kilometers to miles.",
    "Describe a typical day of a lighthouse keeper.",
    "Make up a slogan for a bakery that opens at four in the morning.",
    "What is the difference between weather and climate?",
    "Write an email in which an employee asks for a day off.",
    "Tell a joke about two clouds.",
    "How does a vaccine protect the body?",
    "Give three reasons to learn a musical instrument.",
    "Classify these as solid, liquid or gas: milk, steam, stone.",
    "Write a function that adds up the even numbers of a list.",
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
    parser.add_argument(
        "--tokens", type=int, default=NUM_TOKENS, help="of a search; half of it after short ones"
    )
    options = parser.parse_args()
    found: dict[int, list[str]] = {}
    with (
        LLM(options.model, kv_cache_memory="256MiB") as llm,
        progress("searches", len(WIDTHS) * len(LONG + SHORT)) as advance,
    ):
        for width in WIDTHS:
            for prompt in LONG + SHORT:
                tokens = options.tokens if prompt in LONG else options.tokens // 2
                params = BeamSearchParams(beam_width=width, max_tokens=tokens, ignore_eos=True)
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
