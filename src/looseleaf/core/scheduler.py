"""The scheduler: who computes how many tokens in the next step, and what the results mean.

There are no prefill and decode phases. Each running request has tokens whose KV is not stored yet
(`num_tokens - num_computed_tokens`: a whole prompt, or the one token sampled last), and each step
lets requests catch up, within one token budget: the running ones first, then the waiting ones.

State changes only in `add`, `abort`, `fork`, `schedule` and `apply`. No clock is read and no I/O
done: times are arguments, so the planner runs this very code on a virtual clock.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from looseleaf.core.allocator import KVAllocator, Match, Reservation
from looseleaf.core.config import SchedulerConfig
from looseleaf.core.counters import Counters
from looseleaf.core.errors import CapacityError
from looseleaf.core.events import Event, RequestAdded, RequestMoved, StepScheduled
from looseleaf.core.policy import POLICIES, outranks
from looseleaf.core.prefix_leaders import PrefixLeaders
from looseleaf.core.request import FinishReason, Request, RequestId, Status
from looseleaf.core.step import ScheduledSequence, Step, StepResult, TokenLogprobs, Top, Update
from looseleaf.core.step_builder import StepBuilder

MAX_EXAMINED = 64
"""Long prompts that one step looks up in the cache, however many wait."""


Drafter = Callable[[Request, int], Sequence[int]]
"""Guesses how a request will go on: at most so many tokens."""


class Scheduler:
    def __init__(
        self, config: SchedulerConfig, allocator: KVAllocator, drafter: Drafter | None = None
    ) -> None:
        self.config = config
        self.allocator = allocator
        self.drafter = drafter
        self.counters = Counters()
        # All that have not ended. `running` and `waiting` are in the policy's order; those held
        # back are in `leaders`, and further samples of an uncomputed prompt with their parent.
        self.requests: dict[RequestId, Request] = {}
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.leaders = PrefixLeaders()
        self._key = POLICIES[config.policy]
        self._num_added = 0
        self._step: Step | None = None
        self._dropped: list[RequestId] = []
        self._unsent_tables: set[RequestId] = set()

    @property
    def has_work(self) -> bool:
        return bool(self.requests)

    def add(self, request: Request) -> None:
        """Queue a request and its `children`.

        Raises CapacityError if it can never run, as `set_limits` does.
        """
        self.set_limits(request)
        self._register(request, *request.children)
        for child in request.children:
            child.parent_id = request.request_id
            child.status = Status.HELD
        insort(self.waiting, request, key=self._key)
        self._emit(RequestAdded, request.request_id, request.num_prompt_tokens, request.priority)

    def set_limits(self, request: Request) -> None:
        """Set how long the request and its children may become.

        Reads nothing that ever changes, so anyone may call it beforehand, from any thread. Raises
        CapacityError for a prompt beyond the context, or more blocks than the whole pool has.
        """
        for member in (request, *request.children):
            self._set_limit(member)
        available = self.allocator.num_blocks - self.allocator.num_pinnable
        needed = self.allocator.num_blocks_needed(request)
        if needed > available:
            size, prompt = self.allocator.block_size, request.num_prompt_tokens
            raise CapacityError(
                f"the request needs {needed} KV blocks of {size} tokens ({prompt} tokens of prompt "
                f"and up to {request.max_total_tokens - prompt} of output), but the pool has "
                f"{available} ({available * size} tokens): ask for fewer tokens, or give the KV "
                f"cache more memory"
            )

    def abort(self, request_id: RequestId, reason: FinishReason = FinishReason.ABORT) -> bool:
        """End a request in whatever state, and free its blocks at once; False if it has ended.

        Further samples that still wait for its prompt end with it.
        """
        request = self.requests.get(request_id)
        if request is None:
            return False
        if request.parent_id is not None:
            parent = self.requests[request.parent_id]
            parent.children = tuple(c for c in parent.children if c is not request)
        elif request.status is Status.WAITING:
            self.waiting.remove(request)
        elif request.status is Status.HELD:
            self.leaders.drop(request)
        self._end_family(request, reason)
        self._wake_held()
        return True

    def fork(self, parent_id: RequestId, child: Request) -> None:
        """Let `child` go on from what the running `parent_id` has computed, sharing its blocks.

        `child` has the parent's computed tokens and at least one more. It waits, and computes them
        again, if there is no seat for it or nothing can be shared.
        """
        parent = self.requests[parent_id]
        computed = parent.num_computed_tokens
        if parent.status is not Status.RUNNING or computed == 0:
            raise ValueError(f"request {parent_id!r} is {parent.status} with nothing to share")
        begins = child.token_ids[:computed] == parent.token_ids[:computed]
        if not begins or child.num_tokens <= computed:
            raise ValueError("a fork has its parent's computed tokens and at least one more")
        if child.extra_keys != parent.extra_keys or child.children:
            raise ValueError("a fork has its parent's extra keys and no further samples")
        self.set_limits(child)
        self._register(child)
        self._start_fork(parent, child)

    def schedule(self, now: float) -> Step:
        """The next step, which must be applied before another is scheduled."""
        if self._step is not None:
            raise RuntimeError(f"step {self._step.step_id} was scheduled and not yet applied")
        builder = StepBuilder(self.config, self.allocator.block_size)
        num_preemptions = self.counters.preemptions
        self._schedule_running(builder)
        if self.counters.preemptions == num_preemptions:
            self._schedule_waiting(builder, now)
        self._schedule_leftover(builder)
        saves = self.allocator.end_schedule()
        self.counters.steps += 1
        step = builder.build(self.counters.steps, tuple(self._dropped), saves)
        self._dropped.clear()
        self._step = step
        self._emit(StepScheduled, step.step_id, len(step.sequences), step.num_tokens)
        return step

    def apply(self, result: StepResult, now: float) -> list[Update]:
        """Take in what the scheduled step computed: store progress, publish full blocks, append
        tokens, start forks, end what is complete. Returns the news by request."""
        step, self._step = self._step, None
        if step is None or step.step_id != result.step_id:
            expected = "none" if step is None else step.step_id
            raise RuntimeError(f"result of step {result.step_id}, but {expected} is outstanding")
        updates: list[Update] = []
        scores, tops = iter(result.prompt_logprobs), iter(result.prompt_top)
        logprobs = result.logprobs or (None,) * len(result.tokens)
        forced = result.forced or ((),) * len(result.tokens)
        drawn = 0
        for sequence in step.sequences:
            first, drawn = drawn, drawn + len(sequence.samples)
            scored = next(scores) if sequence.prompt_logprobs else ()
            top = next(tops) if sequence.num_prompt_top else ()
            request = self.requests.get(sequence.request_id)
            if request is None:
                continue  # it was aborted while the step ran
            if None in result.tokens[first : drawn - sequence.num_drafts]:
                updates.extend(self._end_family(request, FinishReason.ERROR))
                continue
            self.counters.computed_tokens += len(sequence.token_ids)
            if request.num_cached_tokens is None:
                found = request.num_cached_tokens = sequence.first_position
                self.counters.prefix_queries += request.num_prompt_tokens
                self.counters.prefix_hits += min(found, request.num_prompt_tokens)
            if sequence.num_drafts:
                tokens = zip(result.tokens[first:drawn], logprobs[first:drawn], strict=True)
                updates += self._accept(request, sequence, tokens, now)
                continue
            request.num_computed_tokens += len(sequence.token_ids)
            self.allocator.publish(request)
            self.leaders.advance(request)
            if scored:
                updates.append(self._score(request, sequence.first_position + 1, scored, top))
            # Forks come first: the parent may end with this very token.
            for i in reversed(range(first, drawn)):
                token_id = result.tokens[i]
                sampled = self.requests.get(sequence.samples[i - first].request_id)
                if sampled is not None and token_id is not None:
                    gained = (token_id, *forced[i])
                    updates.append(self._append(request, sampled, gained, logprobs[i], now))
            if not sequence.samples and request.num_computed_tokens == request.max_total_tokens:
                updates.extend(self._end_family(request, FinishReason.LENGTH))
        self._wake_held()
        return updates

    def discard(self) -> None:
        """Forget the scheduled step, whose computation failed: all that were in it begin again."""
        step, self._step = self._step, None
        if step is not None:
            self._dropped.extend(step.finished)
            for sequence in step.sequences:
                request = self.requests.get(sequence.request_id)
                if request is not None:
                    request.num_computed_tokens = 0  # its copies may not have been made
                    self._preempt(request)

    def _schedule_running(self, builder: StepBuilder) -> None:
        """Running requests in order; whoever is last gives way when memory runs out."""
        index = 0
        while index < len(self.running) and builder.budget > 0:
            request = self.running[index]
            index += 1
            missing = len(request.token_ids) - request.num_computed_tokens
            num_tokens = missing if missing == 1 else builder.allowance(missing)
            if num_tokens == 0:
                builder.curb(request)
                continue
            target = request.num_computed_tokens + num_tokens
            if missing == 1:
                drafts = self._draft(request, builder, len(self.running) - index)
                if drafts:
                    reservation = self._reserve(request, target + len(drafts))
                    if reservation is not None:
                        builder.plan(request, num_tokens, reservation, drafts)
                        continue
            reservation = self._reserve(request, target)
            while reservation is None:
                # The first one never has to go: alone it fits, or `add` would have refused it.
                victim = self.running[-1]
                self._preempt(victim)
                if victim is request:
                    return
                reservation = self._reserve(request, target)
            builder.plan(request, num_tokens, reservation)

    def _draft(self, request: Request, builder: StepBuilder, num_after: int) -> Sequence[int]:
        """Guesses for a request that generates, leaving tokens for `num_after` others."""
        if self.drafter is None or request.children or not request.takes_drafts:
            return ()
        left = request.max_total_tokens - request.num_tokens
        room = min(left, builder.budget - num_after) - 1
        return self.drafter(request, room) if room > 0 else ()

    def _schedule_waiting(self, builder: StepBuilder, now: float) -> None:
        """Admit waiting requests in order while seats, tokens and blocks last."""
        position = examined = 0
        while position < len(self.waiting):
            request = self.waiting[position]
            if not self._has_room(request, builder):
                if not self._make_way(request, builder):
                    return
                continue
            is_long = request.num_tokens > self.config.long_prefill_tokens
            if is_long and examined == MAX_EXAMINED:
                position += 1  # its turn comes; shorter ones pass
                continue
            examined += is_long
            match = self.allocator.match(request)
            common = self.leaders.common(self.allocator.pending_keys(request, match))
            if common is not None and not outranks(self.config.policy, request, common[0]):
                del self.waiting[position]
                self._hold(request, *common)
                continue
            missing = request.num_tokens - match.num_tokens
            num_tokens = builder.allowance(missing)
            if num_tokens == 0 and self._outranks_last(request):
                num_tokens = min(missing, builder.budget)  # whoever has the share is less urgent
            if num_tokens == 0:
                position += 1  # the long prompts' share is used up; shorter ones pass
                continue
            admitted = self._reserve_first(request, match, num_tokens, builder)
            if admitted is None:
                if not self._make_way(request, builder):
                    return
                continue
            match, reservation = admitted
            del self.waiting[position]
            self._admit(request, match, now)
            self.leaders.lead(request, self.allocator.pending_keys(request, match))
            builder.plan(request, num_tokens, reservation)

    def _schedule_leftover(self, builder: StepBuilder) -> None:
        """What nobody else could use goes to the long prompts after all."""
        for request, num_planned in builder.curbed():
            done = request.num_computed_tokens + num_planned
            more = min(builder.budget, request.num_tokens - done)
            if more > 0:
                reservation = self._reserve(request, done + more)
                if reservation is not None:
                    builder.extend(request, more, reservation)

    def _reserve(self, request: Request, num_tokens: int) -> Reservation | None:
        reservation = self.allocator.reserve(request, num_tokens)
        if reservation is None or request.request_id not in self._unsent_tables:
            return reservation
        # Executors know nothing of a fork until it is first scheduled.
        self._unsent_tables.remove(request.request_id)
        return reservation._replace(
            table_start=0, block_ids=self.allocator.table(request.request_id)
        )

    def _has_room(self, request: Request, builder: StepBuilder) -> bool:
        if not self.running:
            return True
        seats = len(self.running) + builder.promised_seats + 1 + len(request.children)
        return builder.budget > 0 and seats <= self.config.max_num_seqs

    def _reserve_first(
        self, request: Request, match: Match, num_tokens: int, builder: StepBuilder
    ) -> tuple[Match, Reservation] | None:
        """Blocks for the first chunk, if the rest of the prompt will fit too."""
        for attempt in (match, match.whole_blocks(self.allocator.block_size)):
            target = attempt.num_tokens + num_tokens
            spare = 0
            if self.running:
                spare = builder.promised_blocks + builder.outlook(request, target)[0]
                spare += builder.growth((*self.running, request))
                if request.num_preemptions:
                    spare += len(self.running)  # or it would soon have to go again
            reservation = self.allocator.reserve(request, target, attempt, spare)
            if reservation is not None:
                return attempt, reservation
        return None

    def _make_way(self, request: Request, builder: StepBuilder) -> bool:
        """Preempt the last running request for one that outranks it."""
        if not self._outranks_last(request):
            return False
        victim = self.running[-1]
        if builder.unplan(victim):
            victim.num_computed_tokens = 0  # what holds some of them will not be copied or loaded
        self._preempt(victim)
        return True

    def _outranks_last(self, request: Request) -> bool:
        return bool(self.running) and outranks(self.config.policy, request, self.running[-1])

    def _set_limit(self, request: Request) -> None:
        limit, prompt = self.config.max_model_len, request.num_prompt_tokens
        wanted, room = request.params.max_tokens, limit - prompt
        if room < 0 or (room == 0 and wanted != 0):
            raise CapacityError(
                f"the prompt has {prompt} tokens, but prompt and output together may have at most "
                f"{limit} (max_model_len): shorten the prompt to {limit - 1} tokens or fewer"
            )
        request.max_total_tokens = prompt + (room if wanted is None else min(wanted, room))

    def _register(self, *requests: Request) -> None:
        for request in requests:
            if request.request_id in self.requests:
                raise ValueError(f"request id {request.request_id!r} is in use")
        for request in requests:
            self._num_added += 1
            request.arrival_index = self._num_added
            self.requests[request.request_id] = request

    def _admit(self, request: Request, match: Match, now: float) -> None:
        request.status = Status.RUNNING
        request.num_computed_tokens = match.num_tokens
        if request.first_scheduled_time is None:
            request.first_scheduled_time = now
        insort(self.running, request, key=self._key)
        self._moved(request)

    def _hold(self, request: Request, leader: Request, block_hash: bytes) -> None:
        request.status = Status.HELD
        self.leaders.hold(request, block_hash)
        self.counters.held_back += 1
        self._moved(request, leader.request_id)

    def _wake_held(self) -> None:
        for request in self.leaders.take_woken():
            self._wait(request)

    def _wait(self, request: Request) -> None:
        request.status = Status.WAITING
        insort(self.waiting, request, key=self._key)
        self._moved(request)

    def _preempt(self, request: Request) -> None:
        """Back to waiting, to be computed again; what it has published may be found then."""
        self._leave_running(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.counters.preemptions += 1
        self._wait(request)
        self._wake_held()

    def _leave_running(self, request: Request) -> None:
        self.running.remove(request)
        self.allocator.free(request)
        self.leaders.leave(request)
        self._unsent_tables.discard(request.request_id)
        self._dropped.append(request.request_id)

    def _start_fork(self, parent: Request, child: Request) -> None:
        child.parent_id = None
        child.num_cached_tokens = 0  # what siblings share is not a hit
        child.num_scored_tokens = parent.num_scored_tokens
        child.first_scheduled_time = parent.first_scheduled_time
        num_computed, seats = parent.num_computed_tokens, self.config.max_num_seqs
        if len(self.running) >= seats or not self.allocator.fork(parent, child, num_computed):
            self._wait(child)
            return
        child.status = Status.RUNNING
        child.num_computed_tokens = num_computed
        self._unsent_tables.add(child.request_id)
        insort(self.running, child, key=self._key)
        self._moved(child, parent.request_id)

    def _score(
        self, request: Request, position: int, scored: tuple[float, ...], top: tuple[Top, ...]
    ) -> Update:
        """Deliver each prompt token's log-probability once, also if it is computed again."""
        start = max(0, request.num_scored_tokens - position)
        end = request.num_prompt_tokens - position
        request.num_scored_tokens += len(scored[start:end])
        return Update(request.request_id, (), (), scored[start:end], prompt_top=top[start:end])

    def _append(
        self,
        computed: Request,
        request: Request,
        gained: tuple[int, ...],
        logprobs: TokenLogprobs | None,
        now: float,
    ) -> Update:
        """Give `request` the token drawn from the logits of `computed`, which is the request
        itself or, for a further sample of the same prompt, its parent; and those that must follow,
        up to the one that ends it."""
        if request.first_token_time is None:
            request.first_token_time = now
        reason = None
        for num_gained, token_id in enumerate(gained, start=1):
            request.token_ids.append(token_id)
            if token_id in request.stop_token_ids:
                reason = FinishReason.STOP
            elif len(request.token_ids) >= request.max_total_tokens:
                reason = FinishReason.LENGTH
            if reason is not None:
                gained = gained[:num_gained]
                break
        if request is not computed:
            computed.children = tuple(c for c in computed.children if c is not request)
            if reason is None:
                self._start_fork(computed, request)
        if reason is not None:
            self._finish(request, reason)
        unscored = (None,) * (len(gained) - 1)
        return Update(request.request_id, gained, (logprobs, *unscored), (), reason)

    def _accept(
        self,
        request: Request,
        sequence: ScheduledSequence,
        drawn: Iterable[tuple[int | None, TokenLogprobs | None]],
        now: float,
    ) -> list[Update]:
        """Take what was drawn as long as the guesses were right, token by token as if each had had
        a step of its own, and the first token after. What the others stored is written over."""
        self.counters.drafts += 1
        self.counters.draft_tokens += sequence.num_drafts
        drafts = sequence.token_ids[-sequence.num_drafts :]
        updates: list[Update] = []
        for i, (token_id, logprobs) in enumerate(drawn):
            if token_id is None:
                return updates + self._end_family(request, FinishReason.ERROR)
            request.num_computed_tokens += 1
            self.allocator.publish(request)
            self.leaders.advance(request)
            updates.append(self._append(request, request, (token_id,), logprobs, now))
            if request.finish_reason is not None or drafts[i : i + 1] != (token_id,):
                break
            self.counters.accepted_tokens += 1
        return updates

    def _end_family(self, request: Request, reason: FinishReason) -> list[Update]:
        family = (*request.children, request)
        for member in family:
            self._finish(member, reason)
        return [Update(member.request_id, (), (), (), reason) for member in family]

    def _finish(self, request: Request, reason: FinishReason) -> None:
        if request.status is Status.RUNNING:
            if reason is FinishReason.ERROR:
                self.allocator.disown(request)
                request.num_computed_tokens = 0  # nothing more of it is to be found
            self._leave_running(request)
        request.status = Status.FINISHED
        request.finish_reason = reason
        del self.requests[request.request_id]
        self._moved(request, reason)

    def _moved(self, request: Request, cause: str = "") -> None:
        self._emit(
            RequestMoved, request.request_id, request.status, request.num_computed_tokens, cause
        )

    def _emit(self, kind: type[Event], *fields: Any) -> None:
        if self.allocator.events is not None:
            self.allocator.events.emit(kind, *fields)
