"""`looseleaf pull`"""

import argparse

from looseleaf.commands.options import add_json, print_json
from looseleaf.engine.settings import format_bytes
from looseleaf.weights.source import known_models, resolve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        default="smollm2-135m",
        help="a known name, or hf:ORG/REPO[:FILE]",
    )
    parser.add_argument("--list", action="store_true", help="list the known names and stop")
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    if options.list:
        models = known_models()
        if options.json:
            print_json(
                [{"name": m.name, "summary": m.summary, "size": m.size} for m in models.values()]
            )
        else:
            for model in models.values():
                print(f"{model.name:16} {format_bytes(model.size):>10}  {model.summary}")
        return
    path = resolve(options.model, cache_dir=options.cache_dir)
    if options.json:
        print_json({"model": options.model, "path": str(path), "size": path.stat().st_size})
    else:
        print(path)
