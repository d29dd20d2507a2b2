"""Responses that go on without the client that asked for them."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import msgspec

from looseleaf.server.call import current
from looseleaf.server.context import ServerContext
from looseleaf.server.generation import Generation
from looseleaf.server.responses.answer import ResponseWriter
from looseleaf.server.responses.protocol import ResponseAnswer
from looseleaf.server.responses.store import Record
from looseleaf.server.turn_stream import frames
from looseleaf.server.turns import Turn

_tasks: set[asyncio.Task[None]] = set()
"""The event loop itself holds tasks weakly."""


class Background:
    """One response and, with `logged`, its events, which any number of clients can follow.

    It counts as an answer under way: a server that shuts down waits for it, and it is among those
    that its API key may have at once. Belongs to the event loop's thread.
    """

    def __init__(self, generation: Generation, *, logged: bool) -> None:
        self.events: list[bytes] | None = [] if logged else None
        """In the order of their sequence numbers, which begin at 0."""
        self.said: list[dict[str, Any]] = []
        """By the assistant, as a message, once it has ended."""
        self._generation: Generation | None = generation
        self._changed = asyncio.Event()

    def start(
        self, context: ServerContext, turn: Turn, writer: ResponseWriter, record: Record
    ) -> None:
        """Let it run. `record` is what can be asked for until it has ended."""
        assert self._generation is not None
        context.responses.begin(writer.answer.id, record)
        context.gate.stay(current())
        news = frames(self._generation, turn, writer)
        task = asyncio.create_task(self._run(context, self._generation, news, record))
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)

    async def _run(
        self,
        context: ServerContext,
        generation: Generation,
        news: AsyncGenerator[bytes, None],
        record: Record,
    ) -> None:
        try:
            with context.lifecycle.answering():
                async for frame in news:
                    if self.events is not None:
                        self.events.append(frame)
                        self._tell()
        finally:
            generation.close()
            context.gate.leave(current())
            self._generation = None
            self._tell()
            context.responses.put(
                record.answer.id, replace(record, messages=record.messages + self.said)
            )

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self, first: int) -> AsyncGenerator[bytes, None]:
        """Its events from the sequence number `first` on, up to the last."""
        assert self.events is not None
        while True:
            changed = self._changed
            if first < len(self.events):
                news = self.events[first:]
                first += len(news)
                yield b"".join(news)
            elif self._generation is None:
                return
            else:
                await changed.wait()

    def shown(self, answer: ResponseAnswer) -> ResponseAnswer:
        """`answer` with the status that it has by now."""
        generation = self._generation
        if answer.status == "queued" and generation is not None and generation.has_begun:
            return msgspec.structs.replace(answer, status="in_progress")
        return answer
