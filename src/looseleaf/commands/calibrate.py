"""`looseleaf calibrate`"""

import argparse
from pathlib import Path

from looseleaf.commands.options import (
    add_engine,
    add_json,
    add_model,
    at_least,
    engine_settings,
    print_json,
)
from looseleaf.core.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_json(parser)
    parser.add_argument(
        "--output", "-o", type=Path, metavar="FILE", help="keep the cost model in this file"
    )
    parser.add_argument(
        "--rounds",
        type=at_least(1),
        default=2,
        metavar="N",
        help="run each load N times; nothing else should run meanwhile",
    )
    add_engine(parser)


def run(options: argparse.Namespace) -> None:
    # Only now: the help needs no engine.
    from looseleaf.bench.machine import processor
    from looseleaf.bench.progress import progress
    from looseleaf.engine.build import build
    from looseleaf.engine.llm import LLM
    from looseleaf.planner.calibrate import NUM_OUTPUT_TOKENS, calibrate, loads, time_steps
    from looseleaf.sampling.params import SamplingParams

    output = options.output
    if output is not None and (output.is_dir() or not output.parent.is_dir()):
        raise ConfigError(f"--output {str(output)!r} is no file that can be written")
    params = SamplingParams(temperature=0, max_tokens=NUM_OUTPUT_TOKENS, ignore_eos=True)
    with LLM(stack=build(engine_settings(options))) as llm:
        memory, settings = llm.stack.memory, llm.stack.settings
        plan = loads(settings.max_num_seqs, memory.max_model_len, memory.num_tokens)
        if not plan:
            raise ConfigError(
                f"max_model_len {memory.max_model_len} leaves no room for a prompt and "
                f"{NUM_OUTPUT_TOKENS} tokens: raise it"
            )
        plan *= options.rounds
        with progress("loads", len(plan)) as advance:
            steps = time_steps(
                llm.engine, llm.stack.tokenizer.vocab_size, params, plan, on_load=advance
            )
        machine = (
            f"{processor()} with {settings.threads} threads, {settings.model}, "
            f"{settings.executor}, KV in {settings.kv_cache_dtype}"
        )
    model = calibrate(steps, machine)
    if output is not None:
        model.save(output)
    if options.json:
        print_json(
            {
                "name": model.name,
                **model.measured,
                "noisy": model.is_noisy,
                "output": output and str(output),
            }
        )
        return
    print(model.name)
    print(f"{len(steps)} steps; errors where a load was left out of the fit:")
    for kind, one in model.measured["residuals"].items():
        print(
            f"  {kind:8} {one['num_steps']:5} steps  median {one['median']:6.1%}  "
            f"95% within {one['p95']:6.1%}  all together {one['total']:+6.1%}"
        )
    if model.is_noisy:
        print("warning: other programs were running: measure again when nothing else does")
    if output is None:
        print("Keep it with --output FILE.")
