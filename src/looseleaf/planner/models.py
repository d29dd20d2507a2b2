"""From what a person types to a model's shape."""

from pathlib import Path

from looseleaf.core.errors import ConfigError
from looseleaf.planner.hf_config import shape_from_file
from looseleaf.planner.known_models import find_known, unknown_model
from looseleaf.planner.shapes import ModelShape


def load_shape(name: str) -> ModelShape:
    """The shape of a `.gguf` file, a `config.json`, a folder with one of them, or of a model of the
    built-in table, in this order. Nothing is downloaded.

    Raises ConfigError or GGUFError, which say what to pass instead.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        path = _in_folder(path)
    if path.is_file():
        return _from_file(path)
    known = find_known(name)
    if known is not None:
        return known.shape()
    if path.suffix in (".gguf", ".json"):
        raise ConfigError(f"there is no file {str(path)!r}")
    raise unknown_model(name)


def _in_folder(path: Path) -> Path:
    if (path / "config.json").is_file():
        return path / "config.json"
    models = sorted(path.glob("*.gguf"))
    if len(models) != 1:
        raise ConfigError(
            f"the folder {path} has no config.json and {len(models)} .gguf files: pass the path of "
            "one file"
        )
    return models[0]


def _from_file(path: Path) -> ModelShape:
    if path.suffix == ".json":
        return shape_from_file(path)
    from looseleaf.planner.gguf_shape import shape_from_gguf  # loads NumPy

    return shape_from_gguf(path)
