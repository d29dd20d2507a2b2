"""A step in the making: who computes how many tokens, and what is left of the budget."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from looseleaf.core.allocator import Reservation
from looseleaf.core.block_tables import blocks_for
from looseleaf.core.config import SchedulerConfig
from looseleaf.core.request import Request, RequestId
from looseleaf.core.step import BlockSave, History, Sample, ScheduledSequence, Step

_NOTHING: frozenset[int] = frozenset()


class _Plan(NamedTuple):
    request: Request
    num_tokens: int
    reservation: Reservation
    drafts: tuple[int, ...] = ()


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
        self._headroom = config.admission_headroom
        self._block_size = block_size
        self._plans: dict[RequestId, _Plan] = {}
        self._curbed: dict[RequestId, Request] = {}

    def allowance(self, num_missing: int) -> int:
        """How many of a request's `num_missing` tokens this step has room for now."""
        if num_missing > self._long_limit:
            return max(0, min(num_missing, self.budget, self._long_budget))
        return min(num_missing, self.budget)

    def curb(self, request: Request) -> None:
        """Note a running request for which nothing of the long prompts' share is left."""
        self._curbed[request.request_id] = request
        self._promise(request, request.num_computed_tokens, 1)

    def plan(
        self,
        request: Request,
        num_tokens: int,
        reservation: Reservation,
        drafts: Sequence[int] = (),
    ) -> None:
        """Let it have `num_tokens` of its tokens, and `drafts` after them."""
        plan = _Plan(request, num_tokens, reservation, tuple(drafts))
        self._plans[request.request_id] = plan
        self.budget -= num_tokens + len(drafts)
        num_missing = len(request.token_ids) - request.num_computed_tokens
        if num_missing > self._long_limit:
            self._long_budget -= num_tokens
            self._curbed[request.request_id] = request
        if num_tokens < num_missing or request.children:
            self._promise(request, request.num_computed_tokens + num_tokens, 1)

    def unplan(self, request: Request) -> bool:
        """Undo `plan`, as if the request had never been in this step. True if something was to be
        copied or loaded for it."""
        self._curbed.pop(request.request_id, None)
        plan = self._plans.pop(request.request_id, None)
        if plan is None:
            return False
        self.budget += plan.num_tokens + len(plan.drafts)
        if request.num_tokens - request.num_computed_tokens > self._long_limit:
            self._long_budget += plan.num_tokens
        self._promise(request, request.num_computed_tokens + plan.num_tokens, -1)
        return bool(plan.reservation.copies or plan.reservation.loads)

    def outlook(self, request: Request, num_stored: int) -> tuple[int, int]:
        """(blocks, seats) that a request with room for `num_stored` tokens will need before it
        generates: the rest of its prompt, and a copy on write and a seat for each other sample."""
        rest = blocks_for(request.num_tokens, self._block_size)
        num_children = len(request.children)
        return rest - blocks_for(num_stored, self._block_size) + num_children, num_children

    def growth(self, requests: Iterable[Request]) -> int:
        """Blocks they need until each has grown by `admission_headroom` tokens, or ended."""
        total = 0
        for request in requests if self._headroom else ():
            length = request.num_tokens
            most = min(length + self._headroom, request.max_total_tokens)
            total += blocks_for(most, self._block_size) - blocks_for(length, self._block_size)
        return total

    def curbed(self) -> Iterator[tuple[Request, int]]:
        """Long prompts of this step or left out of it, each with the tokens it has so far."""
        for request in list(self._curbed.values()):
            plan = self._plans.get(request.request_id)
            yield request, 0 if plan is None else plan.num_tokens

    def extend(self, request: Request, num_more: int, reservation: Reservation) -> None:
        """Let a long prompt have `num_more` tokens of what was left over."""
        self.budget -= num_more
        plan = self._plans.get(request.request_id)
        if plan is not None:
            num_more += plan.num_tokens
            reservation = plan.reservation.then(reservation)
        self._plans[request.request_id] = _Plan(request, num_more, reservation)

    def build(
        self, step_id: int, finished: tuple[RequestId, ...], saves: tuple[BlockSave, ...]
    ) -> Step:
        plans = self._plans.values()
        copies = tuple([copy for plan in plans for copy in plan.reservation.copies])
        loads = tuple([load for plan in plans for load in plan.reservation.loads])
        sequences = tuple([_scheduled(plan) for plan in plans])
        return Step(step_id, sequences, copies, finished, saves, loads)

    def _promise(self, request: Request, num_stored: int, sign: int) -> None:
        blocks, seats = self.outlook(request, num_stored)
        self.promised_blocks += sign * blocks
        self.promised_seats += sign * seats


def _scheduled(plan: _Plan) -> ScheduledSequence:
    request, num_tokens, reservation, drafts = plan
    token_ids = request.token_ids
    start, length = request.num_computed_tokens, len(token_ids)
    end = start + num_tokens
    samples: tuple[Sample, ...] = ()
    if drafts:
        samples = tuple([_sample(request, request, length + i) for i in range(len(drafts) + 1)])
    elif end == length and length < request.max_total_tokens:
        members = (request, *request.children)
        samples = tuple([_sample(request, one, length) for one in members])
    history = None
    if reservation.is_first and request.params.needs_history:
        history = History(tuple(token_ids[:start]), request.num_prompt_tokens)
    scored, next_token_id = False, None
    if request.params.prompt_logprobs and request.num_scored_tokens < request.num_prompt_tokens:
        scored = request.num_scored_tokens <= end
        next_token_id = token_ids[end] if scored and end < request.num_prompt_tokens else None
    return ScheduledSequence(
        request.request_id,
        (*token_ids[start:end], *drafts),
        start,
        reservation.table_start,
        reservation.block_ids,
        samples,
        scored,
        next_token_id,
        request.params.prompt_top_logprobs if scored else 0,
        history,
        len(drafts),
    )


def _sample(computed: Request, request: Request, position: int) -> Sample:
    """The draw of `request`'s token at a position from the logits of `computed`."""
    may_end = position - computed.num_prompt_tokens >= computed.params.min_tokens
    barred = _NOTHING if may_end else computed.stop_token_ids
    return Sample(request.request_id, request.params, request.sample_index, position, barred)
