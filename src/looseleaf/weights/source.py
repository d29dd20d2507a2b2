"""From the name a person types to a verified local file."""

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from looseleaf.weights.catalog import KnownModel, known_models
from looseleaf.weights.errors import SourceError
from looseleaf.weights.hub import PREFIX, fetch_from_hub
from looseleaf.weights.progress import Progress

if TYPE_CHECKING:
    from looseleaf.weights.pip import Runner

__all__ = ["KnownModel", "SourceError", "default_cache_dir", "known_models", "resolve"]


def default_cache_dir() -> Path:
    """`~/.cache/looseleaf`, which need not exist. Raises `SourceError` without a home folder."""
    try:
        return Path.home() / ".cache" / "looseleaf"
    except RuntimeError:
        raise SourceError("the home folder is unknown: choose a cache folder") from None


def resolve(
    name: str,
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    run: "Runner | None" = None,
) -> Path:
    """The file that `name` stands for.

    A name is, in this order: `hf:ORG/REPO[:FILE]`; a path, if it has a separator, ends in `.gguf`
    or is an existing file; a name in `known_models()`, downloaded into `cache_dir` (by default
    `default_cache_dir()`) and checked against its pinned hash; a folder with one `.gguf` in it.

    `progress` is called with the bytes so far and in all; without it a bar is shown if stderr is a
    terminal. `run` is how pip is started. Raises `SourceError`, and nothing else for whatever the
    name is.
    """
    if not name.strip():
        raise SourceError(f"the model's name is empty: {_advice()}")
    if name.startswith(PREFIX):
        return fetch_from_hub(name)
    if _is_path(name):
        return _local(name)
    model = known_models().get(name)
    if model is not None:
        # Here rather than above: file locks do not exist everywhere, and paths do not need them.
        from looseleaf.weights.fetch import fetch

        return fetch(model, cache_dir or default_cache_dir(), progress=progress, run=run)
    if os.path.isdir(name):
        return _local(name)
    close = get_close_matches(name.lower(), known_models(), n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise SourceError(f"no model is called {name!r}: {hint}{_advice()}")


def _is_path(name: str) -> bool:
    separators = {"/", os.sep}
    return bool(separators & set(name)) or name.endswith(".gguf") or os.path.isfile(name)


def _local(name: str) -> Path:
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        return _only_model_in(Path(path))
    if not os.path.exists(path):
        raise SourceError(f"there is no file {path!r}: check the path, or {_advice()}")
    return Path(path)


def _only_model_in(folder: Path) -> Path:
    try:
        models = sorted(entry for entry in folder.iterdir() if entry.suffix == ".gguf")
    except OSError as error:
        raise SourceError(f"cannot list the folder {folder}: {error.strerror}") from None
    if len(models) == 1:
        return models[0]
    found = f"{len(models)} .gguf files: {_names(models)}" if models else "no .gguf file"
    raise SourceError(f"the folder {folder} has {found}; pass the path of one file")


def _names(paths: Sequence[Path]) -> str:
    shown = ", ".join(path.name for path in paths[:8])
    return f"{shown}, ..." if len(paths) > 8 else shown


def _advice() -> str:
    known = ", ".join(known_models())
    return f"pass the path of a .gguf file, hf:ORG/REPO, or one of {known}"
