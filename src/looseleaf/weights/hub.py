"""Model files from the Hugging Face hub, by way of `huggingface_hub` where it is installed."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from looseleaf.weights.errors import SourceError

PREFIX = "hf:"

_log = logging.getLogger(__name__)

_PREFERRED = ("Q4_K_M", "Q8_0")
_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


def fetch_from_hub(name: str) -> Path:
    """The local file for `hf:ORG/REPO`, `hf:ORG/REPO:FILE.gguf` or `hf:ORG/REPO:QUANTIZATION`.

    It is kept, verified and shared in Hugging Face's own cache. Raises `SourceError`.
    """
    repository, _, wanted = name.removeprefix(PREFIX).partition(":")
    if not _REPOSITORY.fullmatch(repository):
        raise SourceError(f"{name!r} is not of the form hf:ORG/REPO or hf:ORG/REPO:FILE.gguf")
    if ".." in PurePosixPath(wanted).parts or wanted.startswith("/"):
        raise SourceError(f"{wanted!r} is not the name of a file in {repository}")
    try:
        from huggingface_hub import hf_hub_download, list_repo_files
    except ImportError:
        raise SourceError(
            f"{name!r} needs the package huggingface_hub: run `pip install huggingface_hub`, "
            "or download the .gguf file and pass its path"
        ) from None
    try:
        if not wanted.endswith(".gguf"):
            wanted = choose_file(list_repo_files(repository), wanted, repository)
        return Path(hf_hub_download(repository, wanted))
    except SourceError:
        raise
    except Exception as error:  # whatever the library and the ones below it raise
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise SourceError(
            f"cannot get {wanted or 'the list of files'} of {repository} from the hub: {reason}. "
            "Check the name and the network; a gated model needs `hf auth login`"
        ) from None


def choose_file(files: Sequence[str], quantization: str, repository: str) -> str:
    """The one file of `repository` to use when none was named; logs a choice among several.

    `quantization` narrows it down; when empty, a sole file or else Q4_K_M or Q8_0 is taken.
    Raises `SourceError` listing the choices when that does not leave exactly one.
    """
    models = sorted(
        file
        for file in files
        if file.endswith(".gguf") and "mmproj" not in file and not _SPLIT.search(file)
    )
    if not models:
        raise SourceError(f"{repository} has no .gguf file in one piece: choose another repository")
    if len(models) == 1 and not quantization:
        return models[0]
    for wish in (quantization,) if quantization else _PREFERRED:
        matches = [file for file in models if wish.lower() in file.lower()]
        if len(matches) == 1:
            _log.info("using %s of the %d files in %s", matches[0], len(models), repository)
            return matches[0]
    raise SourceError(
        f"{repository} has {len(models)} .gguf files and "
        f"{quantization or ' or '.join(_PREFERRED)} does not single one out: "
        f"write hf:{repository}:FILE with one of {', '.join(models)}"
    )
