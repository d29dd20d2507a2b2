"""Overload: a queue with an end, limits of keys, and times to end in."""

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from looseleaf.server.call import Call
from looseleaf.server.errors import ApiError
from looseleaf.server.gate import Gate
from looseleaf.server.keys import KeyLimits, KeyRing, Tenant
from looseleaf.server.limits import Limits

PATH = "/v1/completions"
BODY = {"model": "tiny", "prompt": "xxxx", "max_tokens": 5}


def ask_together(server: Any, bodies: list[dict[str, Any]], **how: Any) -> Callable[[], list[Any]]:
    """Send all of them, each from a thread of its own; the result waits for the answers."""
    pool = ThreadPoolExecutor(len(bodies))
    futures = [pool.submit(server.http().post, PATH, json=body, **how) for body in bodies]

    def result() -> list[Any]:
        answers = [future.result(60) for future in futures]
        pool.shutdown()
        return answers

    return result


def stopped(server: Any) -> Any:
    """With one request that runs and does not come to an end until the gate is set."""
    server.executor.gate.clear()
    result = ask_together(server, [BODY])
    server.eventually(lambda: server.context.lifecycle.num_answers == 1, "one is under way")
    server.eventually(lambda: server.context.gate.waiting() == (0, 0), "it runs")
    return result


def test_beyond_its_end_the_queue_refuses_at_once_and_loses_nothing(start_server: Any) -> None:
    server = start_server(limits=Limits(max_queued_requests=3), max_num_seqs=4)
    first = stopped(server)
    queued = ask_together(server, [BODY] * 3)
    server.eventually(lambda: server.context.gate.waiting()[0] == 3, "three wait")
    times = []
    for _ in range(20):
        start = time.perf_counter()
        answer = server.http().post(PATH, json=BODY)
        times.append(time.perf_counter() - start)
        assert answer.status_code == 429
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        error = answer.json()["error"]
        assert error["type"] == "rate_limit_error"
        assert error["code"] == "rate_limit_exceeded"
        assert "3 of 3 requests wait" in error["message"]
    assert sorted(times)[10] < 0.05
    # What has nothing to do with the engine still goes.
    assert server.http().get("/v1/models").status_code == 200
    server.executor.gate.set()
    assert [answer.status_code for answer in first() + queued()] == [200] * 4
    assert server.http().post(PATH, json=BODY).status_code == 200


def test_a_huge_body_is_refused_before_it_is_read(start_server: Any) -> None:
    limits = Limits(max_queued_tokens=100)
    server = start_server(limits=limits, max_num_seqs=1, max_model_len=512)
    first = stopped(server)
    second = ask_together(server, [BODY])
    server.eventually(lambda: server.context.gate.waiting() == (1, 5), "one waits")
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9000000\r\n\r\n"
        client.sendall(head)  # and nothing more
        assert client.recv(1000).startswith(b"HTTP/1.1 429 ")
    server.executor.gate.set()
    assert [answer.status_code for answer in first() + second()] == [200, 200]


def test_tokens_are_counted_once_they_are_known(start_server: Any) -> None:
    server = start_server(limits=Limits(max_queued_tokens=100), max_num_seqs=1)
    first = stopped(server)
    second = ask_together(server, [BODY])
    server.eventually(lambda: server.context.gate.waiting() == (1, 5), "one waits")
    # 150 tokens in some 200 bytes, which are taken for 50.
    answer = server.http().post(PATH, json={"model": "tiny", "prompt": "x" * 150})
    assert answer.status_code == 429
    assert "5 of 100 prompt tokens" in answer.json()["error"]["message"]
    server.executor.gate.set()
    assert [answer.status_code for answer in first() + second()] == [200, 200]
    # An empty queue takes anything.
    assert server.http().post(PATH, json={"model": "tiny", "prompt": "x" * 150}).status_code == 200


