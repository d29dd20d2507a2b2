"""News for one reader, in one event loop.

Each token of each answer goes through one. An `asyncio.Queue` costs several times as much here: it
asks for the running loop, and so for the process's id, whenever its reader waits.
"""

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Anybody on the loop's thread may `put`; one task at a time may `take`."""

    __slots__ = ("_loop", "_news", "_waiter")

    def __init__(self) -> None:
        """Raises RuntimeError where no event loop is running."""
        self._loop = asyncio.get_running_loop()
        self._news: list[T] = []
        self._waiter: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._news)

    def put(self, item: T) -> None:
        self._news.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[T]:
        """All that has come since the last time, oldest first; waits where nothing has."""
        if not self._news:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        news, self._news = self._news, []
        return news
