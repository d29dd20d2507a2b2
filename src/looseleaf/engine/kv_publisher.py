"""KV events over ZeroMQ, as vLLM publishes them: whoever subscribes follows what is cached here."""

import logging
import queue
import threading
from collections import deque
from typing import TYPE_CHECKING, Literal

import msgspec

from looseleaf.core.block_tables import BlockTables
from looseleaf.core.errors import ConfigError
from looseleaf.engine.engine import Engine
from looseleaf.engine.kv_events import BlockLog, Change, KVEventSource, kv_event_batch

if TYPE_CHECKING:
    import zmq

logger = logging.getLogger(__name__)

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
REPLAY_SECONDS = 0.1
"""How long a request for a replay may wait for the thread."""
LAST_WORDS_SECONDS = 0.5
"""For what is not sent yet when the publisher is closed."""
HEARTBEAT_SECONDS = 20
"""A subscriber that does not answer within this time is given up, with what waits for it."""


class KVEventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's, with its names. `hwm` messages at most wait for a subscriber, which misses those that
    are more; `max_queue_size` batches at most wait to be sent; the last `buffer_steps` can be
    replayed."""

    enable_kv_cache_events: bool = False
    publisher: Literal["zmq", "null"] | None = None
    endpoint: str = "tcp://127.0.0.1:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""

    def __post_init__(self) -> None:
        for name in ("buffer_steps", "hwm", "max_queue_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but it must be at least 1")

    @property
    def is_on(self) -> bool:
        return self.enable_kv_cache_events and self.publisher != "null"


class KVEventStream:
    """The events of one engine, from its owner's thread to subscribers.

    The engine is to be built with `log`, and `watch` to be called between its steps. A subscriber
    that is slow or gone costs it nothing. Messages are of three parts, topic, number of the batch
    in 8 bytes (big-endian), and the batch. To whom asks the replay endpoint with a number, the
    batches from there on are sent, as far as they are still there, and then the number -1.
    """

    def __init__(self, config: KVEventsConfig) -> None:
        """Raises ConfigError if an endpoint cannot be had, or without pyzmq. Other machines'
        endpoints are connected to, those of this one are listened on, unless a subscriber does."""
        try:
            import zmq
        except ImportError:
            raise ConfigError(
                "KV events need the package pyzmq: run `pip install 'looseleaf[kv-events]'`, or "
                "leave out --kv-events-config"
            ) from None
        self.log = BlockLog()
        self._source: KVEventSource | None = None
        self._incomplete = False
        """Whether something was not sent: then all is to be told again."""
        self._has_missed = False
        self._topic = config.topic.encode()
        self._queue: queue.Queue[tuple[Change, int] | None] = queue.Queue(config.max_queue_size)
        self._buffer: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)
        self._context = zmq.Context()
        self._replays: zmq.Socket[bytes] | None = None
        try:
            self._subscribers = self._socket(zmq.PUB, config.endpoint, config.hwm)
            if config.replay_endpoint is not None:
                # Room for any one replay: up to half of it may be what was read already.
                most = 2 * (config.buffer_steps + 1)
                self._replays = self._socket(zmq.ROUTER, config.replay_endpoint, most)
                # Who does not read what it asked for gets no more, rather than a part of it.
                self._replays.setsockopt(zmq.ROUTER_MANDATORY, 1)
        except ConfigError:
            self._context.destroy(linger=0)
            raise
        self._thread = threading.Thread(target=self._send, name="looseleaf-kv-events", daemon=True)
        self._thread.start()

    def __enter__(self) -> "KVEventStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def watch(self, engine: Engine) -> None:
        """Tell what has changed. Never raises, never waits."""
        try:
            tables = engine.scheduler.allocator
            assert isinstance(tables, BlockTables)
            change = self._news(tables)
            if change is not None:
                self._queue.put_nowait((change, tables.block_size))
                self._incomplete = False
        except queue.Full:
            self._missed("batches wait, and further ones are told later, in one")
        except Exception:
            self._missed("one could not be made", exc_info=True)

    def _missed(self, why: str, *, exc_info: bool = False) -> None:
        if not self._has_missed:
            logger.warning("KV events: %s; logged once", why, exc_info=exc_info)
        self._has_missed = self._incomplete = True

    @property
    def num_waiting(self) -> int:
        """Batches that are not sent yet."""
        return self._queue.qsize()

    def close(self) -> None:
        """Send what waits, if that is quick, and stop."""
        try:
            self._queue.put(None, timeout=LAST_WORDS_SECONDS)
        except queue.Full:
            logger.warning("KV events: %d batches were not sent", self.num_waiting)
            return
        self._thread.join(LAST_WORDS_SECONDS)
        if not self._thread.is_alive():
            self._context.destroy(linger=int(1000 * LAST_WORDS_SECONDS))

    def _news(self, tables: BlockTables) -> Change | None:
        if self._source is None:
            self._source = KVEventSource(tables.pool, tables.block_size, self.log)
        if not self._incomplete:
            return self._source.news()
        return None if self._queue.full() else self._source.everything()

    def _socket(self, kind: int, endpoint: str, most: int) -> "zmq.Socket[bytes]":
        import zmq

        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.set_hwm(most)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 1000 * HEARTBEAT_SECONDS)
        socket.setsockopt(zmq.IPV6, "[" in endpoint)
        what = "KV events" if kind == zmq.PUB else "KV events, replays"
        try:
            if kind == zmq.PUB and _is_theirs(endpoint):
                socket.connect(endpoint)
                logger.info("%s: sent to %s", what, endpoint)
                return socket
            try:
                socket.bind(endpoint)
            except zmq.ZMQError as error:
                # On this machine, where a subscriber may be who listens.
                if error.errno != zmq.EADDRINUSE or kind != zmq.PUB or not _is_local(endpoint):
                    raise
                socket.connect(endpoint)
                logger.info("%s: sent to %s, where somebody listens", what, endpoint)
                return socket
        except zmq.ZMQError as error:
            raise ConfigError(
                f"{what} cannot be had at {endpoint!r}: {str(error).partition(' (')[0].lower()}; "
                "take an endpoint like tcp://127.0.0.1:5557, tcp://*:5557 or ipc:///run/kv-events"
            ) from None
        address = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        if _is_local(address):
            logger.info("%s: at %s", what, address)
        else:
            logger.warning("%s: at %s, where they tell the tokens of all prompts", what, address)
        return socket

    def _send(self) -> None:
        """The thread. The sockets are its own from here on."""
        encode = msgspec.msgpack.Encoder().encode
        number = 0
        while True:
            try:
                if self._replays is not None and self._replays.poll(0):
                    self._replay(self._replays)
                wait = None if self._replays is None else REPLAY_SECONDS
                change = self._queue.get(timeout=wait)
                if change is None:
                    return
                numbered = number.to_bytes(8, "big"), encode(kv_event_batch(*change))
                number += 1
                self._buffer.append(numbered)
                self._subscribers.send_multipart((self._topic, *numbered))
            except queue.Empty:
                continue
            except Exception:
                logger.exception("KV events: a batch was not sent")

    def _replay(self, replays: "zmq.Socket[bytes]") -> None:
        import zmq

        frames = replays.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            logger.warning("KV events: somebody asked for a replay without a number in 8 bytes")
            return
        client, _, first = frames
        wanted = [numbered for numbered in self._buffer if numbered[0] >= first]
        try:
            for number, payload in (*wanted, (END_OF_REPLAY, b"")):
                replays.send_multipart((client, b"", number, payload), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            logger.warning("KV events: a replay was not taken: %s", error)


def _is_local(endpoint: str) -> bool:
    return endpoint.startswith(("ipc:", "inproc:", "tcp://127.", "tcp://localhost:", "tcp://[::1]"))


def _is_theirs(endpoint: str) -> bool:
    """Whether to connect to it, as vLLM does where it does not name an address of this machine."""
    return not (_is_local(endpoint) or "*" in endpoint or "::" in endpoint)
