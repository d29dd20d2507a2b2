"""`looseleaf demo`"""

import argparse
from typing import Any

from looseleaf.commands.options import (
    add_engine,
    add_json,
    add_model,
    engine_settings,
    print_json,
)
from looseleaf.core.errors import LooseleafError
from looseleaf.demo import sharing, waste


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Three things in one go: how blocks are shared and copied, what reserving memory wastes, "
        "and a real model answering eight chats that share a system prompt."
    )
    add_json(parser)
    parser.add_argument("--seeds", type=int, default=200, help="runs of the waste simulation")
    parser.add_argument("--skip-model", action="store_true", help="leave the model out")
    add_model(parser)
    add_engine(parser)


def run(options: argparse.Namespace) -> None:
    if options.seeds < 2:
        raise LooseleafError(f"--seeds is {options.seeds}, but a spread needs at least 2")
    show = not options.json
    results: dict[str, Any] = {"sharing": sharing.walk_through()}
    if show:
        _show_sharing(results["sharing"])
    results["waste"] = waste.simulate(options.seeds)
    if show:
        _show_waste(results["waste"])
    if not options.skip_model:
        results["model"] = _chats(options)
        if show:
            _show_chats(results["model"])
    if options.json:
        print_json(results)


def _chats(options: argparse.Namespace) -> dict[str, Any]:
    # Only now: the first two parts need neither NumPy nor a model.
    from looseleaf.demo.chats import eight_chats
    from looseleaf.engine.build import build
    from looseleaf.engine.llm import LLM

    with LLM(stack=build(engine_settings(options))) as llm:
        return eight_chats(llm)


def _show_sharing(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.rule("[bold]1. Sharing: one prompt, four sequences, no second copy of it")
    table = Table("sequence", "tokens", "block table", box=None)
    last = {}
    for name, block_ids in result["tables"].items():
        table.add_row(name, str(result["lengths"][name]), "  ".join(map(str, block_ids)))
        last[block_ids[-1]] = name
    console.print(table)
    counts = ", ".join(f"block {i}: {count}" for i, count in enumerate(result["ref_counts"]))
    console.print(f"reference counts: {counts}")
    console.print(
        f"{result['copies']} copy on write: C goes on in the middle of A's last block.\n"
        f"[bold]{result['blocks_without_sharing']} blocks without sharing, "
        f"{result['blocks_used']} with.[/] In use after freeing sys, A, B, C in turn: "
        f"{', '.join(map(str, result['in_use_after_free']))}.\n"
    )


def _show_waste(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.rule("[bold]2. Waste: the same sequences in three allocators")
    console.print(
        f"{result['sequences']} sequences of up to {result['max_length']} tokens, mean of "
        f"{result['seeds']} seeded runs; memory that no token uses, of the memory taken:"
    )
    table = Table("allocator", "waste", "95% interval of the mean", "exact", box=None)
    for name, label in (
        ("contiguous", f"reserve {result['max_length']} for each"),
        ("power_of_two", "reserve a power of two"),
        ("paged", f"blocks of {result['block_size']}"),
    ):
        low, high = result["confidence_95"][name]
        table.add_row(
            label,
            f"{result[name]:.2%}",
            f"{low:.2%} .. {high:.2%}",
            f"{result['exact'][name]:.2%}",
        )
    console.print(table)
    sizes = "   ".join(f"{size}: {w:.2%}" for size, w in result["by_block_size"].items())
    console.print(f"paged waste by block size   {sizes}")
    console.print(
        f"[bold]The same memory holds {result['concurrency']:.2f} times as many sequences[/] as "
        f"with full reservation, and {result['concurrency_over_power_of_two']:.2f} times as many "
        f"as with powers of two.\n(Waste is weighted by tokens; the mean over sequences is "
        f"{result['per_sequence_paged']:.2%} with blocks of {result['block_size']}.)\n"
    )


def _show_chats(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.rule(f"[bold]3. {result['model']}: eight chats that share a system prompt")
    table = Table("question", "answer", "prompt", "cached", box=None)
    for chat in result["chats"]:
        table.add_row(
            chat["question"],
            chat["answer"],
            str(chat["prompt_tokens"]),
            str(chat["cached_tokens"]),
        )
    console.print(table)
    console.print(
        f"\n[bold]{result['blocks_without_sharing']} blocks without sharing, "
        f"{result['blocks_used']} with[/] ({result['blocks_saved_fraction']:.0%} saved, "
        f"{result['kv_bytes_saved'] / 2**20:.0f} MiB); {result['sequences_running']} sequences "
        f"running at once.\n"
        f"{result['cached_tokens']} of {result['prompt_tokens']} prompt tokens were found stored: "
        f"a hit rate of {result['hit_rate']:.1%} (blocks of {result['block_size']}, all from a "
        f"cold start).\n"
        f"Of the slots taken, {result['utilisation']['physical']:.1%} held a token "
        f"({result['waste']:.1%} will never hold one); counting each sequence's own length, "
        f"{result['utilisation']['effective']:.2f} tokens a slot.\n"
        f"{result['output_tokens']} tokens in {result['seconds']:.1f} s."
    )
