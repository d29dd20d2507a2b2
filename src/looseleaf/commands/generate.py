"""`looseleaf generate`"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from looseleaf.commands.options import (
    add_engine,
    add_json,
    add_model,
    add_profile,
    add_sampling,
    engine_settings,
    parse_json,
    print_json,
    read_stdin,
    sampling_params,
)
from looseleaf.core.errors import LooseleafError
from looseleaf.engine.beams import BeamSearchParams
from looseleaf.engine.build import build
from looseleaf.engine.llm import LLM, RequestOutput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Continue one prompt: from an option, or from standard input."
    add_model(parser)
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", "-p", metavar="TEXT", help="the text to continue")
    prompt.add_argument("--prompt-token-ids", metavar="IDS", help="a JSON list such as '[1, 2]'")
    add_json(parser)
    parser.add_argument("--n", type=int, default=1, help="samples of the same prompt")
    parser.add_argument(
        "--prompt-logprobs",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="with --json, also say how likely each prompt token was",
    )
    parser.add_argument(
        "--beam-width",
        type=int,
        metavar="N",
        help="search for the N likeliest answers side by side, in place of sampling",
    )
    parser.add_argument(
        "--length-penalty",
        type=float,
        default=1.0,
        metavar="P",
        help="with --beam-width: answers are ranked by their log-probability over length ** P",
    )
    add_sampling(parser, max_tokens=128, temperature=0.0)
    add_engine(parser)
    add_profile(parser)


def run(options: argparse.Namespace) -> None:
    prompt = _prompt(options)
    if options.beam_width is not None:
        _search(options, prompt)
        return
    params = sampling_params(
        options, n=options.n, prompt_logprobs=options.json and options.prompt_logprobs
    )
    with LLM(stack=build(engine_settings(options))) as llm:
        if options.profile:
            # Only now: nobody else needs it, and it is measured how fast this command starts.
            from looseleaf.bench.profile import profile_json, show_profile, start_profile

            start_profile(llm.engine)
        if options.json:
            (output,) = llm.generate([prompt], params)
            result = _as_json(output)
            if options.profile:
                result["profile"] = profile_json(llm.engine)
            print_json(result)
        elif options.n > 1:
            (output,) = llm.generate([prompt], params)
            for sample in output.outputs:
                print(f"[{sample.index}] {sample.text}")
        else:
            token_ids = (
                llm.stack.tokenizer.encode(prompt, add_special=True, parse_special=True)
                if isinstance(prompt, str)
                else prompt
            )
            for _, delta in llm.stream(token_ids, params):
                sys.stdout.write(delta.text)
                sys.stdout.flush()
            print()
        if options.profile and not options.json:
            show_profile(llm.engine)


def _search(options: argparse.Namespace, prompt: str | Sequence[int]) -> None:
    params = BeamSearchParams(
        beam_width=options.beam_width,
        max_tokens=options.max_tokens,
        length_penalty=options.length_penalty,
        ignore_eos=options.ignore_eos,
        constraints=sampling_params(options),
    )
    with LLM(stack=build(engine_settings(options))) as llm:
        (output,) = llm.beam_search([prompt], params)
    if not options.json:
        for index, beam in enumerate(output.sequences):
            print(f"[{index}] {beam.score:.4f} {beam.text}")
        return
    print_json(
        {
            "prompt_token_ids": list(output.prompt_token_ids),
            "beams": [
                {
                    "output_token_ids": list(beam.token_ids),
                    "text": beam.text,
                    "cumulative_logprob": beam.cumulative_logprob,
                    "score": beam.score,
                    "finish_reason": beam.finish_reason,
                }
                for beam in output.sequences
            ],
        }
    )


def _prompt(options: argparse.Namespace) -> str | Sequence[int]:
    if options.prompt is not None:
        return str(options.prompt)
    if options.prompt_token_ids is None:
        return read_stdin("the prompt, with --prompt or --prompt-token-ids, or")
    token_ids = parse_json(options.prompt_token_ids, "--prompt-token-ids")
    if not isinstance(token_ids, list) or not all(type(i) is int for i in token_ids):
        raise LooseleafError("--prompt-token-ids is not a list of whole numbers, such as '[1, 2]'")
    return token_ids


def _as_json(output: RequestOutput) -> dict[str, Any]:
    first = output.outputs[0]
    num_prompt = len(output.prompt_token_ids)
    num_output = sum(len(sample.token_ids) for sample in output.outputs)
    result: dict[str, Any] = {
        "prompt_token_ids": list(output.prompt_token_ids),
        "output_token_ids": list(first.token_ids),
        "text": first.text,
        "finish_reason": first.finish_reason,
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
            "prompt_tokens_details": {"cached_tokens": output.num_cached_tokens},
        },
    }
    if output.prompt_logprobs is not None:
        result["prompt_logprobs"] = list(output.prompt_logprobs)
    if len(output.outputs) > 1:
        result["choices"] = [
            {
                "index": sample.index,
                "output_token_ids": list(sample.token_ids),
                "text": sample.text,
                "finish_reason": sample.finish_reason,
            }
            for sample in output.outputs
        ]
    return result
