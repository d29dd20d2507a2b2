"""Turns a GGUF file into what transformers saves, with all weights in float32.

python -m peers.workers.hf_model FILE.gguf FOLDER
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(file: Path, folder: Path) -> None:
    source = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = loaded.config
    # It is marked as quantised, and so refuses to be saved, although all of it is float32 by now.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
