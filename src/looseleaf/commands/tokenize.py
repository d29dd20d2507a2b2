"""`looseleaf tokenize`"""

import argparse

from looseleaf.commands.options import add_json, add_model, parse_json, print_json, read_stdin
from looseleaf.core.errors import LooseleafError
from looseleaf.engine.build import load_text
from looseleaf.weights.gguf import GGUFFile
from looseleaf.weights.source import resolve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Show the tokens of the text on standard input, taken exactly as it is."
    add_model(parser)
    parser.add_argument(
        "--parse-special",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="let text that spells a control token become that token",
    )
    parser.add_argument(
        "--add-special",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="add the tokens that the model begins and ends a text with, if it has any",
    )
    parser.add_argument(
        "--messages",
        action="store_true",
        help="standard input is a JSON list of chat messages: tokenize the prompt they become, as "
        "the server does",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    with GGUFFile(resolve(options.model, cache_dir=options.cache_dir)) as file:
        text = load_text(file)
        max_model_len = file.metadata.get(f"{file.architecture}.context_length")
    given = read_stdin("the messages" if options.messages else "the text")
    prompt = given
    if options.messages:
        messages = parse_json(given, "the list of messages")
        if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
            raise LooseleafError("the messages are not a list of objects; write [{...}, ...]")
        prompt = text.chat_template.render(messages)
        tokens = text.tokenizer.encode_chat(prompt)
    else:
        tokens = text.tokenizer.encode(
            prompt, add_special=options.add_special, parse_special=options.parse_special
        )
    strings = [text.tokenizer.token_str(token_id) for token_id in tokens]
    if options.json:
        result = {
            "count": len(tokens),
            "max_model_len": max_model_len,
            "tokens": tokens,
            "token_strs": strings,
        }
        print_json(result | ({"prompt": prompt} if options.messages else {}))
        return
    for token_id, string in zip(tokens, strings, strict=True):
        print(f"{token_id:8}  {string!r}")
    print(f"{len(tokens)} tokens")
