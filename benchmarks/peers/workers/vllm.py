"""vLLM's engine in this process, driven step by step."""

import os
from time import perf_counter

from peers.protocol import Job, Request, Spans
from peers.vllm_settings import settings
from peers.workers.worker import main


class Engine:
    def __init__(self, request: Request) -> None:
        os.environ.update(settings(request.threads), VLLM_ENABLE_V1_MULTIPROCESSING="0")
        from vllm import LLM

        self._engine = LLM(
            request.model,
            dtype="float32",
            max_model_len=request.total_tokens + 1,
            max_num_seqs=max(128, request.num_sequences),
            enable_prefix_caching=True,
        ).llm_engine
        self._next_id = 0

    def warm(self, job: Job) -> None:
        self.run(job.warming(), Spans(), perf_counter())

    def run(self, job: Job, spans: Spans, start: float) -> None:
        from vllm import SamplingParams

        params = SamplingParams(
            n=job.num_samples,
            # It refuses to draw several samples greedily; drawing at random costs it no more.
            temperature=0 if job.num_samples == 1 else 1,
            max_tokens=job.max_tokens,
            ignore_eos=True,
            detokenize=False,
        )
        for prompt in job.prompts:
            self._next_id += 1
            self._engine.add_request(str(self._next_id), {"prompt_token_ids": prompt}, params)
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            now = perf_counter() - start
            for output in outputs:
                for sample in output.outputs:
                    spans.saw((output.request_id, sample.index), len(sample.token_ids), now)


if __name__ == "__main__":
    main(Engine)
