"""llama-index' `OpenAILike`, unmodified, with the real model.

It wants an older `openai` than the newest, which is tested here too: so it has an environment of
its own, which `make test` makes and `benchmarks/clients.py --install llama_index` does by hand.
"""

import json
import subprocess
from pathlib import Path

import pytest
from serving import Served

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "build" / "clients" / "llama_index" / "bin" / "python"

pytestmark = [
    pytest.mark.model,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not PYTHON.exists(), reason="llama-index is not in build/clients"),
]


def test_what_its_user_is_told(model_server: Served) -> None:
    done = subprocess.run(
        [PYTHON, Path(__file__).with_name("llama_index_program.py"), model_server.url],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["complete"] == "".join(told["stream_complete"])
    assert told["complete"].startswith(" five, six,")
    assert len(told["stream_complete"]) > 3
    assert told["chat"] == "The capital of Japan is Tokyo."
    assert (told["role"], told["finish_reason"]) == ("assistant", "stop")
    assert "".join(piece or "" for piece in told["stream_chat"]) == told["chat"]
    assert told["chat_complete"] == told["chat"]
    usage = told["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert told["place"]["country"] in ("France", "Japan", "Peru")
    assert isinstance(told["place"]["rainy"], bool)
    ((name, arguments),) = told["calls"]
    assert name == "get_weather"
    assert arguments in ({"city": "Rome"}, {"city": "Oslo"})
