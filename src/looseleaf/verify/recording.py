"""What was drawn, and from which logits, bit for bit."""

import itertools
import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from looseleaf.core.step import Update
from looseleaf.engine.beams import BeamSearch
from looseleaf.engine.llm import LLM, RequestOutput
from looseleaf.verify.requests import Case

Drawn = tuple[int, bytes]
"""A token, and the digest of the row of logits that it was drawn from."""

FORCED = b"forced"
"""In place of logits, for a token that the grammar left no choice about."""


class Answer(NamedTuple):
    """Of one case: what each of its samples drew, token by token."""

    samples: tuple[tuple[Drawn, ...], ...]
    num_cached_tokens: int


class Recorder:
    """Notes the logits behind every draw of an executor while it is in use."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._ids = itertools.count()
        self._digests: dict[tuple[str, int], bytes] = {}
        executor: Any = llm.engine.executor
        compute = executor.logits

        def logits(step: Any) -> Any:
            rows, batch = compute(step)
            for part in batch.ranges:
                for row, sample in zip(part.draw_rows, part.sequence.samples, strict=True):
                    digest = blake2b(rows[row].tobytes(), digest_size=16).digest()
                    self._digests[sample.request_id, sample.position] = digest
            return rows, batch

        executor.logits = logits

    def run(self, cases: Sequence[Case], company: Sequence[Case] = ()) -> list[Answer]:
        """The answers to `cases`, computed together, and with `company`, if there is any."""
        sampled = [case for case in (*cases, *company) if case.beams is None]
        searches = {case.name: self._search(case) for case in cases if case.beams is not None}
        engine = self._llm.engine
        step = engine.step

        def step_with_searches() -> list[Update]:
            updates = step()
            for search in searches.values():
                search.update(updates)
            return updates

        engine.step = step_with_searches  # type: ignore[method-assign]
        try:
            for search in searches.values():
                search.start()
            outputs = self._llm.generate(
                [case.prompt for case in sampled],
                [case.params for case in sampled],
                use_tqdm=False,
            )
            while not all(search.finished for search in searches.values()):
                engine.step()
        finally:
            engine.step = step  # type: ignore[method-assign]
        answers = {name: _of_search(search) for name, search in searches.items()}
        for case, output in zip(sampled, outputs, strict=True):
            answers[case.name] = self._of_output(case, output)
        self._digests.clear()
        return [answers[case.name] for case in cases]

    def _search(self, case: Case) -> BeamSearch:
        assert case.beams is not None
        return BeamSearch(
            self._llm.engine,
            f"{case.name}-{next(self._ids)}",
            case.prompt,
            case.beams,
            frozenset(),
            self._llm.get_tokenizer(),
        )

    def _of_output(self, case: Case, output: RequestOutput) -> Answer:
        name = output.request_id
        return Answer(
            tuple(
                tuple(
                    (token, self._digests.get((f"{name}/{sample.index}", position), FORCED))
                    for position, token in enumerate(sample.token_ids, start=len(case.prompt))
                )
                for sample in output.outputs
            ),
            output.num_cached_tokens,
        )


def _of_search(search: BeamSearch) -> Answer:
    """In place of logits, what they add up to: any other bit in them would show."""
    return Answer(
        tuple(
            tuple((token, struct.pack("d", beam.cumulative_logprob)) for token in beam.token_ids)
            for beam in search.answers
        ),
        search.num_cached_tokens,
    )
