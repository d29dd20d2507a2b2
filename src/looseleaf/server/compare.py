"""/studio/compare: two allocators on the same arrivals, side by side.

Each comparison is a process of its own at the lowest priority, so that an engine that serves here
keeps its interpreter, and its processors whenever it wants them. It is as fast as whoever reads,
and ends with its viewer.
"""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Self

import msgspec
from starlette.requests import Request

from looseleaf.core.errors import LooseleafError
from looseleaf.server.errors import ApiError, invalid
from looseleaf.studio.compare import Setup

MAX_COMPARISONS = 2
"""At a time; more are refused."""

PIECE = 1 << 16
RECORDING = "recording"
MADE_UP = "made-up"


class Comparisons:
    """Belongs to the event loop's thread. With a `recording`, its requests may be the arrivals."""

    def __init__(self, recording: Path | None = None) -> None:
        self._recording = recording
        self._running: set[Comparison] = set()

    @property
    def arrivals(self) -> list[str]:
        """What may be asked for, the best first."""
        return [RECORDING, MADE_UP] if self._recording is not None else [MADE_UP]

    @property
    def num_running(self) -> int:
        return len(self._running)

    def start(self, request: Request) -> "Comparison":
        """Lines of JSON, as `looseleaf.studio.compare` has them. Raises ApiError."""
        setup = self._setup(request)
        if self.num_running >= MAX_COMPARISONS:
            raise ApiError(
                503,
                f"{MAX_COMPARISONS} comparisons are being computed already: wait for one to end",
            )
        return Comparison(setup, self._running)

    def close(self) -> None:
        """End all that run."""
        for comparison in self._running:
            comparison.kill()

    def _setup(self, request: Request) -> Setup:
        asked = dict(request.query_params)
        arrivals = asked.pop("arrivals", self.arrivals[0])
        if arrivals not in self.arrivals:
            raise invalid(f"arrivals must be one of {', '.join(self.arrivals)}", "arrivals")
        if arrivals == RECORDING:
            asked["recording"] = str(self._recording)
        elif "recording" in asked:
            raise invalid("a recording is chosen when the studio is started", "recording")
        try:
            setup = msgspec.convert(asked, Setup, strict=False)
            setup.check()
        except msgspec.ValidationError:
            known = ", ".join(n for n in Setup.__struct_fields__ if n != "recording")
            raise invalid(f"a comparison takes {known}, and arrivals: names or numbers") from None
        except LooseleafError as error:
            raise invalid(str(error)) from None
        return setup


class Comparison:
    """The lines of one, in pieces. Must be closed, also where nothing was read."""

    def __init__(self, setup: Setup, running: "set[Comparison]") -> None:
        self._setup = setup
        self._running = running
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        running.add(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._process is None and not self._ended:
            # It begins even where the viewer goes meanwhile, lest nobody ends it.
            await asyncio.shield(self._begin())
        if self._ended or self._process is None:
            raise StopAsyncIteration
        assert self._process.stdout is not None
        piece = await asyncio.to_thread(self._process.stdout.read, PIECE)
        if not piece:
            raise StopAsyncIteration
        return piece

    async def _begin(self) -> None:
        self._process = await asyncio.to_thread(_run, self._setup)
        if self._ended:
            self._process.kill()
            await asyncio.to_thread(_end, self._process)

    def kill(self) -> None:
        self._ended = True
        if self._process is not None:
            self._process.kill()

    async def aclose(self) -> None:
        self.kill()
        if self in self._running:
            self._running.remove(self)
            if self._process is not None:
                await asyncio.shield(asyncio.to_thread(_end, self._process))


def _run(setup: Setup) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "looseleaf.studio.compare",
        msgspec.json.encode(setup).decode(),
    ]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, bufsize=0)


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    process.wait()
    process.stdout.close()
