"""Beam searches that run beside everything else, with answers like those of other requests."""

import logging
from collections.abc import Sequence

from looseleaf.core.errors import LooseleafError
from looseleaf.core.request import FinishReason, RequestId
from looseleaf.core.step import Update
from looseleaf.engine.beams import BeamAnswer, BeamSearch
from looseleaf.engine.groups import Group

logger = logging.getLogger(__name__)


class Searches:
    """Belongs to whoever runs the engine's steps."""

    def __init__(self) -> None:
        self._running: dict[RequestId, tuple[Group, BeamSearch]] = {}

    def start(self, group: Group, search: BeamSearch) -> None:
        search.start()
        self._running[group.request.request_id] = (group, search)

    def cancel(self, group: Group) -> None:
        """End its search, if it has one that runs."""
        found = self._running.pop(group.request.request_id, None)
        if found is not None:
            search = found[1]
            search.cancel()
            if search.engine.journal is not None:
                search.engine.journal.cancelled(search)

    def go_on(self, updates: Sequence[Update]) -> list[Update]:
        """Give the searches a step's news; returns the answers of those that are finished."""
        answers: list[Update] = []
        for request_id, (group, search) in list(self._running.items()):
            try:
                search.update(updates)
            except LooseleafError:
                # A beam that can never run: with an allocator of old, which reserves more for it.
                logger.exception("the beam search of %s failed", request_id)
                search.cancel()
                search.answers = []
            if search.finished:
                del self._running[request_id]
                answers += _answers(group, search)
        return answers


def _reason(answer: BeamAnswer) -> FinishReason:
    """STOP is for a last token that is no part of the text. Of a stop string it is, and the group,
    which knows where it is cut, finds the string."""
    return FinishReason.LENGTH if answer.at_stop else answer.finish_reason


def _answers(group: Group, search: BeamSearch) -> list[Update]:
    """A sample's for each answer, the best first; those that there are no answers for failed."""
    group.request.num_cached_tokens = search.num_cached_tokens
    if search.first is not None:
        group.request.first_scheduled_time = search.first.first_scheduled_time
        group.request.prefix_miss = search.first.prefix_miss
    found = [
        Update(sample.request_id, answer.token_ids, finish_reason=_reason(answer))
        for sample, answer in zip(group.samples, search.answers, strict=False)
    ]
    missing = group.samples[len(found) :]
    return found + [Update(s.request_id, (), finish_reason=FinishReason.ERROR) for s in missing]
