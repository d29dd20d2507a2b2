"""What a peer is asked and what it answers: the border between our environment and the peer's.

Needs the standard library alone and knows no peer.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple


class Span(NamedTuple):
    """One sequence's tokens as they arrived: `first_count` of them by `first_s`, all by `last_s`.

    Seconds are since the submission. `first_count` is more than one only where a peer hands out
    several tokens in one piece.
    """

    first_s: float
    first_count: int
    last_s: float
    last_count: int


class Spans:
    """Makes spans, by any name of a sequence, out of token counts as they grow."""

    def __init__(self) -> None:
        self._spans: dict[Any, Span] = {}

    def saw(self, name: Any, count: int, seconds: float) -> None:
        """The sequence has `count` tokens now. Counts that have not grown change nothing."""
        span = self._spans.get(name)
        if span is None:
            if count:
                self._spans[name] = Span(seconds, count, seconds, count)
        elif count > span.last_count:
            self._spans[name] = span._replace(last_s=seconds, last_count=count)

    def count(self, name: Any) -> int:
        span = self._spans.get(name)
        return 0 if span is None else span.last_count

    def all(self) -> list[Span]:
        return list(self._spans.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """`prompts`, all submitted at once, each answered by `num_samples` samples of `max_tokens`
    tokens: greedy, going on through end tokens.

    If there is a `prefix`, that prompt is answered with one token before the clock starts.
    """

    prompts: list[list[int]]
    num_samples: int = 1
    max_tokens: int
    prefix: list[int] = field(default_factory=list)

    @property
    def num_sequences(self) -> int:
        return len(self.prompts) * self.num_samples

    @property
    def total_tokens(self) -> int:
        """Tokens of the longest sequence, prompt and output."""
        return max(map(len, self.prompts)) + self.max_tokens

    def warming(self) -> "Job":
        """The request that computes the prefix."""
        return Job(prompts=[self.prefix], max_tokens=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What one process of a peer does: its jobs one after the other. None of the tokens of one job
    are those of another, so nothing stored is of use to a later one."""

    model: str
    threads: int
    jobs: list[Job]

    @property
    def num_sequences(self) -> int:
        return max(job.num_sequences for job in self.jobs)

    @property
    def total_tokens(self) -> int:
        return max(job.total_tokens for job in self.jobs)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Request":
        return cls(
            model=data["model"],
            threads=data["threads"],
            jobs=[Job(**job) for job in data["jobs"]],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the last job of a request took.

    `elapsed_s` is from the start of the peer's process to the end of that job: for a single job of
    one token, the time to the first token.
    """

    wall_s: float
    spans: list[Span]
    peak_rss_mib: float
    elapsed_s: float


def check_complete(job: Job, spans: Sequence[Span]) -> None:
    """Who answers less is faster: raise ValueError unless every token was drawn."""
    if len(spans) != job.num_sequences:
        raise ValueError(f"{len(spans)} sequences answered of {job.num_sequences}")
    short = min(span.last_count for span in spans)
    if short != job.max_tokens:
        raise ValueError(f"a sequence has {short} tokens of {job.max_tokens}")
