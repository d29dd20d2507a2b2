"""A client's request: one prompt, `n` samples of it, and their text as it comes.

The core knows single sequences only. A group turns a client's request into them and their updates
back into pieces of text by sample. It lives on the side of whoever waits for the answer, so that
detokenizing never holds up a step.
"""

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from looseleaf.core.hashing import ExtraKeys
from looseleaf.core.request import FinishReason, Request, RequestId
from looseleaf.core.step import TokenLogprobs, Top, Update
from looseleaf.engine.misses import ObservedRequest, PrefixMiss
from looseleaf.sampling.params import MAX_SEED, SamplingParams
from looseleaf.text.detokenizer import IncrementalDetokenizer
from looseleaf.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class Delta(msgspec.Struct, frozen=True):
    """What one sample gained: text that is certain, and the tokens that came with this step.

    Text may lag behind the tokens, until a character or a possible stop string is complete.
    `stop_reason` is the stop string or the asked-for stop token that ended it.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...]
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    @classmethod
    def joined(cls, pieces: Sequence["Delta"]) -> "Delta":
        """Those of one sample, at least one, in one."""
        last = pieces[-1]
        if len(pieces) == 1:
            return last
        return cls(
            last.index,
            "".join([piece.text for piece in pieces]),
            tuple([token_id for piece in pieces for token_id in piece.token_ids]),
            tuple([logprob for piece in pieces for logprob in piece.logprobs]),
            last.finish_reason,
            last.stop_reason,
        )


@dataclass(slots=True)
class Sample:
    """One answer so far."""

    index: int
    request_id: RequestId
    detokenizer: IncrementalDetokenizer
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


class Group:
    """`n` samples of one prompt.

    `request` is what goes to the engine: the first sample, with the others as its children, for
    as long as they wait for their prompt. `members` are all of them, always.
    `request_id` must be unique among all that live; the samples' ids derive from it. `params` are
    those of `params.resolve`.
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        tokenizer: Tokenizer,
        *,
        arrival_time: float = 0.0,
        priority: int = 0,
        extra_keys: ExtraKeys = (),
        continues_text: bool = False,
    ) -> None:
        if params.seed is None:
            params = replace(params, seed=secrets.randbelow(MAX_SEED + 1))
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.params = params
        self.prompt_logprobs: list[float] = []
        self.prompt_top: list[Top] = []
        self._tokenizer = tokenizer
        stop_token_ids = params.stop_token_ids
        # Where a grammar comes to its end, nothing but an end token can follow.
        if not params.ignore_eos or params.grammar is not None:
            stop_token_ids = stop_token_ids | tokenizer.eos_token_ids

        # The prompt is scored once, for all samples of it.
        unscored = replace(params, prompt_logprobs=False, prompt_top_logprobs=0)

        def request(index: int, children: tuple[Request, ...] = ()) -> ObservedRequest:
            return ObservedRequest(
                RequestId(f"{request_id}/{index}"),
                prompt_token_ids,
                unscored if index else params,
                arrival_time=arrival_time,
                priority=priority,
                extra_keys=extra_keys,
                stop_token_ids=stop_token_ids,
                sample_index=index,
                children=children,
                takes_drafts=params.takes_drafts,
            )

        children = tuple(request(i) for i in range(1, params.n))
        self.request = request(0, children)
        self.members = (self.request, *children)
        self.samples = [
            Sample(
                index,
                member.request_id,
                IncrementalDetokenizer(
                    tokenizer,
                    stop=params.stop,
                    include_stop=params.include_stop_str_in_output,
                    skip_special=params.skip_special_tokens,
                    min_tokens=params.min_tokens,
                    continues_text=continues_text,
                ),
            )
            for index, member in enumerate(self.members)
        ]
        self._by_id = {sample.request_id: sample for sample in self.samples}

    @property
    def finished(self) -> bool:
        return None not in [sample.finish_reason for sample in self.samples]

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens found stored when the request first ran; 0 until then."""
        return self.request.num_cached_tokens or 0

    @property
    def max_tokens(self) -> int:
        """What each sample may have at most, once the scheduler has set its limits."""
        return self.request.max_total_tokens - self.request.num_prompt_tokens

    @property
    def num_preemptions(self) -> int:
        """Of all samples, so far."""
        return sum(member.num_preemptions for member in self.members)

    @property
    def prefix_miss(self) -> PrefixMiss | None:
        """Why the prompt, or its end, was not found stored; None if all was, and until it runs."""
        return self.request.prefix_miss

    @property
    def num_output_tokens(self) -> int:
        return sum(len(sample.token_ids) for sample in self.samples)

    @property
    def request_ids(self) -> list[RequestId]:
        return [sample.request_id for sample in self.samples]

    def unfinished_ids(self) -> list[RequestId]:
        return [s.request_id for s in self.samples if s.finish_reason is None]

    def fail(self, request_id: RequestId) -> Delta:
        """End one sample with an error."""
        sample = self._by_id[request_id]
        sample.finish_reason = FinishReason.ERROR
        return Delta(sample.index, "", (), (), FinishReason.ERROR)

    def cancel(self) -> list[Delta]:
        """End what has not ended, as aborted; text that was held back comes with it."""
        deltas = []
        for sample in self.samples:
            if sample.finish_reason is None:
                text = sample.detokenizer.finish()
                sample.text += text
                sample.finish_reason = FinishReason.ABORT
                deltas.append(Delta(sample.index, text, (), (), FinishReason.ABORT))
        return deltas

    def feed(self, update: Update) -> Delta | None:
        """Take in news of one sample. None if there is nothing to tell.

        If the text ran into a stop string, the delta says that the sample is finished although
        the engine does not know it yet: the caller then aborts it there, with reason STOP.
        """
        sample = self._by_id[update.request_id]
        self.prompt_logprobs.extend(update.prompt_logprobs)
        self.prompt_top.extend(update.prompt_top)
        if sample.finish_reason is not None:
            return None  # computed before the engine heard of a stop string
        if not update.token_ids and update.finish_reason is None:
            return None
        token_ids, reason = update.token_ids, update.finish_reason
        stop_reason: str | int | None = None
        shown = token_ids
        if reason is FinishReason.STOP:
            last = token_ids[-1]
            if last in self.params.stop_token_ids:
                stop_reason = last
            if not (self.params.include_stop_str_in_output and stop_reason is not None):
                shown = token_ids[:-1]
        text = sample.detokenizer.append(shown)
        if sample.detokenizer.stopped is not None:
            token_ids = token_ids[: sample.detokenizer.num_tokens - len(sample.token_ids)]
            reason, stop_reason = FinishReason.STOP, sample.detokenizer.stopped
        elif reason is not None:
            text += sample.detokenizer.finish()
        logprobs = update.logprobs[: len(token_ids)]
        sample.text += text
        sample.token_ids.extend(token_ids)
        sample.logprobs.extend(logprobs)
        sample.finish_reason, sample.stop_reason = reason, stop_reason
        return Delta(sample.index, text, token_ids, logprobs, reason, stop_reason)


class Router:
    """Brings the updates of steps to the groups they belong to, and their deltas to whoever waits.

    A group is known from `add` to `remove`; updates of others are dropped.
    """

    def __init__(self) -> None:
        self._entries: dict[RequestId, tuple[Group, Callable[[Delta], None]]] = {}

    def add(self, group: Group, deliver: Callable[[Delta], None]) -> None:
        self._entries |= dict.fromkeys(group.request_ids, (group, deliver))

    def remove(self, group: Group) -> None:
        for request_id in group.request_ids:
            self._entries.pop(request_id, None)

    def groups(self) -> list[Group]:
        return list({id(group): group for group, _ in self._entries.values()}.values())

    def route(self, updates: Sequence[Update]) -> list[tuple[RequestId, FinishReason]]:
        """Deliver what is new. Returns the requests that the engine has yet to end, and how: their
        text has come to a stop string, or could not be made."""
        to_end: list[tuple[RequestId, FinishReason]] = []
        for update in updates:
            entry = self._entries.get(update.request_id)
            if entry is None:
                continue
            group, deliver = entry
            try:
                delta = group.feed(update)
            except Exception:
                # One answer that cannot be put into words is no reason to lose the others'.
                logger.exception("the text of %s cannot be made", update.request_id)
                delta = group.fail(update.request_id)
            if delta is not None:
                deliver(delta)
                if delta.finish_reason is not None and update.finish_reason is None:
                    to_end.append((update.request_id, delta.finish_reason))
        return to_end
