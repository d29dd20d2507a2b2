"""`looseleaf calibrate`"""

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from looseleaf.commands.options import (
    DEFAULTS,
    add_engine,
    add_json,
    add_model,
    at_least,
    engine_settings,
    print_json,
)
from looseleaf.core.errors import ConfigError

if TYPE_CHECKING:
    from looseleaf.planner.calibrated import CalibratedModel


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
    parser.add_argument(
        "--url",
        help="measure a running OpenAI server instead, like http://localhost:8000/v1, by the times "
        "of its streams; then --model is a name that it serves, and --max-num-seqs, "
        "--max-num-batched-tokens and --max-model-len should be its own",
    )
    parser.add_argument("--api-key", metavar="KEY", help="for --url (default: VLLM_API_KEY)")
    add_engine(parser)


def run(options: argparse.Namespace) -> None:
    output = options.output
    if output is not None and (output.is_dir() or not output.parent.is_dir()):
        raise ConfigError(f"--output {str(output)!r} is no file that can be written")
    if options.url is None and options.api_key is not None:
        raise ConfigError("--api-key is for a server: pass --url too")
    model = _of_this_machine(options) if options.url is None else _of_a_server(options)
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
    _show(model)
    if output is None:
        print("Keep it with --output FILE.")


def _of_this_machine(options: argparse.Namespace) -> "CalibratedModel":
    # Only now: the help needs no engine.
    from looseleaf.bench.machine import processor
    from looseleaf.bench.progress import progress
    from looseleaf.engine.build import build
    from looseleaf.planner.calibrate import calibrate
    from looseleaf.planner.loads import loads, served_steps

    stack = build(engine_settings(options))
    memory, settings = stack.memory, stack.settings
    plan = [
        load
        for seed in range(options.rounds)
        for load in loads(settings.max_num_seqs, memory.max_model_len, memory.num_tokens, seed)
    ]
    if not plan:
        stack.engine.close()
        raise ConfigError(
            f"max_model_len {memory.max_model_len} leaves no room for a prompt and an answer: "
            f"raise it"
        )
    with progress("loads", len(plan)) as advance:
        timer = asyncio.run(served_steps(stack, plan, on_load=advance))
    return calibrate(
        timer.steps,
        f"{processor()} with {settings.threads} threads, {settings.model}, "
        f"{settings.executor}, KV in {settings.kv_cache_dtype}",
        timer.besides,
    )


def _of_a_server(options: argparse.Namespace) -> "CalibratedModel":
    from looseleaf.bench.progress import progress
    from looseleaf.planner.outside import calibrate_outside, observe, outside_loads
    from looseleaf.planner.streams import OutsideServer

    server = OutsideServer(options.url, options.api_key or options.environment_api_key)
    served = _served(server.models(), options.model)
    longest = options.max_model_len or served.get("max_model_len") or 4096
    plan = outside_loads(options.max_num_seqs, int(longest)) * options.rounds
    if not plan:
        raise ConfigError(f"max_model_len {longest} leaves no room for a prompt and an answer")
    with progress("loads", len(plan)) as advance:
        found = observe(
            server,
            served["id"],
            plan,
            chunk_tokens=options.max_num_batched_tokens,
            on_load=advance,
        )
    return calibrate_outside(found, f"{options.url}, {served['id']}")


def _served(models: list[dict[str, Any]], wanted: str) -> dict[str, Any]:
    """The model of this name, or the first if none was asked for."""
    for model in models:
        if model["id"] == wanted:
            return model
    if wanted == DEFAULTS.model:
        return models[0]
    names = ", ".join(str(model["id"])[:60] for model in models[:5])
    raise ConfigError(f"the server does not serve {wanted!r}, but {names}")


def _show(model: "CalibratedModel") -> None:
    print(model.name)
    measured = model.measured
    what = "times" if model.cooling is None else "steps"  # those of a server's streams
    print(f"{measured['num_steps']} {what}; errors where a load was left out of the fit:")
    for kind, one in measured["residuals"].items():
        print(
            f"  {kind:8} {one['num_steps']:5} {what}  median {one['median']:6.1%}  "
            f"95% within {one['p95']:6.1%}  all together {one['total']:+6.1%}"
        )
    print(f"Each request takes {1000 * measured['request_seconds']:.1f} ms besides its steps.")
    if model.is_noisy:
        print("warning: other programs were running: measure again when nothing else does")
