"""Fixtures of tests/server, tests/text and tests/commands, for cases about the same things."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def _fixtures_of(folder: str) -> ModuleType:
    path = Path(__file__).resolve().parents[1] / folder / "conftest.py"
    spec = importlib.util.spec_from_file_location(f"fixtures_of_{folder}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_server = _fixtures_of("server")
start_server, server = _server.start_server, _server.server
says, chat_body = _server.says, _server.chat_body

_text = _fixtures_of("text")
sentencepiece_metadata = _text.sentencepiece_metadata
sentencepiece_tokenizer = _text.sentencepiece_tokenizer

call = _fixtures_of("commands").call
