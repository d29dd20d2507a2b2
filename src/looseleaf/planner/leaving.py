"""Clients that go away before their answer is complete."""

from collections.abc import Iterable

from looseleaf.core.request import Request, RequestId


class Leaving:
    """Who will, and after how many tokens. All samples of a prompt are given up together."""

    def __init__(self) -> None:
        self._limits: dict[RequestId, int] = {}
        self._members: dict[RequestId, tuple[RequestId, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._limits)

    def add(self, request: Request, num_output_tokens: int) -> None:
        """The first sample's output tokens count."""
        name = request.request_id
        self._limits[name] = request.num_prompt_tokens + max(1, num_output_tokens)
        self._members[name] = (name, *(child.request_id for child in request.children))

    def forget(self, request_id: RequestId) -> None:
        self._limits.pop(request_id, None)
        self._members.pop(request_id, None)

    def num_steps(self, running: Iterable[Request], most: int) -> int:
        """How many steps there are, up to `most`, until one of `running` goes, if each gains one
        token in every step."""
        limits = self._limits
        left = (limits[r.request_id] - r.num_tokens for r in running if r.request_id in limits)
        return min(most, *left, most)

    def gone(self, running: Iterable[Request]) -> list[RequestId]:
        """Who goes now, with all samples."""
        limits = self._limits
        return [
            member
            for r in running
            if r.request_id in limits and r.num_tokens >= limits[r.request_id]
            for member in self._members[r.request_id]
        ]
