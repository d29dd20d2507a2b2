"""The workloads: their sizes, and prompts that are always the same."""

import pytest

from looseleaf.bench.workloads import WORKLOADS, Workload

SIZES = {
    "single": (1, 128, 1, 128),
    "batch": (32, 128, 1, 128),
    "shared-prefix": (64, 1056, 1, 16),
    "parallel-sampling": (1, 512, 16, 64),
    "long-context": (1, 4096, 1, 64),
}


def test_sizes_are_those_the_peers_were_measured_with() -> None:
    assert {
        name: (w.num_requests, w.prompt_tokens, w.num_samples, w.max_tokens)
        for name, w in WORKLOADS.items()
    } == SIZES
    assert WORKLOADS["shared-prefix"].shared_tokens == 1024
    assert sum(w.shared_tokens for w in WORKLOADS.values()) == 1024
    assert WORKLOADS["parallel-sampling"].output_tokens == 16 * 64
    assert WORKLOADS["long-context"].total_tokens == 4160


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=lambda w: w.name)
@pytest.mark.parametrize("vocab_size", [259, 32_000, 49_152])
def test_prompts(workload: Workload, vocab_size: int) -> None:
    prompts = workload.prompts(vocab_size)
    assert prompts == workload.prompts(vocab_size)
    assert [len(prompt) for prompt in prompts] == [workload.prompt_tokens] * workload.num_requests
    ids = {token_id for prompt in prompts for token_id in prompt}
    assert vocab_size // 4 <= min(ids) <= max(ids) < vocab_size * 3 // 4
    shared = workload.shared_tokens
    assert len({tuple(prompt[:shared]) for prompt in prompts}) == 1
    assert len({prompt[shared] for prompt in prompts}) == workload.num_requests


def test_the_first_tokens_of_a_prompt_stay_what_they_were() -> None:
    """Results of different days compare only for the same prompts."""
    assert WORKLOADS["single"].prompts(49_152)[0][:3] == [24911, 30915, 22623]
    assert WORKLOADS["shared-prefix"].prompts(49_152)[63][-3:] == [35479, 22903, 24399]
