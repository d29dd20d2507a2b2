"""Thousands of requests of all kinds on a pool that is far too small, some of them given up.

After every step the bookkeeping is checked; at the end every block must be free or evictable, and
every answer that was not given up must be the one that its request gets alone.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from looseleaf.core.errors import LooseleafError
from looseleaf.core.invariants import check
from looseleaf.engine.groups import Delta, Group, Router
from looseleaf.engine.llm import LLM
from looseleaf.engine.params import resolve
from looseleaf.sampling.params import SamplingParams, StructuredOutputs

NUM_DIFFERENT = 200
MAX_MODEL_LEN = 256
POOL_TOKENS = 600
SWAP_TOKENS = 900
MAX_LIVE = 24
DISK_BYTES = 128 * 2**20

MakeLLM = Callable[..., LLM]
Answer = tuple[tuple[int, ...], ...]


class Asked(NamedTuple):
    prompt: tuple[int, ...]
    params: SamplingParams


@dataclass(slots=True)
class Outcome:
    """`differences` says which answers were not those of the requests alone; of at most ten."""

    requests: int = 0
    given_up: int = 0
    steps: int = 0
    preemptions: int = 0
    cached_tokens: int = 0
    loaded_blocks: int = 0
    accepted_tokens: int = 0
    compared: int = 0
    differences: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.differences


def draw_requests(rng: random.Random, num_valid_tokens: int) -> list[Asked]:
    """Different ones, many with a beginning in common."""
    beginnings = [
        tuple(rng.randrange(num_valid_tokens) for _ in range(rng.randrange(8, 90)))
        for _ in range(6)
    ]
    requests = []
    for i in range(NUM_DIFFERENT):
        beginning = rng.choice([(), *beginnings])
        own = tuple(rng.randrange(num_valid_tokens) for _ in range(rng.randrange(1, 60)))
        requests.append(Asked(beginning + own, _params(rng, i, num_valid_tokens)))
    return requests


def _params(rng: random.Random, seed: int, num_valid_tokens: int) -> SamplingParams:
    params = SamplingParams(
        seed=seed,
        n=rng.choice([1, 1, 1, 2, 4]),
        max_tokens=rng.randrange(1, 30),
        ignore_eos=rng.random() < 0.5,
        temperature=rng.choice([0.0, 0.7, 1.3]),
        top_p=rng.choice([1.0, 0.9]),
    )
    kind = rng.randrange(6)
    if kind == 0:
        return replace(params, repetition_penalty=1.3, presence_penalty=0.5)
    if kind == 1:
        ids = rng.sample(range(num_valid_tokens), 20)
        return replace(params, allowed_token_ids=frozenset(ids), logit_bias={ids[0]: 2.0})
    if kind == 2:
        words = tuple((rng.randrange(num_valid_tokens),) for _ in range(5))
        return replace(params, bad_words_token_ids=words, min_tokens=(params.max_tokens or 0) // 2)
    if kind == 3:
        regex = rng.choice(["[a-z]{1,50}", "(yes|no|maybe)", "[0-9]+(,[0-9]+)*"])
        return replace(params, structured_outputs=StructuredOutputs(regex=regex))
    return params


def soak(
    make: MakeLLM, num_requests: int, *, seed: int = 0, advance: Callable[[], None] = lambda: None
) -> Outcome:
    """Run it. `make` takes settings of `EngineSettings`; `advance` is called for every request."""
    rng = random.Random(seed)
    with make() as llm:
        num_valid_tokens = llm.get_tokenizer().vocab_size
        token_bytes = -(-llm.stack.memory.block_bytes // llm.stack.memory.block_size)
    different = draw_requests(rng, num_valid_tokens)
    outcome = Outcome()
    found: list[tuple[int, Answer]] = []
    with (
        TemporaryDirectory() as folder,
        make(
            kv_cache_memory=POOL_TOKENS * token_bytes,
            max_model_len=MAX_MODEL_LEN,
            max_num_batched_tokens=64,
            scheduling_policy="priority",
            swap_space=SWAP_TOKENS * token_bytes,
            kv_disk=Path(folder),
            kv_disk_size=DISK_BYTES,
            speculative_ngram=4,
        ) as llm,
    ):
        _answer(llm, rng, different, num_requests, outcome, found, advance)
    alone: dict[int, Answer] = {}
    with make(max_model_len=MAX_MODEL_LEN, enable_prefix_caching=False) as llm:
        for index, answer in found:
            if index not in alone:
                alone[index] = _alone(llm, different[index])
            outcome.compared += 1
            if answer != alone[index] and len(outcome.differences) < 10:
                outcome.differences.append(
                    f"request {index} ({different[index].params}): {answer}, alone {alone[index]}"
                )
    return outcome


def _answer(
    llm: LLM,
    rng: random.Random,
    different: list[Asked],
    num_requests: int,
    outcome: Outcome,
    found: list[tuple[int, Answer]],
    advance: Callable[[], None],
) -> None:
    engine, scheduler = llm.engine, llm.engine.scheduler
    router = Router()
    live: dict[str, tuple[int, Group]] = {}
    deltas: deque[Delta] = deque()

    def end(group: Group) -> None:
        router.remove(group)
        del live[group.request_id]
        outcome.cached_tokens += group.num_cached_tokens
        advance()

    while outcome.requests < num_requests or live:
        while outcome.requests < num_requests and len(live) < rng.randrange(1, MAX_LIVE):
            index = rng.randrange(len(different))
            asked = different[index]
            group = Group(
                f"soak-{outcome.requests}",
                list(asked.prompt),
                resolve(asked.params, llm.get_tokenizer(), llm.stack.grammars),
                llm.get_tokenizer(),
                priority=rng.randrange(3),
                arrival_time=engine.clock(),
            )
            router.add(group, deltas.append)
            engine.add(group.request)
            live[group.request_id] = (index, group)
            outcome.requests += 1
        if live and rng.random() < 0.02:
            _, group = live[rng.choice(list(live))]
            for request_id in group.unfinished_ids():
                engine.abort(request_id)
            outcome.given_up += 1
            end(group)
        for request_id, reason in router.route(engine.step()):
            engine.abort(request_id, reason)
        deltas.clear()
        check(scheduler)
        for index, group in list(live.values()):
            if group.finished:
                found.append((index, tuple(tuple(s.token_ids) for s in group.samples)))
                end(group)
    outcome.steps = scheduler.counters.steps
    outcome.preemptions = scheduler.counters.preemptions
    outcome.accepted_tokens = scheduler.counters.accepted_tokens
    if engine.tiers is not None:
        moved = engine.tiers.counters
        outcome.loaded_blocks = moved.loaded_from_host + moved.loaded_from_disk
    allocator = scheduler.allocator
    if allocator.num_available != allocator.num_blocks or scheduler.has_work:
        raise LooseleafError(
            f"{allocator.num_available} of {allocator.num_blocks} blocks are free or evictable "
            "after the last request"
        )


def _alone(llm: LLM, asked: Asked) -> Answer:
    (output,) = llm.generate([asked.prompt], asked.params, use_tqdm=False)
    return tuple(sample.token_ids for sample in output.outputs)


def as_dict(outcome: Outcome) -> dict[str, Any]:
    return {
        "requests": outcome.requests,
        "given_up": outcome.given_up,
        "compared": outcome.compared,
        "steps": outcome.steps,
        "preemptions": outcome.preemptions,
        "cached_tokens": outcome.cached_tokens,
        "loaded_blocks": outcome.loaded_blocks,
        "accepted_tokens": outcome.accepted_tokens,
        "differences": outcome.differences,
        "passed": outcome.passed,
    }
