"""vLLM's KV events over ZeroMQ: a real subscriber follows what a real server has cached."""

import contextlib
import random
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from looseleaf.core.errors import ConfigError
from looseleaf.engine.engine import Engine
from looseleaf.engine.kv_events import wire_hash
from looseleaf.engine.kv_publisher import KVEventsConfig, KVEventStream

BLOCK_SIZE = 4


class Router:
    """A subscriber as one would write it for vLLM: nothing of ours decodes for it."""

    def __init__(self, endpoint: str, topic: str = "", **options: int) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        for name, value in options.items():
            self.socket.setsockopt(getattr(zmq, name), value)
        self.socket.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.socket.connect(endpoint)
        self.stored: dict[int, tuple[int, ...]] = {}
        self.numbers: list[int] = []
        self.payloads: list[bytes] = []
        self.kinds: list[str] = []
        self.announced: set[int] = set()

    def take(self, milliseconds: int = 0) -> bool:
        """Take in what comes within that time."""
        if not self.socket.poll(milliseconds):
            return False
        _, number, payload = self.socket.recv_multipart()
        self.numbers.append(int.from_bytes(number, "big"))
        self.payloads.append(payload)
        self.apply(payload)
        return True

    def apply(self, payload: bytes) -> None:
        moment, events, rank = msgspec.msgpack.decode(payload)
        assert moment > 1.7e9
        assert rank == 0
        for event in events:
            self.kinds.append(event["type"])
            match event["type"]:
                case "BlockStored":
                    self._store(event)
                case "BlockRemoved":
                    assert set(event) == {"type", "block_hashes", "medium", "group_idx"}
                    for block in event["block_hashes"]:
                        del self.stored[block]
                case "AllBlocksCleared":
                    assert set(event) == {"type"}
                    self.stored.clear()

    def _store(self, event: dict[str, Any]) -> None:
        assert (event["block_size"], event["medium"]) == (BLOCK_SIZE, "GPU")
        assert (event["lora_id"], event["lora_name"]) == (None, None)
        tokens, parent = event["token_ids"], event["parent_block_hash"]
        assert parent is None or parent in self.announced
        assert len(tokens) == BLOCK_SIZE * len(event["block_hashes"])
        assert len(event["extra_keys"]) == len(event["block_hashes"])
        before = self.stored.get(parent, ())
        for i, block in enumerate(event["block_hashes"]):
            assert block not in self.stored
            before += tuple(tokens[BLOCK_SIZE * i : BLOCK_SIZE * (i + 1)])
            self.stored[block] = before
            self.announced.add(block)

    def ask(self, endpoint: str) -> zmq.Socket[bytes]:
        """A socket for replays."""
        self.replays = self.context.socket(zmq.DEALER)
        self.replays.connect(endpoint)
        return self.replays

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def subscribe() -> Iterator[Callable[..., Router]]:
    routers: list[Router] = []

    def make(*args: Any, **options: Any) -> Router:
        routers.append(Router(*args, **options))
        return routers[-1]

    yield make
    for router in routers:
        router.close()


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Callable[..., tuple[KVEventStream, str]]]:
    """Streams at an address of the test's own."""
    with contextlib.ExitStack() as stack:

        def make(**settings: Any) -> tuple[KVEventStream, str]:
            endpoint = f"ipc://{tmp_path}/events"
            config = KVEventsConfig(enable_kv_cache_events=True, endpoint=endpoint, **settings)
            return stack.enter_context(KVEventStream(config)), endpoint

        yield make


def findable(engine: Engine) -> dict[int, tuple[int, ...]]:
    """The core's own full blocks: their hash, and the tokens of the chain up to their end."""
    pool = engine.scheduler.allocator.pool
    found = {}
    for block_id in range(pool.num_blocks):
        key = pool.block(block_id).key
        if key is None or len(key.token_ids) < BLOCK_SIZE:
            continue
        tokens: tuple[int, ...] = ()
        link = key
        while link is not None:
            tokens = link.token_ids + tokens
            link = link.parent
        found[wire_hash(key.hash)] = tokens
    return found


