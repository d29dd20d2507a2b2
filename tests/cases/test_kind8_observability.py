"""Ways in which the figures of a system like this one led people astray."""

from typing import Any

import pytest

COMPLETIONS = "/v1/completions"


def asked(server: Any, prompt: list[int], **fields: Any) -> Any:
    """The figures of a request."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 2, "metrics": True}
    answer = server.http().post(COMPLETIONS, json=body | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["metrics"]


def missed(server: Any, prompt: list[int], **fields: Any) -> Any:
    (miss,) = asked(server, prompt, **fields)["prefix_misses"]
    return None if miss is None else (miss["reason"], miss["position"], miss["tokens"])


def counted(server: Any, reason: str) -> float:
    found: float = server.metric("looseleaf_prefix_misses_total", reason=reason)
    return found


@pytest.mark.parametrize("block_size", [16, 64])
def test_c147_a_prompt_shorter_than_a_block_does_not_look_like_a_broken_cache(
    start_server: Any, block_size: int
) -> None:
    server = start_server(block_size=block_size)
    prompt = list(range(1, 13))
    first, second = (asked(server, prompt) for _ in range(2))
    assert first["prefix_misses"] == [{"reason": "first_seen", "position": 0, "tokens": 11}]
    # Blocks are found in part, so that the second time all is found that can be.
    assert second["prefix_misses"] == [None]
    assert second["cached_tokens"] == 11
    assert server.metric("looseleaf_prefix_cacheable_tokens_total") == 22
    assert server.metric("vllm:prefix_cache_hits_total") == 11
    assert server.metric("vllm:prefix_cache_queries_total") == 24
    assert server.metric("looseleaf_prefix_missed_tokens_total", reason="first_seen") == 11
    # What cannot be shared at all is told apart.
    assert missed(server, [5]) == ("too_short", 0, 0)
    assert (counted(server, "first_seen"), counted(server, "too_short")) == (1, 1)
    server.metric("vllm:cache_config_info", block_size=str(block_size))


def test_c147_every_miss_has_its_reason(start_server: Any) -> None:
    server = start_server(num_blocks=32, max_model_len=124)
    prompt = list(range(1, 41))
    assert missed(server, prompt) == ("first_seen", 0, 39)
    assert missed(server, [*prompt[:10], *[99] * 30]) == ("diverged", 10, 29)
    assert missed(server, prompt, cache_salt="mine") == ("salted", 0, 39)
    assert missed(server, prompt, cache_salt="mine") is None
    assert missed(server, prompt, prompt_logprobs=0) == ("logprobs", 0, 39)
    for start in (120, 160, 200):
        asked(server, list(range(start, start + 40)), max_tokens=80)
    assert missed(server, prompt) == ("evicted", 0, 39)
    reasons = ("first_seen", "diverged", "salted", "logprobs", "evicted", "too_short", "disabled")
    assert [counted(server, reason) for reason in reasons] == [4, 1, 1, 1, 1, 0, 0]
    tokens = [server.metric("looseleaf_prefix_missed_tokens_total", reason=r) for r in reasons]
    hits = server.metric("vllm:prefix_cache_hits_total")
    assert hits + sum(tokens) == server.metric("looseleaf_prefix_cacheable_tokens_total")


def test_c147_a_cache_that_is_off_says_so(start_server: Any) -> None:
    server = start_server()
    tables = server.call(lambda engine: engine.scheduler.allocator)
    assert tables.prefix_caching
    server.call(lambda engine: setattr(engine.scheduler.allocator, "prefix_caching", False))
    server.context.service.meter.misses.__init__(tables)
    for _ in range(2):
        assert missed(server, list(range(1, 41))) == ("disabled", 0, 39)


def test_c147_a_salt_does_not_tell_what_others_sent(start_server: Any) -> None:
    server = start_server()
    prompt = list(range(1, 41))
    asked(server, prompt, cache_salt="theirs")
    assert missed(server, prompt, cache_salt="mine") == ("first_seen", 0, 39)
    assert missed(server, prompt) == ("first_seen", 0, 39)
    assert counted(server, "salted") == 0
