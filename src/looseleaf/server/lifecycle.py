"""From start to stop: what a server that shuts down still waits for."""

from collections.abc import Iterator
from contextlib import contextmanager

from looseleaf.engine.service import EngineService


class Lifecycle:
    """Belongs to the event loop's thread. From `stopping` on, no further request is taken."""

    def __init__(self, service: EngineService) -> None:
        self.stopping = False
        self.num_answers = 0
        """Under way."""
        self._service = service
        self._stopped = False

    @property
    def healthy(self) -> bool:
        return self._service.failure is None and not self.stopping

    def start(self) -> None:
        self._service.start()

    async def stop(self) -> None:
        """End the engine, and with an error what still waits for it. A second call does nothing."""
        self.stopping = True
        if not self._stopped:
            self._stopped = True
            await self._service.stop()

    @contextmanager
    def answering(self) -> Iterator[None]:
        self.num_answers += 1
        try:
            yield
        finally:
            self.num_answers -= 1
