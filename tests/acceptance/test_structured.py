"""Structured output of a real model."""

import json
import re

import pytest

from looseleaf import LLM, SamplingParams, StructuredOutputs

pytestmark = pytest.mark.model

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "country": {"enum": ["France", "Japan", "Peru"]},
        "population": {"type": "integer", "minimum": 0, "maximum": 99999999},
    },
    "required": ["city", "country", "population"],
    "additionalProperties": False,
}
QUESTION = [{"role": "user", "content": "Tell me about the capital of Japan, as JSON."}]


def check(text: str) -> None:
    value = json.loads(text)
    assert value.keys() == SCHEMA["properties"].keys()
    assert value["country"] in ("France", "Japan", "Peru")
    assert isinstance(value["population"], int)
    assert len(value["city"]) <= 20


def test_offline() -> None:
    structured = StructuredOutputs(json=SCHEMA)
    params = SamplingParams(temperature=0, max_tokens=120, structured_outputs=structured)
    sampled = SamplingParams(seed=3, n=3, max_tokens=120, structured_outputs=structured)
    regex = SamplingParams(
        temperature=0, max_tokens=40, structured_outputs=StructuredOutputs(regex="[A-Z][a-z]{2,9}!")
    )
    with LLM() as llm:
        for output in llm.chat(
            [QUESTION, QUESTION, QUESTION], [params, sampled, regex], use_tqdm=False
        )[:2]:
            for sample in output.outputs:
                assert sample.finish_reason == "stop"
                check(sample.text)
        (output,) = llm.chat([QUESTION], regex, use_tqdm=False)
        assert re.fullmatch("[A-Z][a-z]{2,9}!", output.outputs[0].text)
