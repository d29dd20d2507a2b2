"""`looseleaf verify`"""

import argparse

from looseleaf.bench.machine import machine
from looseleaf.bench.progress import progress
from looseleaf.commands.options import (
    DEFAULTS,
    MODEL_HELP,
    add_execution,
    add_json,
    execution_settings,
    print_json,
)
from looseleaf.engine.llm import LLM
from looseleaf.engine.settings import EngineSettings
from looseleaf.verify.check import KEPT_SETTINGS, Row, Verifier
from looseleaf.verify.circumstances import CIRCUMSTANCES
from looseleaf.verify.soak import Outcome, as_dict, soak


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show that a request's answer depends on the request alone: the same requests are answered "
        "alone and under everything that may happen around them (company, chunks of a prompt, "
        "stored prefixes, preemption, threads, block sizes), and every token and every logit is "
        "compared, bit for bit. Ends with status 1 if one differs."
    )
    parser.epilog = "An example: looseleaf verify smollm2-135m"
    parser.add_argument(
        "model",
        nargs="?",
        default=DEFAULTS.model,
        metavar="MODEL",
        help=MODEL_HELP,
    )
    add_json(parser)
    add_execution(parser)
    parser.add_argument("--prompt-tokens", type=int, default=150, help="how long prompts are")
    parser.add_argument("--max-tokens", type=int, default=16, help="how long answers are")
    parser.add_argument(
        "--soak",
        type=int,
        default=0,
        metavar="N",
        help="then answer N requests of all kinds on a pool that is far too small, give some up, "
        "check the bookkeeping after every step, and compare every answer",
    )


def run(options: argparse.Namespace) -> int:
    settings = execution_settings(options)
    rows: list[Row] = []
    with progress("circumstances", len(CIRCUMSTANCES)) as advance:
        verifier = Verifier(
            settings, prompt_tokens=options.prompt_tokens, max_tokens=options.max_tokens
        )
        for row in verifier.run():
            rows.append(row)
            advance()
    passed = all(row.passed for row in rows)
    outcome = _soak(settings, options.soak) if options.soak else None
    passed = passed and (outcome is None or outcome.passed)
    if options.json:
        print_json(
            {
                "model": options.model,
                "executor": verifier.executor,
                "passed": passed,
                "requests": [case.name for case in verifier.cases],
                "circumstances": [row._asdict() | {"passed": row.passed} for row in rows],
                **({} if outcome is None else {"soak": as_dict(outcome)}),
                "machine": machine(),
            }
        )
    else:
        _show(verifier, rows, outcome, passed)
    return 0 if passed else 1


def _soak(settings: EngineSettings, num_requests: int) -> Outcome:
    kept = {name: getattr(settings, name) for name in KEPT_SETTINGS}
    with progress("requests", num_requests) as advance:
        return soak(lambda **more: LLM(**(kept | more)), num_requests, advance=advance)


def _show(verifier: Verifier, rows: list[Row], outcome: Outcome | None, passed: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Tokens and logits, next to those of each request alone", box=None)
    table.add_column("circumstance")
    names = [case.name for case in verifier.cases]
    for name in names:
        table.add_column(name, justify="center")
    for row in rows:
        if row.failure is not None:
            table.add_row(row.name, row.failure)
        else:
            table.add_row(row.name, *(row.differences[name] or "same" for name in names))
    console = Console()
    console.print(table)
    if outcome is not None:
        console.print(
            f"\n{outcome.requests} requests in {outcome.steps} steps: {outcome.given_up} given up, "
            f"{outcome.preemptions} preemptions, {outcome.cached_tokens} prompt tokens found "
            f"stored, {outcome.loaded_blocks} blocks loaded, {outcome.accepted_tokens} tokens "
            f"guessed right, {outcome.compared} answers compared, the bookkeeping "
            "checked at every step."
        )
        for found in outcome.differences:
            console.print(f"not as alone: {found}")
    console.print(
        f"\nEvery bit is the same, on the {verifier.executor} executor."
        if passed
        else "\nSomething differs: please report this table."
    )
