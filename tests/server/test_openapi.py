"""/openapi.json tells of every route, and the server does what it says."""

import re
from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.routing import Route

from looseleaf.server.app import create_app
from looseleaf.server.keys import key_ring
from looseleaf.server.openapi import OPERATIONS

load_all_checks()
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]


SOUND = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hi"}],
    "prompt": "hi",
    "input": "hi",
    "max_tokens": 4,
}


def tamed(body: dict[str, Any], picks: set[int]) -> dict[str, Any]:
    """With sound values where most requests would fail first, and but a few of the other fields:
    what the rest of them does would hardly be seen otherwise."""
    others = sorted(body.keys() - SOUND.keys())
    kept = {others[pick % len(others)] for pick in picks} if others else set()
    sound = {name: SOUND[name] for name in SOUND if name in body}
    return {name: body[name] for name in sorted(kept)} | sound


def test_every_route_is_in_the_document_and_the_other_way_round(server: Any) -> None:
    answer = server.http().get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    assert document["openapi"].startswith("3.1.")
    told = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    routes = [route for route in create_app(server.context).routes if isinstance(route, Route)]
    served = {
        (method, re.sub(r":\w+}", "}", route.path))
        for route in routes
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert told == served


def test_the_document_is_whole(server: Any) -> None:
    """Every reference leads somewhere, and what is required of a chat is what decoding requires."""
    document = server.http().get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    for name in re.findall(r"'#/components/schemas/([^']+)'", str(document)):
        assert name in schemas
    chat = document["paths"]["/v1/chat/completions"]["post"]
    reference = chat["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert schemas[reference.rpartition("/")[2]]["required"] == ["model", "messages"]
    statuses = {200, 400, 401, 404, 408, 413, 429, 500, 503, 504}
    assert chat["responses"].keys() == {str(status) for status in statuses}


def test_keys_are_asked_for_where_the_document_says(start_server: Any) -> None:
    server = start_server(keys=key_ring(["secret"]))
    client = server.http()
    assert client.get("/openapi.json").status_code == 401
    for operation in OPERATIONS:
        path = operation.path.replace("{", "").replace("}", "")
        answer = client.request(operation.method, path)
        assert (answer.status_code == 401) == (401 in operation.statuses()), path


@pytest.mark.timeout(3600)  # for many cases
def test_requests_made_from_the_document(start_server: Any, pytestconfig: pytest.Config) -> None:
    """Requests that fit the document and ones that do not: no status is undocumented, none tells of
    a failure of the server, and answers have the form that the document says."""
    server = start_server(max_model_len=64)
    url = server.url
    api = schemathesis.openapi.from_dict(server.http().get("/openapi.json").json())
    cases = st.one_of(
        api.as_strategy(generation_mode=GenerationMode.POSITIVE),
        api.as_strategy(generation_mode=GenerationMode.NEGATIVE),
    )
    statuses: Counter[int] = Counter()
    answered: set[str] = set()

    @settings(
        max_examples=pytestconfig.getoption("--api-cases"),
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, wild=st.booleans(), picks=st.sets(st.integers(0, 60), max_size=3))
    def ask(case: Any, wild: bool, picks: set[int]) -> None:
        if isinstance(case.body, dict) and not wild:
            case.body = tamed(case.body, picks)
        answer = case.call(base_url=url, timeout=10)
        statuses[answer.status_code] += 1
        if answer.status_code == 200:
            answered.add(case.operation.label)
        assert answer.status_code < 500 or answer.status_code == 504, case.as_curl_command()
        assert "an internal error" not in answer.text, case.as_curl_command()  # in a stream
        case.validate_response(answer, checks=CHECKS)

    ask()
    assert statuses[200]
    assert statuses[400]
    print(f"answers by status: {dict(sorted(statuses.items()))}; with 200: {sorted(answered)}")
