"""Beam search: the likeliest continuations of a prompt, found side by side.

Every beam is a request that draws one token. When all beams have theirs, the best of what may
follow any of them go on: as forks, which share every block with the beam they come from and copy
only the one they write; the others end. A beam that had to be preempted comes later than the rest;
those that are done wait for it outside the engine, and find their blocks stored when they come
back.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from looseleaf.core.errors import LooseleafError
from looseleaf.core.hashing import ExtraKeys
from looseleaf.core.request import FinishReason, RequestId, Status
from looseleaf.core.step import Update
from looseleaf.engine.engine import Engine
from looseleaf.engine.misses import ObservedRequest
from looseleaf.sampling.params import SamplingParams
from looseleaf.text.detokenizer import completes_stop
from looseleaf.text.tokenizer import Tokenizer

MAX_WIDTH = 10
"""Twice as many of the most likely tokens are listed with each draw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """`beam_width` answers are returned, the best first: by the sum of their tokens' raw
    log-probabilities over `length ** length_penalty`, where the length counts generated tokens,
    an end token too.

    The search ends after `max_tokens`, and before that once `beam_width` answers have come to an
    end and no beam that goes on can do better; with `early_stopping`, as soon as there are so many.
    `ignore_eos` lets no answer end by itself. `stop_token_ids` end one like the model's own end
    tokens, and so does the token that completes one of `stop` in its text.

    Of `constraints` count `allowed_token_ids`, bad words, grammar and `min_tokens`: no beam goes
    where they forbid it, and scores stay those of the model.
    """

    beam_width: int
    max_tokens: int = 16
    length_penalty: float = 1.0
    early_stopping: bool = False
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    constraints: SamplingParams | None = None

    def __post_init__(self) -> None:
        for name, holds, rule in (
            ("beam_width", 1 <= self.beam_width <= MAX_WIDTH, f"between 1 and {MAX_WIDTH}"),
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("length_penalty", abs(self.length_penalty) <= 10, "between -10 and 10"),
        ):
            if not holds:
                raise LooseleafError(f"{name} is {getattr(self, name)!r}, but it must be {rule}")

    def end_token_ids(self, eos_token_ids: frozenset[int]) -> frozenset[int]:
        """All ids that end an answer. Nothing but the model's own may come after a grammar."""
        goes_on = self.constraints is None or self.constraints.grammar is None
        return self.stop_token_ids | (frozenset() if self.ignore_eos and goes_on else eos_token_ids)


@dataclass(frozen=True, slots=True)
class BeamAnswer:
    """`score` is what answers are ranked by. `at_stop` says that a stop string ended it, and not a
    token of its own."""

    token_ids: tuple[int, ...]
    cumulative_logprob: float
    score: float
    finish_reason: FinishReason
    at_stop: bool = False


@dataclass(slots=True, eq=False)
class _Beam:
    token_ids: tuple[int, ...]
    logprob: float
    request_id: RequestId | None = None
    """While it is in the engine."""
    following: Sequence[tuple[int, float]] | None = None
    """What may come next, each with its log-probability, once that is known."""


