"""An executor that computes nothing: a step takes the time that it would."""

import itertools
from collections.abc import Sequence
from typing import Protocol

from looseleaf.core.step import Sample, ScheduledSequence, Step, StepResult, TokenLogprobs
from looseleaf.executors.base import Executor
from looseleaf.planner.clock import VirtualClock
from looseleaf.planner.step_times import StepTimes


class TimedExecutor(Executor, Protocol):
    """Moves a clock on: in `execute` to the end of the step."""

    clock: VirtualClock

    def start_time(self) -> float:
        """When the next step begins, if the engine is free from now on."""
        ...


class PlannedExecutor:
    """Implements `Executor`. Each step moves `clock` on by its `times`, and each block that is read
    or written by `block_seconds`.

    An output repeats one negative token, which no other output has and no prompt: so nothing of it
    is ever found in the cache but by its own sequence. Where log-probabilities are asked for, all
    tokens are new ones, each half as likely as the one before. No guess is ever right.
    """

    def __init__(
        self, times: StepTimes, clock: VirtualClock, *, block_seconds: float = 0.0
    ) -> None:
        self.times = times
        self.clock = clock
        self._block_seconds = block_seconds
        self._new_tokens = itertools.count(-2, -1)  # -1 and -2 have the same hash

    def execute(self, step: Step) -> StepResult:
        seconds = self.times.seconds(step)
        self.clock.now += seconds
        tokens: list[int] = []
        logprobs: list[TokenLogprobs | None] = []
        new = self._new_tokens
        for sequence in step.sequences:
            samples = sequence.samples
            if len(samples) == 1 and samples[0].params.logprobs is None:
                last = sequence.token_ids[-1]
                tokens.append(last if last < 0 else next(new))
                logprobs.append(None)
                continue
            for sample in samples:
                tokens.append(next(new))
                logprobs.append(self.likely(tokens[-1], sample))
        scored = [s for s in step.sequences if s.prompt_logprobs]
        return StepResult(
            step.step_id,
            tuple(tokens),
            tuple(logprobs),
            tuple((-0.693,) * _num_scores(s) for s in scored),
            (("step", seconds),),
            prompt_top=tuple(((),) * _num_scores(s) for s in scored if s.num_prompt_top),
        )

    def likely(self, token: int, sample: Sample) -> TokenLogprobs | None:
        """What is listed with a token that was drawn, if that is asked for."""
        count = sample.params.logprobs
        if count is None:
            return None
        likely = [token, *itertools.islice(self._new_tokens, max(0, count - 1))][:count]
        top = tuple((one, -0.693 * (rank + 1)) for rank, one in enumerate(likely))
        return TokenLogprobs(-0.693, top)

    def start_time(self) -> float:
        return self.clock.now

    def read_block(self, block_id: int) -> bytes:
        self.clock.now += self._block_seconds
        return b""

    def write_block(self, block_id: int, data: bytes) -> None:
        if data:
            raise ValueError("blocks hold nothing here")
        self.clock.now += self._block_seconds

    def release_blocks(self, block_ids: Sequence[int]) -> None:
        pass

    def close(self) -> None:
        pass


def _num_scores(sequence: ScheduledSequence) -> int:
    return len(sequence.token_ids) - 1 + (sequence.next_token_id is not None)
