"""Everything that may happen around a request, and must not change what it answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from looseleaf.core.errors import LooseleafError
from looseleaf.core.request import Request
from looseleaf.engine.llm import LLM
from looseleaf.verify.recording import Answer, Recorder
from looseleaf.verify.requests import Case

MakeLLM = Callable[..., LLM]
"""Takes settings of `EngineSettings`."""

Run = Callable[[LLM, Sequence[Case], Sequence[Case]], list[Answer]]


class DidNotHappenError(LooseleafError):
    """What a circumstance is about did not come about, so that nothing was shown."""


@dataclass(frozen=True, slots=True)
class Circumstance:
    """`run` gives the answers to the cases, with strangers for company where it wants them.
    `blocks` is the size of the pool in blocks for each that the largest case takes. With `before`,
    that was run, by an engine that is gone, with a disk tier that this one has too."""

    name: str
    run: Run
    settings: dict[str, Any] = field(default_factory=dict)
    blocks: float | None = None
    before: Run | None = None


def alone(llm: LLM, cases: Sequence[Case], strangers: Sequence[Case]) -> list[Answer]:
    """One after another."""
    recorder = Recorder(llm)
    return [recorder.run([case])[0] for case in cases]


def together(llm: LLM, cases: Sequence[Case], strangers: Sequence[Case]) -> list[Answer]:
    return Recorder(llm).run(cases)


def in_company(llm: LLM, cases: Sequence[Case], strangers: Sequence[Case]) -> list[Answer]:
    return Recorder(llm).run(cases, strangers)


def preempted(llm: LLM, cases: Sequence[Case], strangers: Sequence[Case]) -> list[Answer]:
    answers = Recorder(llm).run(cases, strangers)
    if not llm.engine.scheduler.counters.preemptions:
        raise DidNotHappenError("no request was preempted")
    return answers


def swapped(llm: LLM, cases: Sequence[Case], strangers: Sequence[Case]) -> list[Answer]:
    answers = preempted(llm, cases, strangers)
    tiers = llm.engine.tiers
    if tiers is None or not tiers.counters.loaded_from_host:
        raise DidNotHappenError("nothing was loaded from the swap space")
    return answers


def guessed(llm: LLM, cases: Sequence[Case], strangers: Sequence[Case]) -> list[Answer]:
    """Three guesses that are right, then one that is wrong: from answers without guesses."""
    scheduler, recorder = llm.engine.scheduler, Recorder(llm)
    known = dict(
        zip([tuple(case.prompt) for case in cases], recorder.run(cases, strangers), strict=True)
    )

    def guess(request: Request, room: int) -> list[int]:
        answer = known.get(tuple(request.token_ids[: request.num_prompt_tokens]))
        if answer is None:
            return []
        drawn = answer.samples[request.sample_index][request.num_output_tokens :][:3]
        right = [token for token, _ in drawn]
        return [*right, request.token_ids[0]][:room]

    scheduler.drafter = guess
    answers = recorder.run(cases, strangers)
    counters = scheduler.counters
    if not 0 < counters.accepted_tokens < counters.draft_tokens:
        raise DidNotHappenError("guesses were not right and wrong, both")
    return answers


def restored(llm: LLM, cases: Sequence[Case], strangers: Sequence[Case]) -> list[Answer]:
    block_size = llm.stack.memory.block_size
    recorder = Recorder(llm)
    answers = []
    for case in cases:
        answer = recorder.run([case])[0]
        least = (len(case.prompt) - 1) // block_size * block_size
        if answer.num_cached_tokens < least:
            raise DidNotHappenError(
                f"{case.name}: {answer.num_cached_tokens} tokens were found stored, not {least}"
            )
        answers.append(answer)
    tiers = llm.engine.tiers
    if tiers is None or not tiers.counters.loaded_from_disk:
        raise DidNotHappenError("nothing was loaded from the disk")
    return answers


def cached(share: Callable[[int, int], int]) -> Run:
    """With the beginnings of all prompts stored: `share(length, block_size)` tokens of each."""

    def run(llm: LLM, cases: Sequence[Case], strangers: Sequence[Case]) -> list[Answer]:
        block_size = llm.stack.memory.block_size
        recorder = Recorder(llm)
        stored = [share(len(case.prompt), block_size) for case in cases]
        for case, count in zip(cases, stored, strict=True):
            recorder.run([case._replace(prompt=case.prompt[:count])])
        answers = [recorder.run([case])[0] for case in cases]
        for case, count, answer in zip(cases, stored, answers, strict=True):
            least = min(count, len(case.prompt) - 1)
            if answer.num_cached_tokens < least:
                raise DidNotHappenError(
                    f"{case.name}: {answer.num_cached_tokens} tokens were found stored, not {least}"
                )
        return answers

    return run


def _whole_blocks(length: int, block_size: int) -> int:
    return max(block_size, length * 3 // 4 // block_size * block_size)


def _middle_of_a_block(length: int, block_size: int) -> int:
    return _whole_blocks(length, block_size) + block_size // 2


CACHED: dict[str, Any] = {"enable_prefix_caching": True}

TIGHT: dict[str, Any] = {"admission_headroom": 0}

SWAPPING: dict[str, Any] = {"swap_space": "256MiB", "preemption_mode": "swap"}

BASELINE = Circumstance("alone", alone, {"threads": 1})

CIRCUMSTANCES = (
    *(Circumstance(f"{n} threads", alone, {"threads": n}) for n in (2, 3, 4)),
    Circumstance("together", together, CACHED),
    Circumstance("among 32 strangers", in_company, CACHED),
    *(
        Circumstance(
            f"prompt in chunks of {n}", alone, {"max_num_batched_tokens": n, "max_num_seqs": 4}
        )
        for n in (1, 7, 16, 100)
    ),
    Circumstance("prefix stored in full", cached(lambda length, _: length), CACHED),
    Circumstance("prefix stored in part", cached(_whole_blocks), CACHED),
    Circumstance("prefix stored to the middle of a block", cached(_middle_of_a_block), CACHED),
    Circumstance("preempted and computed again", preempted, CACHED | TIGHT, blocks=1.5),
    Circumstance("preempted, nothing stored", preempted, TIGHT, blocks=1.5),
    Circumstance("preempted and swapped", swapped, CACHED | TIGHT | SWAPPING, blocks=1.5),
    Circumstance("prefix restored from disk after a restart", restored, CACHED, before=alone),
    Circumstance("tokens guessed", guessed),
    Circumstance("in blocks of 8", in_company, CACHED | {"block_size": 8}),
    Circumstance("in blocks of 32", in_company, CACHED | {"block_size": 32}),
    Circumstance("reserved at full length", in_company, {"kv_allocator": "contiguous-max"}),
)
"""Prefix caching is off unless a circumstance is about it."""