def ask(server: Any, prompt: list[int], **fields: Any) -> None:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 6, **fields}
    assert server.http().post("/v1/completions", json=body).status_code == 200


def caught_up(server: Any, router: Router) -> bool:
    while router.take(50):
        pass
    return set(router.stored) == set(server.call(findable))


def settled(server: Any, router: Router) -> None:
    """Subscribing takes a moment, in which events pass by: until the first one comes."""
    for i in range(200):
        ask(server, [250, 1 + i % 100, *range(4)], cache_salt=f"hello {i}")
        if router.take(20):
            break
    server.http().post("/reset_prefix_cache")
    server.eventually(lambda: caught_up(server, router), "the router has joined")
    assert router.stored == {}


def test_a_subscriber_knows_what_is_cached(start_server: Any, stream: Any, subscribe: Any) -> None:
    events, endpoint = stream(topic="kv@tiny")
    server = start_server(num_blocks=24, kv_events=events)
    router = subscribe(endpoint, "kv@tiny")
    settled(server, router)
    router.kinds.clear()

    ask(server, [*range(10)])
    server.eventually(lambda: caught_up(server, router), "the prompt is known")
    assert router.stored == server.call(findable)
    assert {len(tokens) for tokens in router.stored.values()} == {4, 8, 12}
    assert router.kinds[0] == "BlockStored"

    # Far more than there is room for, much of it shared, several at once.
    chance = random.Random(0)
    prompts = [
        [
            chance.randrange(3),
            *range(5),
            *(chance.randrange(2) for _ in range(chance.randrange(20))),
        ]
        for _ in range(60)
    ]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda prompt: ask(server, prompt), prompts))
    server.eventually(lambda: caught_up(server, router), "evictions are known")
    assert "BlockRemoved" in router.kinds
    assert len(router.stored) > 5
    reachable = {h: t for h, t in server.call(findable).items() if router.stored[h] == t}
    assert len(reachable) >= 0.9 * len(router.stored)

    router.kinds.clear()
    assert server.http().post("/reset_prefix_cache").status_code == 200
    server.eventually(lambda: caught_up(server, router), "the reset is known")
    assert router.stored == {}
    assert router.kinds == ["AllBlocksCleared"]
    assert router.numbers == list(range(router.numbers[0], router.numbers[-1] + 1))


def test_salted_prompts_are_told_apart(start_server: Any, stream: Any, subscribe: Any) -> None:
    events, endpoint = stream()
    server = start_server(kv_events=events)
    router = subscribe(endpoint)
    settled(server, router)
    ask(server, [*range(8)])
    ask(server, [*range(8)], cache_salt="pepper")
    server.eventually(lambda: caught_up(server, router), "both are known")
    plain, salted = [
        event["extra_keys"]
        for payload in router.payloads
        for event in msgspec.msgpack.decode(payload)[1]
        if event.get("token_ids", [])[:8] == [*range(8)]
    ]
    assert plain[:2] == [None, None]
    assert salted[:2] == [["pepper"], None]


def test_who_missed_batches_asks_for_them(
    start_server: Any, stream: Any, subscribe: Any, tmp_path: Path
) -> None:
    replay = f"ipc://{tmp_path}/replay"
    events, endpoint = stream(replay_endpoint=replay, buffer_steps=50)
    server = start_server(num_blocks=24, kv_events=events)
    router = subscribe(endpoint)
    settled(server, router)
    for i in range(20):
        ask(server, [i, *range(10)])
    server.eventually(lambda: caught_up(server, router), "all are known")
    last = router.numbers[-1]
    first = router.numbers[-10]

    client = subscribe(endpoint).ask(replay)

    def replayed(number: bytes) -> list[tuple[int, bytes]]:
        client.send_multipart((b"", number))
        found = []
        while True:
            assert client.poll(5000)
            empty, number, payload = client.recv_multipart()
            assert empty == b""
            found.append((int.from_bytes(number, "big", signed=True), payload))
            if found[-1][0] == -1:
                return found

    *missed, end = replayed(first.to_bytes(8, "big"))
    assert missed == list(zip(range(first, last + 1), router.payloads[-10:], strict=True))
    assert end == (-1, b"")
    *kept, _ = replayed(bytes(8))
    assert [number for number, _ in kept] == list(range(max(0, last - 49), last + 1))
    assert replayed((2**60).to_bytes(8, "big")) == [(-1, b"")]

    client.send_multipart((b"", b"nonsense that is no number"))
    client.send(b"?")
    assert len(replayed(first.to_bytes(8, "big"))) == 11


