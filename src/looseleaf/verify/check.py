"""Runs every circumstance and compares its answers with those of requests that ran alone."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from looseleaf.engine.llm import LLM
from looseleaf.engine.settings import EngineSettings
from looseleaf.verify.circumstances import (
    BASELINE,
    CIRCUMSTANCES,
    Circumstance,
    DidNotHappenError,
)
from looseleaf.verify.recording import Answer
from looseleaf.verify.requests import Case, make_cases, make_strangers

KEPT_SETTINGS = (
    *("model", "executor", "threads", "activations", "block_size"),
    *("kv_cache_dtype", "cache_dir", "cache_weights"),
)
"""Of `EngineSettings`: those that are the same in all circumstances, unless one says otherwise."""


class Row(NamedTuple):
    """What a circumstance changed: for each case None, or where the first difference is. `failure`
    is why nothing could be compared."""

    name: str
    differences: dict[str, str | None]
    failure: str | None = None

    @property
    def passed(self) -> bool:
        return self.failure is None and not any(self.differences.values())


class Verifier:
    """For one model, with the settings that circumstances do not change."""

    def __init__(
        self, settings: EngineSettings, *, prompt_tokens: int = 150, max_tokens: int = 16
    ) -> None:
        self._settings = {name: getattr(settings, name) for name in KEPT_SETTINGS}
        with self._make() as llm:
            # Ids that the tokenizer knows: others can be computed, but never drawn.
            tokenizer = llm.get_tokenizer()
            self._executor = llm.stack.settings.executor
            self.cases = make_cases(tokenizer.vocab_size, prompt_tokens, max_tokens)
            self._strangers = make_strangers(self.cases, tokenizer.vocab_size)
            self._block_bytes = llm.stack.memory.block_bytes / llm.stack.memory.block_size
        with self._make(**BASELINE.settings) as llm:
            self._expected = BASELINE.run(llm, self.cases, self._strangers)

    @property
    def executor(self) -> str:
        return self._executor

    def run(self, circumstances: Sequence[Circumstance] = CIRCUMSTANCES) -> Iterator[Row]:
        for circumstance in circumstances:
            try:
                answers = self._answers(circumstance)
            except DidNotHappenError as error:
                yield Row(circumstance.name, {}, str(error))
                continue
            yield Row(
                circumstance.name,
                {
                    case.name: difference(expected, answer)
                    for case, expected, answer in zip(
                        self.cases, self._expected, answers, strict=True
                    )
                },
            )

    def _answers(self, circumstance: Circumstance) -> list[Answer]:
        settings = dict(circumstance.settings)
        if circumstance.blocks is not None:
            block_size = int(self._settings["block_size"])
            most = max(_most_tokens(case) for case in self.cases)
            num_blocks = int(circumstance.blocks * (most / block_size + 2))
            settings["kv_cache_memory"] = int(num_blocks * block_size * self._block_bytes)
            settings["max_model_len"] = most
        if circumstance.before is None:
            with self._make(**settings) as llm:
                return circumstance.run(llm, self.cases, self._strangers)
        with TemporaryDirectory() as folder:
            settings["kv_disk"] = Path(folder)
            for run in (circumstance.before, circumstance.run):
                with self._make(**settings) as llm:
                    answers = run(llm, self.cases, self._strangers)
        return answers

    def _make(self, **settings: object) -> LLM:
        return LLM(**(self._settings | {"enable_prefix_caching": False} | settings))


def _most_tokens(case: Case) -> int:
    """That its samples may hold at once."""
    prompt, output = len(case.prompt), case.params.max_tokens or 0
    return prompt + output * case.num_samples


def difference(expected: Answer, found: Answer) -> str | None:
    """Where the first token or logit differs; None if nothing does."""
    for index, (one, other) in enumerate(zip(expected.samples, found.samples, strict=True)):
        where = f"sample {index}, " if len(expected.samples) > 1 else ""
        if len(one) != len(other):
            return f"{where}{len(other)} tokens, not {len(one)}"
        for position, ((token, logits), (other_token, other_logits)) in enumerate(
            zip(one, other, strict=True)
        ):
            if logits != other_logits:
                return f"{where}logits of token {position}"
            if token != other_token:
                return f"{where}token {position}: {other_token}, not {token}"
    return None