def test_whoever_leaves_the_queue_makes_room(start_server: Any) -> None:
    server = start_server(limits=Limits(max_queued_requests=1), max_num_seqs=1)
    first = stopped(server)
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as client:
        body = b'{"model":"tiny","prompt":"x"}'
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        client.sendall(head + body)
        server.eventually(lambda: server.context.gate.waiting()[0] == 1, "one waits")
        assert server.http().post(PATH, json=BODY).status_code == 429
    server.eventually(lambda: server.context.gate.waiting() == (0, 0), "it has gone")
    server.executor.gate.set()
    assert first()[0].status_code == 200


def test_retry_after_follows_what_was_measured() -> None:
    now = 0.0
    gate = Gate(lambda: now, max_requests=2)

    class Waiting:
        num_prompt_tokens = 100

        def __init__(self, name: str) -> None:
            self.request_id = name
            self.request = type("R", (), {"first_scheduled_time": None})()

    groups = [Waiting(str(number)) for number in range(12)]
    for number, group in enumerate(groups[:-2]):
        gate.queued(group)  # type: ignore[arg-type]
        now += 10.0  # 10 tokens a second
        group.request.first_scheduled_time = now
        assert gate.waiting() == (0, 0), number
    for group in groups[-2:]:
        gate.queued(group)  # type: ignore[arg-type]
    with pytest.raises(ApiError) as caught:
        gate.enter(Call(), 10)
    assert caught.value.headers["retry-after"] == "10"


@pytest.fixture
def tenants(start_server: Any) -> Any:
    def start(limits: KeyLimits, **how: Any) -> Any:
        keys = KeyRing([("sk-a", Tenant("a", limits)), ("sk-b", Tenant("b"))])
        server = start_server(keys=keys, **how)
        server.http().headers["x-api-key"] = "sk-a"
        return server

    return start


def test_a_key_may_have_so_many_requests_under_way(tenants: Any) -> None:
    server = tenants(KeyLimits(max_concurrent_requests=1))
    first = stopped(server)
    refused = server.http().post(PATH, json=BODY)
    assert refused.status_code == 429
    assert "1 requests under way" in refused.json()["error"]["message"]
    other = ask_together(server, [BODY], headers={"x-api-key": "sk-b"})
    server.executor.gate.set()
    assert [answer.status_code for answer in first() + other()] == [200, 200]
    assert server.http().post(PATH, json=BODY).status_code == 200


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (KeyLimits(requests_per_minute=2), "2 requests a minute"),
        (KeyLimits(tokens_per_minute=15), "may use 15"),
    ],
)
def test_a_key_may_take_so_much_a_minute(tenants: Any, limits: KeyLimits, words: str) -> None:
    server = tenants(limits)
    bodies = [{**BODY, "prompt": letter * 4} for letter in "xyz"]
    statuses = [server.http().post(PATH, json=body) for body in bodies]
    assert [answer.status_code for answer in statuses] == [200, 200, 429]
    assert words in statuses[2].json()["error"]["message"]
    assert 50 <= int(statuses[2].headers["retry-after"]) <= 60
    other = server.http().post(PATH, json=BODY, headers={"x-api-key": "sk-b"})
    assert other.status_code == 200


def test_a_priority_is_capped_by_the_key(tenants: Any) -> None:
    server = tenants(KeyLimits(priority=5), policy="priority", max_num_seqs=1)
    first = stopped(server)
    queued = ask_together(server, [{**BODY, "priority": -100}])
    server.eventually(lambda: len(server.context.gate._waiting) == 1, "one waits")
    (group,) = server.context.gate._waiting.values()
    assert group.request.priority == 5
    server.executor.gate.set()
    assert [answer.status_code for answer in first() + queued()] == [200, 200]


