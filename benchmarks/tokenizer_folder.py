"""The model's tokenizer for programs that count tokens themselves."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders

from looseleaf.engine.build import load_text
from looseleaf.weights.gguf import GGUFFile
from looseleaf.weights.source import resolve


def write_tokenizer(model: str, folder: Path) -> None:
    """That of `model`, whose tokens are made of bytes, into `folder`, in Hugging Face's form."""
    path = folder / "tokenizer.json"
    with GGUFFile(resolve(model)) as file:
        load_text(file).tokenizer.save(path)
    whole = Tokenizer.from_file(str(path))
    whole.decoder = decoders.ByteLevel()
    whole.save(str(path))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
