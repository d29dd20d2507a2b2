"""Who of a real model's beams descends from whom: what `looseleaf reproduce sosp23` replays.

Runs beam searches with SmolLM2-135M and prints a JSON object: by width, for each prompt a string of
steps, each with the place of every new beam's parent.
"""

import json
import sys
from collections.abc import Iterator

from looseleaf.bench.progress import progress
from looseleaf.engine.beams import BeamSearch, BeamSearchParams
from looseleaf.engine.llm import LLM

MODEL = "smollm2-135m"
WIDTHS = (2, 4, 6)
NUM_TOKENS = 200
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


def main() -> None:
    found: dict[int, list[str]] = {}
    with (
        LLM(MODEL, kv_cache_memory="256MiB") as llm,
        progress("searches", len(WIDTHS) * len(PROMPTS)) as advance,
    ):
        for width in WIDTHS:
            params = BeamSearchParams(beam_width=width, max_tokens=NUM_TOKENS, ignore_eos=True)
            for prompt in PROMPTS:
                text = llm.stack.chat_template.render(
                    [{"role": "user", "content": prompt}], add_generation_prompt=True
                )
                search = BeamSearch(
                    llm.engine,
                    prompt,
                    llm.chat_tokens(text),
                    params,
                    frozenset(),
                    llm.stack.tokenizer,
                )
                found.setdefault(width, []).append(" ".join(ancestry(search, llm)))
                advance()
    json.dump({"model": MODEL, "parents": found}, sys.stdout, indent=0)
    print()


if __name__ == "__main__":
    main()
