"""`looseleaf studio`"""

import argparse
import signal
import sys
from pathlib import Path

from looseleaf.commands.listening import add_address
from looseleaf.core.errors import LooseleafError
from looseleaf.engine.meter import Meter
from looseleaf.engine.settings import format_bytes
from looseleaf.server.run import bind
from looseleaf.server.studio import PATH, STATIC, Studio
from looseleaf.server.studio_app import StudioServer
from looseleaf.studio.export import HISTORY_SECONDS, moment_of, payload, self_contained
from looseleaf.studio.hub import LINGER_SECONDS, Hub
from looseleaf.studio.recording import lines_of
from looseleaf.studio.showcase import Showcase, Traffic

DEFAULT_PORT = 8010
DEFAULT_TRAFFIC = Traffic()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show KV memory in a browser: a recording of a server, or, without one, made-up chats on "
        "the real bookkeeping. A running server shows its own on /studio."
    )
    parser.add_argument(
        "recording",
        nargs="?",
        type=Path,
        metavar="RECORDING",
        help="a file that `looseleaf serve --studio-record` has written",
    )
    add_address(parser, DEFAULT_PORT)
    export = parser.add_argument_group("export")
    export.add_argument(
        "--export",
        type=Path,
        metavar="FILE.html",
        help="write a moment of RECORDING to a page that opens from disk, and end",
    )
    export.add_argument(
        "--at",
        type=float,
        metavar="SECONDS",
        help="which moment, counted from the recording's beginning (default: its end)",
    )
    export.add_argument(
        "--history",
        type=float,
        default=HISTORY_SECONDS,
        metavar="SECONDS",
        help="how much of what was before it is in the page too; inf is all of it",
    )
    chats = parser.add_argument_group("made-up chats")
    chats.add_argument(
        "--num-blocks", type=int, default=DEFAULT_TRAFFIC.num_blocks, help="blocks in the pool"
    )
    chats.add_argument(
        "--max-num-seqs",
        type=int,
        default=DEFAULT_TRAFFIC.max_num_seqs,
        help="most sequences in a step",
    )
    chats.add_argument(
        "--rate",
        type=float,
        default=DEFAULT_TRAFFIC.chats_per_second,
        metavar="CHATS",
        help="that come in a second",
    )
    chats.add_argument("--seed", type=int, default=0, help="other chats")


def run(options: argparse.Namespace) -> None:
    if options.export is not None:
        _export(options)
        return
    if options.at is not None:
        raise LooseleafError("--at says what to export: it needs --export FILE.html")
    server = _replay(options.recording) if options.recording else _showcase(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with bind(options.host, options.port) as listener:
        host, port = listener.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        print(f"the studio is at http://{address}{PATH}/", flush=True)
        server.run(sockets=[listener])


def _export(options: argparse.Namespace) -> None:
    if options.recording is None:
        raise LooseleafError("--export needs a RECORDING to take a moment from")
    if not options.history >= 0:
        raise LooseleafError(f"--history is {options.history:g}, but it must be at least 0")
    moment = moment_of(options.recording, options.at, options.history)
    page = self_contained(STATIC, payload(moment))
    try:
        options.export.write_bytes(page)
    except OSError as error:
        raise LooseleafError(f"cannot write {options.export}: {error.strerror or error}") from error
    print(
        f"{options.export}: {moment.end - moment.start:.1f} seconds, {len(moment.frames)} frames, "
        f"{format_bytes(len(page))}"
    )


def _replay(path: Path) -> StudioServer:
    if next(iter(lines_of(path)), None) is None:
        raise LooseleafError(f"{path} is empty: nothing was recorded")
    return StudioServer(Studio(recording=path))


def _showcase(options: argparse.Namespace) -> StudioServer:
    for name, least in (("num_blocks", 16), ("max_num_seqs", 1)):
        value = getattr(options, name)
        if value < least:
            flag = "--" + name.replace("_", "-")
            raise LooseleafError(f"{flag} is {value}, but it must be at least {least}")
    if not 0 < options.rate <= 1000:
        raise LooseleafError(f"--rate is {options.rate:g}, but it must be above 0, at most 1000")
    traffic = Traffic(
        num_blocks=options.num_blocks,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=max(256, 2 * options.max_num_seqs),
        chats_per_second=options.rate,
    )
    showcase = Showcase(traffic, options.seed)
    hub = Hub(
        showcase.call,
        model="made-up chats",
        misses=Meter(showcase.engine).misses,
        linger=LINGER_SECONDS,
    )
    return StudioServer(Studio(hub, model="made-up chats"), showcase.run)
