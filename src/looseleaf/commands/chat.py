"""`looseleaf chat`"""

import argparse
import sys
from typing import Any

from looseleaf.commands.options import (
    add_engine,
    add_model,
    add_sampling,
    engine_settings,
    from_utf8,
    sampling_params,
)
from looseleaf.core.errors import CapacityError
from looseleaf.engine.build import build
from looseleaf.engine.llm import LLM
from looseleaf.sampling.params import SamplingParams


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Talk to a model in the terminal. Each turn reuses the KV of the turns before it. "
        "An empty line or Ctrl-D ends; lines may also be piped in."
    )
    add_model(parser)
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    parser.add_argument(
        "--verbose", "-v", action="store_true", help="say after each turn what was reused"
    )
    add_sampling(parser, max_tokens=None, temperature=0.7)
    add_engine(parser)


def run(options: argparse.Namespace) -> None:
    params = sampling_params(options)
    messages: list[dict[str, Any]] = []
    if options.system is not None:
        messages.append({"role": "system", "content": options.system})
    with LLM(stack=build(engine_settings(options))) as llm:
        while (line := _ask()) is not None:
            messages.append({"role": "user", "content": line})
            try:
                messages.append(
                    {"role": "assistant", "content": _turn(llm, messages, params, options)}
                )
            except CapacityError as error:
                if not sys.stdin.isatty():
                    raise
                messages.pop()
                print(f"looseleaf: {error}; or start a new conversation", file=sys.stderr)


def _turn(
    llm: LLM,
    messages: list[dict[str, Any]],
    params: SamplingParams,
    options: argparse.Namespace,
) -> str:
    """Print one answer as it comes; Ctrl-C ends the answer and keeps what there is of it."""
    prompt = llm.chat_tokens(llm.stack.chat_template.render(messages))
    answer, turn = "", None
    stream = llm.stream(prompt, params, continues_text=False)
    try:
        for group, delta in stream:
            turn = group
            answer += delta.text
            sys.stdout.write(delta.text)
            sys.stdout.flush()
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
    finally:
        stream.close()
    print()
    if options.verbose and turn is not None:
        print(
            f"[{turn.num_prompt_tokens} prompt tokens, {turn.num_cached_tokens} of them reused; "
            f"{turn.num_output_tokens} generated]",
            file=sys.stderr,
        )
    return answer


def _ask() -> str | None:
    if not sys.stdin.isatty():
        for line in sys.stdin.buffer:
            if line.strip():
                return from_utf8(line, "a line of standard input").rstrip("\r\n")
        return None
    try:
        return input("> ").strip() or None
    except EOFError:
        print()
        return None
