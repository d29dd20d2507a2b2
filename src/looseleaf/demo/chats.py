"""Eight chats that share a system prompt, on a real model: what sharing does to the KV memory."""

import time
from typing import Any

from looseleaf.core.step import Step, StepResult
from looseleaf.engine.llm import LLM
from looseleaf.engine.usage import Usage, usage
from looseleaf.sampling.params import SamplingParams

SYSTEM = (
    "You are the reading-room assistant of a small public library. Readers come with short "
    "questions and little time. Answer in one or two plain sentences. Never invent a title, an "
    "author or a date: if you do not know, say so and name a librarian's desk that may help. "
    "Books are lent for three weeks and may be renewed twice. Journals and maps stay in the house. "
    "The library opens at nine and closes at seven, on Saturdays at four, and stays closed on "
    "Sundays. Printing costs ten cents a page. Be friendly, be brief, and use no lists."
)

QUESTIONS = (
    "What is the capital of France?",
    "Why is the sky blue?",
    "How long may I keep a book?",
    "What is a block table?",
    "Who wrote Hamlet?",
    "When do you close on Saturdays?",
    "How do plants make food?",
    "What does a librarian do?",
)


def eight_chats(llm: LLM, max_tokens: int = 40) -> dict[str, Any]:
    """Answer all questions at once, greedily, and account for the memory while doing so.

    The memory figures are those of the step that holds the most sequences' tokens.
    """
    scheduler = llm.engine.scheduler
    peak: Usage | None = None
    most_running = 0

    def observe(step: Step, result: StepResult) -> None:
        nonlocal peak, most_running
        now = usage(scheduler.allocator, scheduler.running)
        most_running = max(most_running, len(scheduler.running))
        if peak is None or now.sequence_tokens > peak.sequence_tokens:
            peak = now

    llm.engine.observers.append(observe)
    start = time.perf_counter()
    try:
        outputs = llm.chat(
            [
                [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
                for question in QUESTIONS
            ],
            SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=False),
        )
    finally:
        llm.engine.observers.remove(observe)
    seconds = time.perf_counter() - start
    assert peak is not None, "at least one step was computed"
    num_prompt = sum(len(output.prompt_token_ids) for output in outputs)
    num_cached = sum(output.num_cached_tokens for output in outputs)
    num_output = sum(len(sample.token_ids) for o in outputs for sample in o.outputs)
    return {
        "model": llm.stack.model_config.name,
        "chats": [
            {
                "question": question,
                "answer": output.outputs[0].text.strip(),
                "prompt_tokens": len(output.prompt_token_ids),
                "cached_tokens": output.num_cached_tokens,
            }
            for question, output in zip(QUESTIONS, outputs, strict=True)
        ],
        "block_size": scheduler.allocator.block_size,
        "sequences_running": most_running,
        "blocks_without_sharing": peak.blocks_allocated + peak.blocks_saved,
        "blocks_used": peak.blocks_allocated,
        "blocks_saved_fraction": peak.sharing,
        "prompt_tokens": num_prompt,
        "cached_tokens": num_cached,
        "hit_rate": num_cached / num_prompt,
        "output_tokens": num_output,
        "waste": peak.waste,
        "utilisation": {
            "physical": peak.physical,
            "pool": peak.pool,
            "effective": peak.effective,
        },
        "preemptions": scheduler.counters.preemptions,
        "kv_bytes_saved": peak.blocks_saved * llm.stack.memory.block_bytes,
        "seconds": seconds,
        "output_tokens_per_second": num_output / seconds,
    }
