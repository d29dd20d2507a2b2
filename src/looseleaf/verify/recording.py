"""What was drawn, and from which logits, bit for bit."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from looseleaf.engine.llm import LLM
from looseleaf.verify.requests import Case

Drawn = tuple[int, bytes]
"""A token, and the digest of the row of logits that it was drawn from."""


class Answer(NamedTuple):
    """Of one case: what each of its samples drew, token by token."""

    samples: tuple[tuple[Drawn, ...], ...]
    num_cached_tokens: int


class Recorder:
    """Notes the logits behind every draw of an executor while it is in use."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._digests: dict[tuple[str, int], bytes] = {}
        executor: Any = llm.engine.executor
        compute = executor.logits

        def logits(step: Any) -> Any:
            rows, batch = compute(step)
            for part in batch.ranges:
                if part.sequence.samples:
                    row = rows[part.logits_stop - 1]
                    digest = blake2b(row.tobytes(), digest_size=16).digest()
                    for sample in part.sequence.samples:
                        self._digests[sample.request_id, sample.position] = digest
            return rows, batch

        executor.logits = logits

    def run(self, cases: Sequence[Case], company: Sequence[Case] = ()) -> list[Answer]:
        """The answers to `cases`, computed together, and with `company`, if there is any."""
        everybody = [*cases, *company]
        outputs = self._llm.generate(
            [case.prompt for case in everybody],
            [case.params for case in everybody],
            use_tqdm=False,
        )
        answers = [
            Answer(
                tuple(
                    tuple(
                        (
                            token_id,
                            self._digests[
                                f"{output.request_id}/{sample.index}", len(case.prompt) + i
                            ],
                        )
                        for i, token_id in enumerate(sample.token_ids)
                    )
                    for sample in output.outputs
                ),
                output.num_cached_tokens,
            )
            for case, output in zip(everybody, outputs, strict=True)
        ]
        self._digests.clear()
        return answers[: len(cases)]
