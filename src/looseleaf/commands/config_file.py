"""`--config FILE`: options from a YAML file, under the names that they have on the command line."""

import argparse
import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class ConfigFile(argparse.Action):
    """Takes over what the file sets, unless the command line has set it. Options that may be
    repeated take what both say."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        for option, words in self._options(parser, Path(values)):
            found, _ = parser.parse_known_args(words)
            if getattr(namespace, option.dest, option.default) == option.default:
                setattr(namespace, option.dest, getattr(found, option.dest))
        setattr(namespace, self.dest, values)

    def _options(
        self, parser: argparse.ArgumentParser, path: Path
    ) -> Iterator[tuple[argparse.Action, list[str]]]:
        """Each option of the file with the words that would set it on a command line."""
        known = {
            flag[2:]: action
            for action in parser._actions
            for flag in action.option_strings
            if flag.startswith("--") and action.dest not in ("help", self.dest)
        }
        for key, value in self._read(path).items():
            name = str(key).replace("_", "-")
            option = known.get(name)
            if option is None:
                near = difflib.get_close_matches(name, known, 1)
                advice = f"did you mean {near[0]}?" if near else "see `looseleaf serve --help`"
                raise argparse.ArgumentError(
                    self, f"{path}: there is no option {str(key)!r}; {advice}"
                )
            if value is None:
                continue
            yield option, self._words(path, name, option, value, known)

    def _read(self, path: Path) -> dict[Any, Any]:
        import yaml  # most starts have no file

        try:
            found = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise argparse.ArgumentError(self, f"{path} cannot be read: {error}") from None
        except yaml.YAMLError as error:
            raise argparse.ArgumentError(self, f"{path} is not valid YAML: {error}") from None
        if not isinstance(found, dict | None):
            raise argparse.ArgumentError(self, f"{path} must hold options, each like port: 8000")
        return found or {}

    def _words(
        self,
        path: Path,
        name: str,
        option: argparse.Action,
        value: Any,
        known: dict[str, argparse.Action],
    ) -> list[str]:
        if option.nargs == 0 or isinstance(option, argparse.BooleanOptionalAction):
            if not isinstance(value, bool):
                raise argparse.ArgumentError(
                    self, f"{path}: {name} is {value!r}, but it must be true or false"
                )
            if value:
                return [f"--{name}"]
            return [f"--no-{name}"] if known.get(f"no-{name}") is option else []
        if isinstance(value, dict) and option.metavar == "JSON":
            value = json.dumps(value, default=str)
        values = value if isinstance(value, list) else [value]
        if not values or any(isinstance(one, bool | dict | list) or one is None for one in values):
            raise argparse.ArgumentError(
                self, f"{path}: {name} must be a text or a number, or a list of them"
            )
        words = [str(one) for one in values]
        if option.nargs == "+":
            return [f"--{name}", *words]
        if len(words) > 1 and not isinstance(option, argparse._AppendAction):
            raise argparse.ArgumentError(
                self, f"{path}: {name} is a list of {len(words)}, but it takes one value"
            )
        # With an equals sign, or a value like -1 would be taken for an option.
        return [f"--{name}={word}" for word in words]
