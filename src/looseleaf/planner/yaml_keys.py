"""Settings read from a YAML file, with errors that name the key, its value and what it may be."""

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from looseleaf.core.errors import ConfigError


def read_yaml(path: Path) -> Any:
    """Raises ConfigError if that cannot be."""
    import yaml  # only where there is a file

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} cannot be read: it is no text: {error.reason}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise ConfigError(f"{path} is not valid YAML: {place}{error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{path} is not valid YAML: it is nested too deeply") from None
    except (ValueError, OverflowError) as error:  # a date or a number that there is not
        raise ConfigError(f"{path} is not valid YAML: {error!s:.100}") from None


def shown(value: Any) -> str:
    """For an error: text is quoted, as YAML takes 1e3 for one (a number is 1.0e+3)."""
    return repr(value)[:40] if isinstance(value, str) else f"{value!s:.40}"


class Keys:
    """A mapping of a file. `where` is what errors begin with: the file, and the way to it."""

    def __init__(self, found: Any, where: str, known: tuple[str, ...]) -> None:
        """Raises ConfigError for keys that are not known."""
        if not isinstance(found, dict):
            raise ConfigError(f"{where} must hold settings, each like {known[0]}: ...")
        self._found = found
        self.where = where
        for key in found:
            if key not in known:
                near = get_close_matches(str(key), known, 1)
                advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                raise ConfigError(f"{where}: there is no key {str(key)[:40]!r}; {advice}")

    def __contains__(self, key: str) -> bool:
        return self._found.get(key) is not None

    def get(self, key: str) -> Any:
        return self._found.get(key)

    def at(self, key: str) -> str:
        """Where the key's value is, for an error."""
        return f"{self.where}: {key}"

    def wrong(self, key: str, rule: str) -> ConfigError:
        found = shown(self._found[key]) if key in self else "missing"
        return ConfigError(f"{self.where}: {key} is {found}, but it must be {rule}")

    def number(self, key: str, most: float, *, least: float = 0.0, above: bool = True) -> float:
        """Above `least`, or at least that."""
        value = self.get(key)
        good = type(value) in (int, float) and least <= value <= most
        if not good or (above and value == least):
            bound = "above" if above else "at least"
            raise self.wrong(key, f"a number {bound} {least:g} and at most {most:g}")
        return float(value)

    def whole(self, key: str, least: int, most: int, default: int | None = None) -> int:
        """Missing only if there is a default."""
        if default is not None and key not in self:
            return default
        value = self.get(key)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(key, f"a whole number from {least} to {most}")
        return int(value)

    def choice(self, key: str, known: tuple[str, ...], default: str | None = None) -> str:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if value not in known:
            raise self.wrong(key, f"one of {', '.join(known)}")
        return str(value)

    def section(self, key: str, known: tuple[str, ...]) -> "Keys | None":
        """None if it is missing."""
        return Keys(self.get(key), self.at(key), known) if key in self else None
