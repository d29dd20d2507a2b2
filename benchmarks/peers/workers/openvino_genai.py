"""OpenVINO GenAI's continuous batching, driven step by step."""

import math
from time import perf_counter
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

from peers.protocol import Job, Request, Spans
from peers.workers.worker import main

BLOCK_SIZE = 32  # tokens of a KV block, on CPUs


class Engine:
    def __init__(self, request: Request) -> None:
        config = genai.SchedulerConfig()
        config.enable_prefix_caching = True
        config.max_num_batched_tokens = 2048
        config.max_num_seqs = max(256, request.num_sequences)
        # Room for all sequences of all jobs, so that nothing is ever preempted or evicted.
        config.num_kv_blocks = sum(
            job.num_sequences * (math.ceil(job.total_tokens / BLOCK_SIZE) + 1)
            for job in request.jobs
        )
        self._pipeline = genai.ContinuousBatchingPipeline(
            request.model, config, "CPU", {"INFERENCE_NUM_THREADS": request.threads}
        )
        self._next_id = 0

    def warm(self, job: Job) -> None:
        self.run(job.warming(), Spans(), perf_counter())

    def run(self, job: Job, spans: Spans, start: float) -> None:
        config = genai.GenerationConfig()
        config.max_new_tokens = job.max_tokens
        config.ignore_eos = True
        config.apply_chat_template = False
        if job.num_samples > 1:  # it samples one prompt several times only where it may draw
            config.do_sample = True
            config.top_k = 1
            config.num_return_sequences = job.num_samples
        handles = [self._add(prompt, config) for prompt in job.prompts]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now = perf_counter() - start
            for index, handle in enumerate(handles):
                if handle.can_read():
                    for sample, output in handle.read().items():
                        name = (index, sample)
                        spans.saw(name, spans.count(name) + len(output.generated_ids), now)

    def _add(self, prompt: list[int], config: genai.GenerationConfig) -> Any:
        self._next_id += 1
        ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
        return self._pipeline.add_request(self._next_id, ids, config)


if __name__ == "__main__":
    main(Engine)
