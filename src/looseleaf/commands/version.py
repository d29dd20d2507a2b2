"""`looseleaf version`"""

import argparse

from looseleaf import __version__
from looseleaf.commands.options import add_json, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    if options.json:
        print_json({"version": __version__})
    else:
        print(f"looseleaf {__version__}")
