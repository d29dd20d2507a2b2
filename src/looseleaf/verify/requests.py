"""The requests whose answers must not change: one for each way to draw tokens."""

import random
from collections.abc import Sequence
from typing import NamedTuple

from looseleaf.engine.beams import BeamSearchParams
from looseleaf.sampling.params import SamplingParams, StructuredOutputs

NUM_STRANGERS = 32


class Case(NamedTuple):
    """A request with a name. Prompts are token ids: nothing depends on what they mean. Where there
    are `beams`, they are searched for in place of sampling."""

    name: str
    prompt: tuple[int, ...]
    params: SamplingParams
    beams: BeamSearchParams | None = None

    @property
    def num_samples(self) -> int:
        return self.params.n if self.beams is None else 2 * self.beams.beam_width


def make_cases(num_valid_tokens: int, prompt_tokens: int, max_tokens: int) -> list[Case]:
    """With prompts of about `prompt_tokens` tokens, all different but for a common beginning."""
    rng = random.Random(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(num_valid_tokens) for _ in range(count))

    beginning = tokens(prompt_tokens // 2)

    def case(name: str, **asked: object) -> Case:
        own = prompt_tokens - len(beginning) - rng.randrange(5)
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **asked)  # type: ignore[arg-type]
        return Case(name, beginning + tokens(own), params)

    some = frozenset(rng.sample(range(num_valid_tokens), min(num_valid_tokens, 50)))
    word = tuple(rng.sample(range(num_valid_tokens), 2))
    return [
        case("greedy", temperature=0),
        case("seeded", seed=11, temperature=0.8, top_p=0.95, top_k=40),
        case(
            "penalised",
            seed=12,
            repetition_penalty=1.3,
            presence_penalty=0.5,
            frequency_penalty=0.2,
        ),
        case(
            "constrained",
            seed=13,
            allowed_token_ids=some,
            logit_bias={min(some): 2.0},
            bad_words_token_ids=((max(some),), word),
            min_tokens=max_tokens // 2,
        ),
        case("structured", seed=15, structured_outputs=StructuredOutputs(regex="[a-z ]{200,}")),
        case("n=4", seed=14, n=4),
        case("beams")._replace(
            beams=BeamSearchParams(beam_width=3, max_tokens=max_tokens, ignore_eos=True)
        ),
    ]


def make_strangers(cases: Sequence[Case], num_valid_tokens: int) -> list[Case]:
    """Requests of all lengths that share nothing with the cases, or their beginning."""
    rng = random.Random(1)
    strangers = []
    for i in range(NUM_STRANGERS):
        case = rng.choice(list(cases))
        shared = case.prompt[: rng.choice([0, 0, 7, len(case.prompt) // 2])]
        count = rng.randrange(1, len(case.prompt) - len(shared) + 1)
        own = tuple(rng.randrange(num_valid_tokens) for _ in range(count))
        params = SamplingParams(seed=i, max_tokens=rng.randrange(1, 20), ignore_eos=True)
        strangers.append(Case(f"stranger {i}", shared + own, params))
    return strangers
