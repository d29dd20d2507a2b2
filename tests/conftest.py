"""Fixtures that every test may use."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser
from hypothesis import HealthCheck, settings

# `ci` draws more examples, in a fixed order, so that a failure there can be repeated.
settings.register_profile(
    "dev", max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", settings.get_profile("dev"), max_examples=100, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture(scope="session", autouse=True)
def packed_weights_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests leave no packed weights of tiny models in the user's cache."""
    folder = tmp_path_factory.mktemp("packed-weights")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("looseleaf.engine.build.default_cache_dir", lambda: folder)
        yield


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The SmolLM2-135M GGUF; downloaded into the user's cache the first time."""
    from looseleaf.weights.source import resolve

    return resolve("smollm2-135m")


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Oracles and traces that lie beside the project and are not part of it."""
    path = Path(__file__).resolve().parents[2] / "shared"
    if not path.is_dir():
        pytest.skip("needs the folder ../shared with oracles and traces, which is not here")
    return path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file with random weights that loads in milliseconds."""
    from tiny_gguf import write_tiny_model

    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Where `browser.missing()` finds nothing."""
    found = Browser()
    yield found
    found.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--api-cases", type=int, default=100, help="requests made from /openapi.json by its test"
    )
    parser.addoption(
        "--write-page-data", action="store_true", help="write what the studio page's tests read"
    )