def test_one_tenant_does_not_starve_another(tenants: Any) -> None:
    server = tenants(KeyLimits(), policy="fair", max_num_seqs=2, step_seconds=0.002)
    order: list[str] = []
    lock = threading.Lock()

    def ask(number: int) -> None:
        key = "b" if number == 40 else "a"
        body = {**BODY, "prompt": f"{number:04d}", "max_tokens": 10}
        answer = server.http().post(PATH, json=body, headers={"x-api-key": f"sk-{key}"})
        assert answer.status_code == 200
        with lock:
            order.append(key)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(41)]
    server.executor.gate.clear()
    for thread in threads[:40]:
        thread.start()
    server.eventually(lambda: server.context.lifecycle.num_answers == 40, "a crowd has come")
    server.eventually(lambda: server.context.gate.waiting()[0] >= 38, "and waits")
    threads[40].start()
    server.eventually(lambda: server.context.gate.waiting()[0] >= 39, "with one more")
    server.executor.gate.set()
    for thread in threads:
        thread.join(30)
    assert order.index("b") <= 6, order


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("way", ["field", "header", "server"])
def test_a_request_ends_in_time(start_server: Any, way: str, stream: bool) -> None:
    limit = 0.2 if way == "server" else 30
    server = start_server(step_seconds=0.02, limits=Limits(request_timeout=limit))
    body = {**BODY, "max_tokens": 400, "ignore_eos": True, "stream": stream}
    if way == "field":
        body["timeout"] = 0.2
    headers = {"X-Request-Timeout": "0.2"} if way == "header" else {}
    start = time.monotonic()
    answer = server.http().post(PATH, json=body, headers=headers)
    assert 0.15 < time.monotonic() - start < 5
    if stream:
        assert answer.status_code == 200
        last = answer.text.strip().rpartition("\n")[2]
        assert '"code":"timeout"' in last
        assert "[DONE]" not in answer.text
    else:
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "timeout"
        assert "0.2 s" in answer.json()["error"]["message"]
    server.check_idle()
    assert server.metric("vllm:request_success_total", finished_reason="abort") == 1


def test_a_time_that_suffices_changes_nothing(server: Any) -> None:
    answer = server.http().post(PATH, json={**BODY, "timeout": 30})
    assert answer.status_code == 200


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon", "1e400"])
def test_what_is_no_time_is_a_400(server: Any, text: str) -> None:
    answer = server.http().post(PATH, json=BODY, headers={"X-Request-Timeout": text})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "X-Request-Timeout"
    answer = server.http().post(PATH, json={**BODY, "timeout": -1})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "timeout")


@pytest.mark.parametrize("isolate", [False, True])
def test_keys_can_have_caches_of_their_own(start_server: Any, isolate: bool) -> None:
    keys = KeyRing([("sk-a", Tenant("a")), ("sk-b", Tenant("b"))])
    server = start_server(keys=keys, limits=Limits(isolate_cache=isolate))
    prompt = "the same beginning of all of them"
    found = []
    for key in ("sk-a", "sk-a", "sk-b", "sk-b"):
        body, headers = {**BODY, "prompt": prompt}, {"x-api-key": key}
        usage = server.http().post(PATH, json=body, headers=headers).json()["usage"]
        found.append(usage["prompt_tokens_details"]["cached_tokens"])
    most = len(prompt)  # there is one token more, which is computed
    assert found == ([0, most, 0, most] if isolate else [0, most, most, most])


def test_a_body_that_trickles_is_a_408(start_server: Any) -> None:
    server = start_server(limits=Limits(read_timeout=0.3))
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 999\r\n\r\n"
        client.sendall(head)
        start = time.monotonic()
        answer = b""
        while time.monotonic() - start < 5:
            client.sendall(b" ")
            client.settimeout(0.05)
            try:
                answer += client.recv(2000)
                break
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in answer
        client.settimeout(5)
        while True:  # and it is closed
            try:
                if not client.recv(2000):
                    break
            except ConnectionResetError:
                break
    server.eventually(lambda: server.context.lifecycle.num_answers == 0, "nothing is left")
    # An answer may take as long as it likes.
    server.executor.seconds = 0.1
    assert server.http().post(PATH, json=BODY).status_code == 200


def test_a_body_that_is_cut_off_leaves_nothing(start_server: Any) -> None:
    server = start_server()
    port = int(server.url.rpartition(":")[2])
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", port)) as client:
            head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 999\r\n\r\n{"
            client.sendall(head)
            server.eventually(lambda: server.context.gate.waiting()[0] == 1, "it is coming")
        server.eventually(lambda: server.context.gate.waiting() == (0, 0), "it has gone")
    assert server.context.lifecycle.num_answers == 0
