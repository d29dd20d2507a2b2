"""transformers' `generate` in float32: a batch starts and ends together."""

import copy
from time import perf_counter
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    GenerationConfig,
    StoppingCriteriaList,
)

from peers.protocol import Job, Request, Spans
from peers.workers.worker import main


class Engine:
    def __init__(self, request: Request) -> None:
        torch.set_num_threads(request.threads)
        self._model = AutoModelForCausalLM.from_pretrained(request.model, dtype=torch.float32)
        # What a request's own settings leave out or set to None is taken from here.
        self._model.generation_config.eos_token_id = None

    def warm(self, job: Job) -> None:
        self._prefix = DynamicCache(config=self._model.config)
        with torch.no_grad():
            self._model(torch.tensor([job.prefix]), past_key_values=self._prefix, logits_to_keep=1)

    def run(self, job: Job, spans: Spans, start: float) -> None:
        ids = torch.tensor([p for p in job.prompts for _ in range(job.num_samples)])
        cache = None
        if job.prefix:  # it cannot be shared, but copied
            cache = copy.deepcopy(self._prefix)
            cache.batch_repeat_interleave(len(ids))
        config = GenerationConfig(
            max_new_tokens=job.max_tokens, do_sample=False, eos_token_id=None, pad_token_id=0
        )

        def watch(tokens: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            now, count = perf_counter() - start, tokens.shape[1] - ids.shape[1]
            for index in range(len(tokens)):
                spans.saw(index, count, now)
            return torch.zeros(len(tokens), dtype=torch.bool)

        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            cache=cache,
            generation_config=config,
            stopping_criteria=StoppingCriteriaList([watch]),
        )


if __name__ == "__main__":
    main(Engine)
