"""What a scheduler counts."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals since the start. Prefix figures are in tokens and count first admissions only, so
    that recomputing after a preemption never looks like a hit."""

    steps: int = 0
    computed_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    held_back: int = 0
    drafts: int = 0
    """Times that tokens were guessed: `draft_tokens` in all, `accepted_tokens` of them right."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
