"""A tiny random llama, and the same model written out densely, without blocks or chunks."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from looseleaf.core.free_queue import BlockId
from looseleaf.core.request import RequestId
from looseleaf.core.step import Sample, ScheduledSequence, Step, StepResult
from looseleaf.executors.reference import ReferenceExecutor
from looseleaf.models.config import ModelConfig
from looseleaf.models.llama import page
from looseleaf.models.rope import RopeConfig
from looseleaf.program.program import Program
from looseleaf.program.trace import trace
from looseleaf.sampling.params import SamplingParams

Floats = NDArray[np.float32]
GREEDY = SamplingParams(temperature=0)


@dataclasses.dataclass
class TinyModel:
    config: ModelConfig
    weights: dict[str, Floats]

    @property
    def program(self) -> Program:
        return trace(page, self.config, {n: w.shape for n, w in self.weights.items()})

    def executor(self, num_blocks: int = 64, block_size: int = 4) -> ReferenceExecutor:
        return ReferenceExecutor(self.program, self.weights, num_blocks, block_size)

    def dense_logits(self, token_ids: Sequence[int]) -> NDArray[np.float64]:
        """Logits (tokens, vocab) in float64, one head and one query at a time."""
        c, n = self.config, len(token_ids)
        w = {name: weight.astype(np.float64) for name, weight in self.weights.items()}

        def norm(x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
            return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + c.norm_eps) * w[name]

        def linear(x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
            return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

        def turned(head: NDArray[np.float64]) -> NDArray[np.float64]:
            """Pairs as complex numbers, turned by unit ones."""
            r, result = c.rope.rotary_dim, head.copy()
            for position in range(n):
                for i in range(r // 2):
                    angle = position * c.rope.base ** (-2 * i / r)
                    pair = complex(head[position, i], head[position, i + r // 2])
                    pair *= complex(np.cos(angle), np.sin(angle))
                    result[position, i], result[position, i + r // 2] = pair.real, pair.imag
            return result

        def heads(x: NDArray[np.float64], count: int) -> list[NDArray[np.float64]]:
            return np.split(x, count, axis=1)

        x = w["token_embd.weight"][list(token_ids)]
        for i in range(c.num_layers):
            h = norm(x, f"blk.{i}.attn_norm.weight")
            q = [turned(a) for a in heads(linear(h, f"blk.{i}.attn_q"), c.num_heads)]
            k = [turned(a) for a in heads(linear(h, f"blk.{i}.attn_k"), c.num_kv_heads)]
            v = heads(linear(h, f"blk.{i}.attn_v"), c.num_kv_heads)
            outputs = []
            for head in range(c.num_heads):
                shared = head * c.num_kv_heads // c.num_heads
                output = np.zeros((n, c.head_dim))
                for t in range(n):
                    first = 0 if c.window(i) is None else max(0, t + 1 - (c.window(i) or 0))
                    scores = k[shared][first : t + 1] @ q[head][t] * c.attention_scale
                    weights = np.exp(scores - scores.max())
                    output[t] = weights @ v[shared][first : t + 1] / weights.sum()
                outputs.append(output)
            x = x + linear(np.hstack(outputs), f"blk.{i}.attn_output")
            h = norm(x, f"blk.{i}.ffn_norm.weight")
            gate = linear(h, f"blk.{i}.ffn_gate")
            silu = gate / (1 + np.exp(-gate))
            x = x + linear(silu * linear(h, f"blk.{i}.ffn_up"), f"blk.{i}.ffn_down")
        tied = "output" if "output.weight" in w else "token_embd"
        return linear(norm(x, "output_norm.weight"), tied)


def make_tiny(
    *,
    bias: bool = False,
    tied: bool = True,
    rotary_dim: int = 8,
    window: int | None = None,
    seed: int = 0,
) -> TinyModel:
    hidden, heads, kv_heads, head_dim, ffn, vocab = 32, 4, 2, 8, 48, 96
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab, hidden),
        "output_norm.weight": (hidden,),
    }
    if not tied:
        shapes["output.weight"] = (vocab, hidden)
    for i in range(2):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (hidden,),
            f"blk.{i}.attn_q.weight": (heads * head_dim, hidden),
            f"blk.{i}.attn_k.weight": (kv_heads * head_dim, hidden),
            f"blk.{i}.attn_v.weight": (kv_heads * head_dim, hidden),
            f"blk.{i}.attn_output.weight": (hidden, heads * head_dim),
            f"blk.{i}.ffn_norm.weight": (hidden,),
            f"blk.{i}.ffn_gate.weight": (ffn, hidden),
            f"blk.{i}.ffn_up.weight": (ffn, hidden),
            f"blk.{i}.ffn_down.weight": (hidden, ffn),
        }
        if bias:
            shapes |= {
                f"blk.{i}.attn_q.bias": (heads * head_dim,),
                f"blk.{i}.attn_k.bias": (kv_heads * head_dim,),
                f"blk.{i}.attn_v.bias": (kv_heads * head_dim,),
            }
    weights = {
        name: (1.0 + 0.1 * rng.standard_normal(shape)).astype(np.float32)
        if name.endswith("norm.weight")
        else (rng.standard_normal(shape) * 0.3).astype(np.float32)
        for name, shape in shapes.items()
    }
    config = ModelConfig(
        name="tiny",
        num_layers=2,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_size=ffn,
        norm_eps=1e-5,
        vocab_size=vocab,
        tokenizer_size=vocab,
        context_length=512,
        rope=RopeConfig(10000.0, rotary_dim),
        attention_scale=head_dim**-0.5,
        sliding_window=window,
    )
    return TinyModel(config, weights)


def one_sequence(
    request_id: str,
    token_ids: Sequence[int],
    first_position: int = 0,
    *,
    table_start: int = 0,
    block_ids: Sequence[int] = (),
    params: SamplingParams | None = GREEDY,
    sample_indices: Sequence[int] = (0,),
    prompt_logprobs: bool = False,
    next_token_id: int | None = None,
) -> ScheduledSequence:
    """A scheduled sequence; `params` None draws nothing."""
    name, end = RequestId(request_id), first_position + len(token_ids)
    draws = () if params is None else tuple(Sample(name, params, i, end) for i in sample_indices)
    return ScheduledSequence(
        name,
        tuple(token_ids),
        first_position,
        table_start,
        tuple(BlockId(b) for b in block_ids),
        draws,
        prompt_logprobs,
        next_token_id,
    )


class Driver:
    """Feeds an executor with steps of hand-made sequences."""

    def __init__(self, executor: ReferenceExecutor) -> None:
        self.executor = executor
        self.step_id = 0

    def step(self, *sequences: ScheduledSequence, **extra: tuple[object, ...]) -> Step:
        self.step_id += 1
        return Step(self.step_id, sequences, **extra)  # type: ignore[arg-type]

    def run(self, *sequences: ScheduledSequence, **extra: tuple[object, ...]) -> StepResult:
        return self.executor.execute(self.step(*sequences, **extra))

    def logits(self, *sequences: ScheduledSequence, **extra: tuple[object, ...]) -> Floats:
        return self.executor.logits(self.step(*sequences, **extra))[0]


@pytest.fixture
def tiny() -> TinyModel:
    return make_tiny()


@pytest.fixture
def tiny_model() -> Callable[..., TinyModel]:
    """Makes variants: `bias`, `tied`, `rotary_dim`, `window`, `seed`."""
    return make_tiny


@pytest.fixture
def drive() -> type[Driver]:
    return Driver


@pytest.fixture
def scheduled() -> Callable[..., ScheduledSequence]:
    return one_sequence
