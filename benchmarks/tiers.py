"""What tiers of KV memory are worth: where a prefix is, and how soon its request has a token.

    python benchmarks/tiers.py [--prompt-tokens N] [--rounds N] [--json]

`computed`: nothing is stored. `pool`: it is in the KV cache. `swap`: it was evicted to memory.
`disk`: an engine before this one had it, on the same folder. `crowd`: more requests than the pool
holds, preempted requests computed again or swapped. Token ids are random; rounds take turns, and
figures are medians.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from machine import facts

from looseleaf.engine.llm import LLM
from looseleaf.sampling.params import SamplingParams

ONE = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
CROWD = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)


def first_token(llm: LLM, prompt: list[int]) -> tuple[float, int]:
    """Seconds, and how many tokens were found stored."""
    start = time.perf_counter()
    (output,) = llm.generate([prompt], ONE, use_tqdm=False)
    return time.perf_counter() - start, output.num_cached_tokens


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompt-tokens", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON line")
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {}
    crowd: dict[str, list[dict[str, float]]] = {}
    with LLM(options.model) as llm:
        vocab_size = llm.get_tokenizer().vocab_size
        token_bytes = llm.stack.memory.block_bytes // llm.stack.memory.block_size
    rng = random.Random(0)
    for _ in range(options.rounds):
        prompt = [rng.randrange(vocab_size) for _ in range(options.prompt_tokens)]
        other = [rng.randrange(vocab_size) for _ in range(options.prompt_tokens)]
        for name, value in places(options.model, prompt, other, token_bytes).items():
            seconds.setdefault(name, []).append(value)
        prompts = [[rng.randrange(vocab_size) for _ in range(200)] for _ in range(24)]
        for name, figures in crowds(options.model, prompts, token_bytes).items():
            crowd.setdefault(name, []).append(figures)
    result: dict[str, Any] = {
        "prompt_tokens": options.prompt_tokens,
        "first_token_s": {name: median(values) for name, values in seconds.items()},
        "crowd": {
            name: {key: median(f[key] for f in found) for key in found[0]}
            for name, found in crowd.items()
        },
        "rounds": options.rounds,
        "machine": facts(),
    }
    if options.json:
        print(json.dumps(result))
        return
    print(f"first token of {options.prompt_tokens:,} tokens whose KV is")
    for name, value in result["first_token_s"].items():
        print(f"  {name:12} {value * 1e3:9,.1f} ms")
    print("24 requests of 200 + 200 tokens on a pool for 8 of them, preempted ones are")
    for name, figures in result["crowd"].items():
        print(
            f"  {name:12} {figures['output_tokens_per_s']:6.0f} tok/s, "
            f"{figures['computed_tokens']:,.0f} tokens computed, "
            f"{figures['preemptions']:.0f} preemptions"
        )


def places(model: str, prompt: list[int], other: list[int], token_bytes: int) -> dict[str, float]:
    found = {}
    room = (len(prompt) + 64) * token_bytes
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {"kv_cache_memory": room, "kv_disk": Path(folder)}
        with LLM(model, swap_space=4 * room, **settings) as llm:
            warm_up(llm)
            found["computed"] = expect(first_token(llm, prompt), lambda n: n == 0)
            found["pool"] = expect(first_token(llm, prompt), lambda n: n == len(prompt) - 1)
            first_token(llm, other)
            found["swap"] = expect(first_token(llm, prompt), lambda n: n > len(prompt) - 32)
        with LLM(model, **settings) as llm:
            warm_up(llm)
            found["disk"] = expect(first_token(llm, prompt), lambda n: n > len(prompt) - 32)
    return found


def crowds(model: str, prompts: list[list[int]], token_bytes: int) -> dict[str, dict[str, float]]:
    found = {}
    room = 8 * 400 * token_bytes
    for name, settings in (
        ("computed", {}),
        ("swapped", {"swap_space": 24 * 400 * token_bytes, "preemption_mode": "swap"}),
    ):
        with LLM(model, kv_cache_memory=room, max_model_len=512, **settings) as llm:  # type: ignore[arg-type]
            warm_up(llm)
            before = llm.engine.scheduler.counters.computed_tokens
            start = time.perf_counter()
            llm.generate(prompts, CROWD, use_tqdm=False)
            wall = time.perf_counter() - start
            counters = llm.engine.scheduler.counters
            found[name] = {
                "output_tokens_per_s": len(prompts) * 200 / wall,
                "computed_tokens": float(counters.computed_tokens - before),
                "preemptions": float(counters.preemptions),
            }
    return found


def warm_up(llm: LLM) -> None:
    llm.generate([[1, 2, 3]], ONE, use_tqdm=False)


def expect(measured: tuple[float, int], holds: Callable[[int], bool]) -> float:
    """The seconds, if as much was found as the measurement is about."""
    if not holds(measured[1]):
        raise SystemExit(f"{measured[1]} tokens were found stored, which is not what was meant")
    return measured[0]


if __name__ == "__main__":
    main()
