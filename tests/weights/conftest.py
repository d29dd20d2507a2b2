"""The real model, where it was downloaded before."""

from pathlib import Path

import pytest

from looseleaf.weights.source import default_cache_dir, known_models


@pytest.fixture(scope="session")
def smollm2() -> Path:
    model = known_models()["smollm2-135m"]
    path = default_cache_dir() / "models" / model.name / model.filename
    if not path.exists():
        pytest.skip("smollm2-135m is not in the cache: run `looseleaf pull smollm2-135m`")
    return path
