"""How many bytes weights and KV take, by the name of the format."""

from looseleaf.core.errors import ConfigError
from looseleaf.executors.kv_dtype import KV_NUMBER_BYTES, kv_row_bytes
from looseleaf.weights.ggml_types import TYPES_BY_NAME

FLOAT_BITS = {"f32": 32.0, "bf16": 16.0, "f16": 16.0}

QUANTIZED_BITS = {
    "fp8": 8.0,
    "int8": 8.0,
    "int4": 4 + (16 + 4) / 128,  # a scale and a zero point for each group of 128, as AWQ and GPTQ
    "mxfp4": 4 + 8 / 32,  # a scale for each 32 (OCP Microscaling Formats, 1.0)
}
"""Of weights in linear layers, their scales included where these are not negligible. Embedding,
output, router and norms stay at 16 bits; with mxfp4 so does all that is not an expert."""

GGML_BITS = {
    name.lower(): 8 * ggml.type_size / ggml.block_size
    for name, ggml in TYPES_BY_NAME.items()
    if name[0] in "QIMNT" and name not in ("I8", "I16", "I32", "I64", "MXFP4")
}
"""Of all matrices; norms are float32."""

WEIGHT_DTYPES = (*FLOAT_BITS, *QUANTIZED_BITS, *GGML_BITS)

_KV_BITS = {"bf16": 16.0, "fp8": 8.0, "q8_0": GGML_BITS["q8_0"], "q4_0": GGML_BITS["q4_0"]}

KV_DTYPES = (*KV_NUMBER_BYTES, *_KV_BITS)

_SAME = {
    "float32": "f32",
    "fp32": "f32",
    "float16": "f16",
    "fp16": "f16",
    "half": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "awq": "int4",
    "gptq": "int4",
}


def weight_dtype(name: str) -> str:
    """The name that is used here; raises ConfigError for one that is not known."""
    return _known(name, WEIGHT_DTYPES, "weights dtype")


def kv_dtype(name: str) -> str:
    """The name that is used here; raises ConfigError for one that is not known."""
    return _known(name, KV_DTYPES, "KV cache dtype")


def _known(name: str, names: tuple[str, ...], what: str) -> str:
    lower = _SAME.get(name.lower(), name.lower())
    if lower not in names:
        raise ConfigError(f"{what} {name[:40]!r} is not known: choose one of {', '.join(names)}")
    return lower


def kv_bytes(dtype: str, num_numbers: int) -> float:
    """Of one token's keys, or of its values, in one head; 0 where there are none."""
    if not num_numbers:
        return 0
    if dtype in _KV_BITS:
        return num_numbers * _KV_BITS[dtype] / 8
    return kv_row_bytes(dtype, num_numbers)
