"""A step in the making: who computes how many tokens, and what is left of the budget."""

from looseleaf.core.allocator import Reservation
from looseleaf.core.block_tables import blocks_for
from looseleaf.core.config import SchedulerConfig
from looseleaf.core.request import Request, RequestId
from looseleaf.core.step import BlockCopy, Sample, ScheduledSequence, Step


class _Plan:
    __slots__ = ("num_tokens", "request", "reservation", "share")

    def __init__(
        self, request: Request, num_tokens: int, reservation: Reservation, share: int
    ) -> None:
        self.request = request
        self.num_tokens = num_tokens
        self.reservation = reservation
        self.share = share  # what it took of the long prompts' share


class StepBuilder:
    """Keeps the token budget, and in it the share of long prompts.

    `promised_blocks` and `promised_seats` are what planned requests will still come to need for
    the rest of their prompts and for the samples that fork from them; admission leaves them alone.
    """

    def __init__(self, config: SchedulerConfig, block_size: int) -> None:
        self.budget = config.max_num_batched_tokens
        self.promised_blocks = 0
        self.promised_seats = 0
        self._long_limit = self._long_budget = config.long_prefill_tokens
        self._block_size = block_size
        self._plans: dict[RequestId, _Plan] = {}
        self._curbed: list[Request] = []

    def allowance(self, num_missing: int) -> int:
        """How many of a request's `num_missing` tokens this step has room for now."""
        if num_missing > self._long_limit:
            return max(0, min(num_missing, self.budget, self._long_budget))
        return min(num_missing, self.budget)

    def curb(self, request: Request) -> None:
        """Note a running request for which nothing of the long prompts' share is left."""
        self._curbed.append(request)
        self._promise(request, request.num_computed_tokens, 1)

    def plan(self, request: Request, num_tokens: int, reservation: Reservation) -> None:
        num_missing = len(request.token_ids) - request.num_computed_tokens
        share = num_tokens if num_missing > self._long_limit else 0
        self._plans[request.request_id] = _Plan(request, num_tokens, reservation, share)
        self.budget -= num_tokens
        if share:
            self._long_budget -= share
            if num_tokens < num_missing:
                self._curbed.append(request)
        if num_tokens < num_missing or request.children:
            self._promise(request, request.num_computed_tokens + num_tokens, 1)

    def unplan(self, request: Request) -> None:
        """Undo `plan`, as if the request had never been in this step."""
        plan = self._plans.pop(request.request_id, None)
        if plan is None:
            return
        self.budget += plan.num_tokens
        self._long_budget += plan.share
        self._promise(request, request.num_computed_tokens + plan.num_tokens, -1)

    def outlook(self, request: Request, num_stored: int) -> tuple[int, int]:
        """(blocks, seats) that a request with room for `num_stored` tokens will need before it
        generates: the rest of its prompt, and a copy on write and a seat for each other sample."""
        rest = blocks_for(request.num_tokens, self._block_size)
        num_children = len(request.children)
        return rest - blocks_for(num_stored, self._block_size) + num_children, num_children

    def curbed(self) -> list[tuple[Request, int]]:
        """Requests that were kept short, each with the tokens it has in this step."""
        return [
            (request, plan.num_tokens if (plan := self._plans.get(request.request_id)) else 0)
            for request in self._curbed
        ]

    def extend(self, request: Request, num_more: int, reservation: Reservation) -> None:
        """Let a planned or curbed request have `num_more` tokens of what was left over."""
        plan = self._plans.get(request.request_id)
        if plan is None:
            self._plans[request.request_id] = _Plan(request, num_more, reservation, 0)
        else:
            plan.num_tokens += num_more
            plan.reservation = plan.reservation.then(reservation)
        self.budget -= num_more

    def build(self, step_id: int, copies: list[BlockCopy], dropped: tuple[RequestId, ...]) -> Step:
        for plan in self._plans.values():
            copies.extend(plan.reservation.copies)
        sequences = tuple([_scheduled(plan) for plan in self._plans.values()])
        return Step(step_id, sequences, tuple(copies), (), dropped)

    def _promise(self, request: Request, num_stored: int, sign: int) -> None:
        blocks, seats = self.outlook(request, num_stored)
        self.promised_blocks += sign * blocks
        self.promised_seats += sign * seats


def _scheduled(plan: _Plan) -> ScheduledSequence:
    request = plan.request
    token_ids = request.token_ids
    start, length = request.num_computed_tokens, len(token_ids)
    end = start + plan.num_tokens
    samples: tuple[Sample, ...] = ()
    if end == length and length < request.max_total_tokens:
        samples = (Sample(request.request_id, request.params, request.sample_index, length),)
        if request.children:
            samples += tuple(
                [Sample(c.request_id, c.params, c.sample_index, length) for c in request.children]
            )
    reservation = plan.reservation
    scored = request.params.prompt_logprobs and request.num_scored_tokens < min(
        end + 1, request.num_prompt_tokens
    )
    return ScheduledSequence(
        request.request_id,
        tuple(token_ids[start:end]),
        start,
        reservation.table_start,
        reservation.block_ids,
        samples,
        scored,
        token_ids[end] if scored and end < request.num_prompt_tokens else None,
    )
