"""Where live sequences stand in their grammars."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from looseleaf.core.request import RequestId
from looseleaf.executors.batch import SequenceRange

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

NewMatcher = Callable[[str], Any]
"""The state of a grammar before the first token (`text.grammar.Matcher`)."""


class GrammarStates:
    """Follows each sequence through its grammar. Without `new_matcher` there are none.

    What may come next depends on the generated tokens alone: a sequence that comes back after it
    was preempted, or whose last tokens were others, is followed from its beginning again.
    """

    def __init__(self, new_matcher: NewMatcher | None) -> None:
        self._new_matcher = new_matcher
        self._states: dict[RequestId, tuple[Any, list[int]]] = {}
        self._helper: ThreadPoolExecutor | None = None
        self._coming: dict[RequestId, Future[NDArray[np.int32]]] = {}

    def begin(self, ranges: Iterable[SequenceRange]) -> None:
        """Find out for all that draw in this step what `allowed` will be asked, in a thread beside
        the forward pass: what a grammar allows does not depend on the logits."""
        self.wait()  # for those of a step that failed
        for part in ranges:
            samples = part.sequence.samples
            grammar = getattr(samples[0].params, "grammar", None) if samples else None
            if grammar is None or part.told is None:
                continue
            if self._helper is None:
                from concurrent.futures import ThreadPoolExecutor  # takes its time to import

                self._helper = ThreadPoolExecutor(1, "grammars")
            output = part.told.token_ids[part.told.num_prompt_tokens :].tolist()
            request_id = part.sequence.request_id
            self._coming[request_id] = self._helper.submit(
                self._allowed, request_id, grammar, output
            )

    def wait(self) -> None:
        """Until nothing that `begin` began is still being worked on."""
        for future in self._coming.values():
            future.exception()
        self._coming.clear()

    def allowed(
        self, request_id: RequestId, grammar: str, output: Sequence[int]
    ) -> NDArray[np.int32]:
        """The tokens (M,), rising, that may follow `output`; none where the grammar was left."""
        coming = self._coming.get(request_id)
        return self._allowed(request_id, grammar, output) if coming is None else coming.result()

    def _allowed(
        self, request_id: RequestId, grammar: str, output: Sequence[int]
    ) -> NDArray[np.int32]:
        matcher, followed = self._states.get(request_id, (None, []))
        if matcher is None or followed != list(output[: len(followed)]):
            assert self._new_matcher is not None, "this executor follows no grammars"
            matcher, followed = self._new_matcher(grammar), []
        new = list(output[len(followed) :])
        if new:
            matcher.consume_tokens(new)
            followed = followed + new
        self._states[request_id] = (matcher, followed)
        if matcher.is_error():
            return np.zeros(0, np.int32)
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if matcher.is_error():  # it became too costly just now
            return np.zeros(0, np.int32)
        return np.flatnonzero(np.unpackbits(mask, bitorder="little")).astype(np.int32)

    @property
    def any_followed(self) -> bool:
        return bool(self._states)

    def forced(self, request_id: RequestId, token_id: int, *, alone: bool) -> tuple[int, ...]:
        """The tokens that must follow `token_id`, just drawn after what `allowed` was asked of.
        Where the sequence is not `alone`, others draw from the same state."""
        matcher, followed = self._states[request_id]
        if alone:
            self._states[request_id] = (matcher, [*followed, token_id])
        else:
            matcher = matcher.deep_copy()
        matcher.consume_tokens([token_id])
        return () if matcher.is_error() else tuple(matcher.compute_ff_tokens())

    def forget(self, request_ids: Iterable[RequestId]) -> None:
        self.wait()
        for request_id in request_ids:
            self._states.pop(request_id, None)

    def close(self) -> None:
        """End the thread; more than once does no harm."""
        self.wait()
        if self._helper is not None:
            self._helper.shutdown()
            self._helper = None