@dataclass(slots=True)
class BeamSearch:
    """One prompt's search on an engine. `start` it, give it every step's updates, until it is
    `finished`; then `answers` are there. `cancel` it to end it before. Beams are its own affair: a
    journal hears of the search alone."""

    engine: Engine
    name: str
    prompt_token_ids: Sequence[int]
    params: BeamSearchParams
    end_token_ids: frozenset[int]
    tokenizer: Tokenizer
    priority: int = 0
    extra_keys: ExtraKeys = ()
    finished: bool = False
    num_cached_tokens: int = 0
    """Of the prompt, found stored."""
    first: ObservedRequest | None = None
    """What computes the prompt, once it is started."""
    answers: list[BeamAnswer] = field(default_factory=list)
    _beams: list[_Beam] = field(default_factory=list)
    _ids: "itertools.count[int]" = field(default_factory=itertools.count)

    def check(self) -> None:
        """Raise CapacityError for a prompt that can never run. May be called in any thread."""
        self.engine.scheduler.set_limits(self._request(_Beam((), 0.0), RequestId(self.name)))

    def start(self) -> None:
        """Raises CapacityError for a prompt that can never run."""
        first = _Beam((), 0.0)
        self._beams = [first]
        self.first = self._request(first)
        self.engine.scheduler.add(self.first)
        if self.engine.journal is not None:
            self.engine.journal.searched(self)

    def cancel(self) -> None:
        for beam in self._beams:
            self._leave(beam)
        self._beams = []
        self.finished = True

    def update(self, updates: Sequence[Update]) -> None:
        """Take in the news of a step, of whatever requests; to be called before the next step."""
        if self.finished:
            return
        by_id = {beam.request_id: beam for beam in self._beams if beam.request_id is not None}
        for update in updates:
            beam = by_id.get(update.request_id)
            if beam is None:
                continue
            if update.finish_reason is FinishReason.ERROR and self.params.constraints is not None:
                beam.request_id, beam.following = None, ()  # nothing is allowed after it
                continue
            if update.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
                self.cancel()
                self.answers = []
                return
            if update.logprobs and update.logprobs[0] is not None:
                beam.following = update.logprobs[0].top
            if update.finish_reason is not None:
                beam.request_id = None  # the context is full
        if all(beam.following is not None for beam in self._beams):
            self._go_on()
            return
        for beam in self._beams:
            if beam.following is not None:
                self._leave(beam)  # or it would run ahead of the others

    def _go_on(self) -> None:
        width = self.params.beam_width
        self.num_cached_tokens = (self.first and self.first.num_cached_tokens) or 0
        candidates = [
            (beam.logprob + logprob, order, token_id, beam)
            for order, beam in enumerate(self._beams)
            for token_id, logprob in beam.following or ()
        ]
        # Equal ones by beam, then as they were listed.
        candidates.sort(key=lambda found: (-found[0], found[1]))
        chosen: list[tuple[_Beam, _Beam]] = []
        for logprob, _, token_id, parent in candidates[: 2 * width]:
            token_ids = (*parent.token_ids, token_id)
            if token_id in self.end_token_ids:
                self._end(token_ids, logprob, FinishReason.STOP)
            elif self._stops(token_ids):
                self._end(token_ids, logprob, FinishReason.STOP, at_stop=True)
            elif len(chosen) < width:
                chosen.append((_Beam(token_ids, logprob), parent))
        self.answers.sort(key=lambda answer: -answer.score)
        del self.answers[width:]
        length = len(self._beams[0].token_ids) + 1
        room = self._room()
        if self._is_over([beam for beam, _ in chosen], length, room):
            parents, self._beams = self._beams, []
            for parent in parents:
                self._leave(parent)
            if length >= room:
                for beam, _ in chosen:
                    self._end(beam.token_ids, beam.logprob, FinishReason.LENGTH)
            self.answers.sort(key=lambda answer: -answer.score)
            del self.answers[width:]
            self.finished = True
            return
        for beam, parent in chosen:
            self._fork(beam, parent)
        for parent in self._beams:
            self._leave(parent)
        self._beams = [beam for beam, _ in chosen]

    def _room(self) -> int:
        """How many tokens an answer may have in all."""
        limit = self.engine.scheduler.config.max_model_len - len(self.prompt_token_ids)
        return min(self.params.max_tokens, limit)

    def _is_over(self, live: Sequence[_Beam], length: int, room: int) -> bool:
        if not live or length >= room:
            return True
        if len(self.answers) < self.params.beam_width:
            return False
        if self.params.early_stopping:
            return True
        # A sum only falls. What it is divided by helps most at one end or the other.
        best = max(beam.logprob for beam in live)
        return self.answers[-1].score >= max(self._score(best, length), self._score(best, room))

    def _score(self, logprob: float, length: int) -> float:
        return float(logprob / length**self.params.length_penalty)

    def _stops(self, token_ids: tuple[int, ...]) -> bool:
        asked = self.params.constraints
        if asked is not None and len(token_ids) < asked.min_tokens:
            return False
        return completes_stop(self.tokenizer, token_ids, self.params.stop)

    def _end(
        self,
        token_ids: tuple[int, ...],
        logprob: float,
        reason: FinishReason,
        *,
        at_stop: bool = False,
    ) -> None:
        score = self._score(logprob, len(token_ids))
        self.answers.append(BeamAnswer(token_ids, logprob, score, reason, at_stop))

    def _request(self, beam: _Beam, request_id: RequestId | None = None) -> ObservedRequest:
        beam.request_id = request_id or RequestId(f"{self.name}/beam-{next(self._ids)}")
        asked = self.params.constraints or SamplingParams()
        params = SamplingParams(
            temperature=0,
            # One token more than it draws: a request that has all its tokens has ended, and no
            # blocks to share.
            max_tokens=len(beam.token_ids) + 2,
            min_tokens=min(asked.min_tokens, len(beam.token_ids) + 2),
            logprobs=2 * self.params.beam_width,
            lists_drawable=True,
            ignore_eos=True,
            allowed_token_ids=asked.allowed_token_ids,
            bad_words_token_ids=asked.bad_words_token_ids,
            grammar=asked.grammar,
        )
        request = ObservedRequest(
            beam.request_id,
            self.prompt_token_ids,
            params,
            arrival_time=self.engine.clock(),
            priority=self.priority,
            extra_keys=self.extra_keys,
            # Only to be barred as long as too few tokens are generated: they end nothing here.
            stop_token_ids=(
                self.end_token_ids if len(beam.token_ids) < asked.min_tokens else frozenset()
            ),
        )
        request.token_ids.extend(beam.token_ids)
        return request

    def _add(self, beam: _Beam) -> None:
        self.engine.scheduler.add(self._request(beam))

    def _fork(self, beam: _Beam, parent: _Beam) -> None:
        found = None
        if parent.request_id is not None:
            found = self.engine.scheduler.requests.get(parent.request_id)
        if found is None or found.status is not Status.RUNNING:
            self._add(beam)
        else:
            self.engine.scheduler.fork(found.request_id, self._request(beam))

    def _leave(self, beam: _Beam) -> None:
        if beam.request_id is not None:
            self.engine.scheduler.abort(beam.request_id)
            beam.request_id = None