def test_a_subscriber_that_does_not_read_disturbs_nobody(
    start_server: Any, stream: Any, subscribe: Any
) -> None:
    events, endpoint = stream(hwm=50)
    server = start_server(num_blocks=128, max_num_batched_tokens=512, kv_events=events)
    lively, dead = subscribe(endpoint), subscribe(endpoint, RCVHWM=1)
    settled(server, lively)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(
            lambda: [ask(server, [i % 256, i // 256, *range(250)] * 2) for i in range(120)]
        )
        while not asking.done():
            lively.take(10)
        asking.result()
    server.eventually(lambda: caught_up(server, lively), "who reads knows all")
    assert events.num_waiting == 0
    assert lively.numbers == list(range(lively.numbers[0], lively.numbers[-1] + 1))
    got = 0
    while dead.socket.poll(200):
        dead.socket.recv_multipart()
        got += 1
    assert 0 < got < lively.numbers[-1]


class Slow:
    """A socket that sends when it may."""

    def __init__(self, socket: Any) -> None:
        self.may = threading.Event()
        self._socket = socket

    def send_multipart(self, frames: Any) -> None:
        assert self.may.wait(30)
        self._socket.send_multipart(frames)


def test_what_could_not_be_queued_is_told_in_one(
    start_server: Any, stream: Any, subscribe: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    events, endpoint = stream(max_queue_size=2)
    server = start_server(num_blocks=64, kv_events=events)
    router = subscribe(endpoint)
    settled(server, router)
    router.kinds.clear()
    slow = Slow(events._subscribers)
    monkeypatch.setattr(events, "_subscribers", slow)
    for i in range(20):
        ask(server, [i, *range(30)])
    assert events.num_waiting == 2
    slow.may.set()
    server.eventually(lambda: events.num_waiting == 0, "what waited is sent")
    ask(server, [99, *range(3)])
    server.eventually(lambda: caught_up(server, router), "all is known again")
    assert router.stored == server.call(findable)
    assert "AllBlocksCleared" in router.kinds
    assert sum("told later" in record.message for record in caplog.records) == 1


def test_a_listening_subscriber_is_connected_to(start_server: Any, free_port: int) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port}"
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.setsockopt(zmq.LINGER, 0)
        subscriber.setsockopt_string(zmq.SUBSCRIBE, "")
        subscriber.bind(endpoint)
        config = KVEventsConfig(enable_kv_cache_events=True, endpoint=endpoint)
        with KVEventStream(config) as events:
            server = start_server(kv_events=events)
            server.eventually(
                lambda: (
                    not ask(server, [1, 2, 3, 4, 5], cache_salt=str(random.random()))
                    and bool(subscriber.poll(20))
                ),
                "events come",
            )
            assert len(subscriber.recv_multipart()) == 3


def test_addresses_that_cannot_be_had(free_port: int) -> None:
    for endpoint in ("carrier pigeon", "tcp://127.0.0.1", "tcp://*:0x"):
        with pytest.raises(ConfigError, match="cannot be had at"):
            KVEventStream(KVEventsConfig(enable_kv_cache_events=True, endpoint=endpoint))
    with zmq.Context() as context, context.socket(zmq.ROUTER) as taken:
        taken.bind(f"tcp://127.0.0.1:{free_port}")
        config = KVEventsConfig(
            endpoint="tcp://127.0.0.1:*", replay_endpoint=f"tcp://127.0.0.1:{free_port}"
        )
        with pytest.raises(ConfigError, match=r"replays cannot be had .*address already in use"):
            KVEventStream(config)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(ConfigError, match=r"pip install 'looseleaf\[kv-events\]'"):
        KVEventStream(KVEventsConfig(enable_kv_cache_events=True))
