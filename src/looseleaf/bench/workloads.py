"""The workloads on which engines are compared: what is asked, whoever answers."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`num_requests` prompts, all submitted at once, each answered by `num_samples` samples of
    exactly `max_tokens` tokens: greedy, going on through end tokens.

    A prompt is `shared_tokens` tokens that all of them begin with, and `own_tokens` of its own.
    """

    name: str
    description: str
    num_requests: int = 1
    shared_tokens: int = 0
    own_tokens: int
    num_samples: int = 1
    max_tokens: int

    @property
    def prompt_tokens(self) -> int:
        """Tokens of one prompt."""
        return self.shared_tokens + self.own_tokens

    @property
    def total_tokens(self) -> int:
        """Tokens of one sequence, prompt and output."""
        return self.prompt_tokens + self.max_tokens

    @property
    def output_tokens(self) -> int:
        """Tokens of all answers."""
        return self.num_requests * self.num_samples * self.max_tokens

    def prompts(self, vocab_size: int) -> list[list[int]]:
        """Token ids of each prompt: for one `vocab_size` always the same.

        Ids are from the middle half of the vocabulary, since control tokens stand at its ends. The
        own parts begin with different tokens, so that nothing can be shared but what is meant to.
        """
        rng = random.Random(0)
        ids = range(vocab_size // 4, vocab_size * 3 // 4)
        shared = rng.choices(ids, k=self.shared_tokens)
        firsts = rng.sample(ids, self.num_requests)
        return [[*shared, first, *rng.choices(ids, k=self.own_tokens - 1)] for first in firsts]


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            name="single",
            description="one request alone: 128 tokens in, 128 out",
            own_tokens=128,
            max_tokens=128,
        ),
        Workload(
            name="batch",
            description="32 requests at once: 128 tokens in, 128 out, each",
            num_requests=32,
            own_tokens=128,
            max_tokens=128,
        ),
        Workload(
            name="shared-prefix",
            description="64 requests at once: 1,024 tokens in common and 32 of their own in, "
            "16 out, each",
            num_requests=64,
            shared_tokens=1024,
            own_tokens=32,
            max_tokens=16,
        ),
        Workload(
            name="parallel-sampling",
            description="16 samples of one prompt: 512 tokens in, 64 out, each",
            own_tokens=512,
            num_samples=16,
            max_tokens=64,
        ),
        Workload(
            name="long-context",
            description="one long request alone: 4,096 tokens in, 64 out",
            own_tokens=4096,
            max_tokens=64,
        ),
    )
}
