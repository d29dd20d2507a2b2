"""The model's tokenizer for programs that count tokens themselves."""

import json
from pathlib import Path

from looseleaf.engine.build import load_text
from looseleaf.weights.gguf import GGUFFile
from looseleaf.weights.source import resolve


def write_tokenizer(model: str, folder: Path) -> None:
    """That of `model` into `folder`, in Hugging Face's form."""
    with GGUFFile(resolve(model)) as file:
        load_text(file).tokenizer.save(folder / "tokenizer.json")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
