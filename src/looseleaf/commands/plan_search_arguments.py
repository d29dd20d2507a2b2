"""The options of `looseleaf plan` for several replicas, and for trying many settings."""

import argparse

from looseleaf.commands.options import at_least, read_by
from looseleaf.planner.slo import parse_slo
from looseleaf.routing.policies import POLICIES

BLOCK_SIZES = (8, 16, 32, 64)


def add_replicas(parser: argparse.ArgumentParser) -> None:
    replicas = parser.add_argument_group("replicas")
    replicas.add_argument(
        "--replicas",
        type=at_least(1),
        default=1,
        metavar="N",
        help="engines with a cache of their own each, behind a router",
    )
    replicas.add_argument(
        "--routing",
        choices=POLICIES,
        default=POLICIES[0],
        help="which of them gets a request: one after the other, the one with the fewest, or the "
        "one that was sent the longest beginning of the prompt before",
    )


def add_searches(parser: argparse.ArgumentParser) -> None:
    searches = parser.add_argument_group("limits and searches")
    searches.add_argument(
        "--slo",
        type=read_by(parse_slo),
        metavar="LIMITS",
        help="limits on latency, like ttft=1s,tpot=50ms (or e2e), each for 95%% of the requests; "
        "another share with ttft_p=0.9. Whether they are kept is told, or with --search what keeps "
        "them",
    )
    searches.add_argument(
        "--search",
        action="store_true",
        help="find the largest rate that keeps --slo (of a closed loop, as with --concurrency: the "
        "most clients), the best block size, the replicas that the trace's own load needs, and the "
        "cost (the first 2000 requests, or --limit)",
    )
    searches.add_argument(
        "--price-per-hour",
        type=_price,
        metavar="X",
        help="of one device, in your money: --search tells the cost in it (default: device hours)",
    )
    searches.add_argument(
        "--sweep",
        type=_sweep,
        action="append",
        default=[],
        metavar="NAME=V,V,...",
        help="play the trace with each of these values of an option, like block_size=8,16,32; of "
        "several, with each combination",
    )
    searches.add_argument(
        "--jobs",
        type=at_least(1),
        default=1,
        metavar="N",
        help="processes for --search and --sweep; the results do not depend on it",
    )


def _price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = 0.0
    if not 0 < price < 1e9:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a price: it must be above 0")
    return price


def _sweep(text: str) -> tuple[str, tuple[str, ...]]:
    """The option's name, as in EngineSettings, and its values, not read yet."""
    name, _, values = text.partition("=")
    found = tuple(dict.fromkeys(value.strip() for value in values.split(",") if value.strip()))
    if not name or not found:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} says no values: write it like block_size=8,16,32"
        )
    return name.strip().lstrip("-").replace("-", "_"), found
