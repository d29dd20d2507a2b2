import pytest

from looseleaf.core.errors import ConfigError
from looseleaf.engine.memory import MemoryPlan, available_memory, plan_memory
from looseleaf.engine.settings import EngineSettings, format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2GiB", 2**31),
        ("512M", 512 * 10**6),
        ("1.5g", 1_500_000_000),
        ("4096", 4096),
        ("1 KiB", 1024),
    ],
)
def test_memory_sizes_are_read_as_people_write_them(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "much", "2TB of it", "-1G", "1..5G"])
def test_other_memory_sizes_are_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="is not understood"):
        parse_bytes(text)


def test_bytes_for_people() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1536, 2**31)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "2.0 GiB",
    ]


def test_the_plan_says_blocks_tokens_and_how_many_requests_fit() -> None:
    """C-143: the full-length figure alone is read as a limit."""
    plan = MemoryPlan(num_blocks=640, block_size=16, block_bytes=2**20, max_model_len=2048)
    text = str(plan)
    assert "640.0 MiB = 640 blocks of 16 tokens = 10240 tokens" in text
    assert "5.0 requests of 2048 tokens" in text
    assert "20 of 500 tokens (typical)" in text
    assert "not limits" in text


def test_the_default_is_a_share_of_what_is_available_and_no_more_than_can_be_used() -> None:
    settings = EngineSettings(max_num_seqs=2)
    plan = plan_memory(settings, kv_bytes_per_token=1024, context_length=160)
    assert plan.num_blocks == 2 * 10
    huge = plan_memory(EngineSettings(), kv_bytes_per_token=2**20, context_length=10**6)
    assert 0.3 < huge.num_blocks * huge.block_bytes / available_memory() < 0.5
    assert huge.max_model_len == huge.num_tokens
