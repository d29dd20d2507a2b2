"""Prompt lookup: guesses from what followed the same few tokens earlier in a request.

The method of A. Saxena, "Prompt Lookup Decoding" (2023): no second model, and a gain where answers
repeat their prompt or themselves, as in summaries, edits and code.
"""

from collections.abc import Sequence

from looseleaf.core.request import Request

LENGTHS = (4, 3, 2)
"""Of the last tokens, that many are looked for; the longest run that is found counts."""


class _Index:
    """Of one request: where each run of tokens ended last, as far as it is taken in."""

    __slots__ = ("ends", "limit", "num_drafted", "num_tokens")

    def __init__(self, limit: int) -> None:
        self.ends: dict[tuple[int, ...], int] = {}
        self.num_tokens = 0
        self.limit = limit
        self.num_drafted = 0


class NgramDrafter:
    """Guesses at most `most` tokens; fewer where the last guesses of a request were wrong."""

    def __init__(self, most: int) -> None:
        self._most = most

    def __call__(self, request: Request, room: int) -> Sequence[int]:
        index = request.drafting
        if not isinstance(index, _Index):
            index = request.drafting = _Index(self._most)
        tokens = request.token_ids
        self._learn(index, len(tokens) - index.num_tokens)
        # Only runs that something follows: all but the last.
        for end in range(max(index.num_tokens, 1), len(tokens)):
            for length in LENGTHS:
                if length <= end:
                    index.ends[tuple(tokens[end - length : end])] = end
        index.num_tokens = len(tokens)
        index.num_drafted = 0
        for length in LENGTHS:
            found = index.ends.get(tuple(tokens[-length:])) if length < len(tokens) else None
            if found is not None:
                drafts = tokens[found : found + min(room, index.limit)]
                index.num_drafted = len(drafts)
                return drafts
        return ()

    def _learn(self, index: _Index, num_new: int) -> None:
        """A step computed guesses and gave `num_new` tokens: those that were right, and one."""
        if index.num_drafted == 0:
            return
        num_right = num_new - 1
        if num_right >= index.num_drafted:
            index.limit = min(self._most, 2 * index.limit)
        else:
            index.limit = max(1, num_right)
