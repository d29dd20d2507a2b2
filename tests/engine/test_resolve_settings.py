"""What "auto" means: the executor, the type of its KV cache, and its threads."""

from types import ModuleType

import pytest

from looseleaf import ConfigError
from looseleaf.engine.build import resolve_settings
from looseleaf.engine.settings import EngineSettings

CORES = 5


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some cores, and a compiled part."""
    monkeypatch.setattr("looseleaf.engine.build.physical_cores", lambda: CORES)
    monkeypatch.setattr("looseleaf.engine.build.compiled", lambda: ModuleType("native"))


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("looseleaf.engine.build.compiled", lambda: None)


def resolved(**given: object) -> tuple[str, str, int | None]:
    settings = resolve_settings(EngineSettings(**given))  # type: ignore[arg-type]
    assert resolve_settings(settings) == settings
    return settings.executor, settings.kv_cache_dtype, settings.threads


def test_the_native_executor_where_it_is_installed() -> None:
    assert resolved() == ("native", "int16", CORES)
    assert resolved(block_size=4) == ("native", "f16", CORES)
    assert resolved(executor="native") == ("native", "int16", CORES)
    assert resolved(executor="reference") == ("reference", "f32", 1)


@pytest.mark.usefixtures("no_compiler")
def test_the_reference_elsewhere() -> None:
    assert resolved() == ("reference", "f32", 1)
    assert resolved(kv_cache_dtype="f32") == ("reference", "f32", 1)


def test_what_is_given_stays() -> None:
    assert resolved(kv_cache_dtype="f32", threads=2) == ("native", "f32", 2)
    assert resolved(kv_cache_dtype="f16", threads=256) == ("native", "f16", 256)
    settings = EngineSettings(model="m", block_size=4, activations="f32", max_num_seqs=3)
    found = resolve_settings(settings)
    assert (found.model, found.block_size, found.max_num_seqs) == ("m", 4, 3)
    assert found.activations == "f32"


def test_the_reference_keeps_no_halves() -> None:
    with pytest.raises(ConfigError, match=r"kv_cache_dtype is 'f16'.*reference.*keeps f32"):
        resolve_settings(EngineSettings(executor="reference", kv_cache_dtype="f16"))


@pytest.mark.usefixtures("no_compiler")
def test_halves_without_a_compiled_part_are_refused_and_not_ignored() -> None:
    with pytest.raises(ConfigError, match="'f16'"):
        resolve_settings(EngineSettings(kv_cache_dtype="f16"))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"executor": "abacus"}, "executor 'abacus'.*auto, native, reference"),
        ({"kv_cache_dtype": "f8"}, "kv_cache_dtype 'f8'.*auto, f32, f16, int16, int8"),
        ({"activations": "int4"}, "activations 'int4'.*int8, f32"),
        ({"threads": 0}, "threads is 0.*between 1 and 256"),
        ({"threads": 257}, "threads is 257"),
    ],
)
def test_what_is_unknown_is_refused_with_what_is_known(given: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        EngineSettings(**given)  # type: ignore[arg-type]
