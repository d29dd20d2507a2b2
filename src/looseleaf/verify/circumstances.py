"""Everything that may happen around a request, and must not change what it answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from looseleaf.core.errors import LooseleafError
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
    `blocks` is the size of the pool in blocks for each that the largest case takes."""

    name: str
    run: Run
    settings: dict[str, Any] = field(default_factory=dict)
    blocks: float | None = None


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
    Circumstance("preempted and computed again", preempted, CACHED, blocks=1.5),
    Circumstance("preempted, nothing stored", preempted, {}, blocks=1.5),
    Circumstance("in blocks of 8", in_company, CACHED | {"block_size": 8}),
    Circumstance("in blocks of 32", in_company, CACHED | {"block_size": 32}),
    Circumstance("reserved at full length", in_company, {"kv_allocator": "contiguous-max"}),
)
"""Prefix caching is off unless a circumstance is about it."""
