"""The house: which arrows there may be, what importing loads, and how large things may get."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "looseleaf"
MODULES = sorted(SOURCE.rglob("*.py"))

# A package and what of ours it may import besides itself. Whoever is not listed is imported by
# nobody else: `server`, `commands`, `cli`.
MAY_IMPORT = {
    "core": set(),
    "program": {"core"},
    "weights": {"core"},
    "text": {"core", "sampling"},
    "sampling": {"core"},
    "models": {"core", "program", "weights"},
    "executors": {"compiled", "core", "program", "sampling"},
    "compiled": set(),
    "tiers": {"core"},
    "engine": {
        "",
        "core",
        "compiled",
        "executors",
        "models",
        "program",
        "sampling",
        "text",
        "tiers",
        "weights",
    },
    "bench": {
        "compiled",
        "core",
        "engine",
        "executors",
        "models",
        "program",
        "sampling",
        "text",
        "weights",
    },
    "demo": {"core", "engine", "sampling"},
    "routing": set(),
    "planner": {
        "core",
        "engine",
        "executors",
        "models",
        "program",
        "routing",
        "sampling",
        "text",
        "tiers",
        "weights",
    },
    "verify": {"core", "engine", "sampling"},
    "studio": {"core", "demo", "engine", "executors", "sampling"},
    "server": {"", "core", "engine", "sampling", "studio", "text", "tiers"},
    "commands": {
        "",
        "bench",
        "compiled",
        "core",
        "demo",
        "engine",
        "models",
        "planner",
        "routing",
        "sampling",
        "server",
        "studio",
        "text",
        "tiers",
        "verify",
        "weights",
    },
    "cli": {"", "core", "commands"},
    "__main__": {"cli"},
}


def package_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return "" if parts == ("__init__",) else parts[0]


def imports_of(path: Path) -> set[str]:
    """Packages of ours that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import: one way to write them"
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "looseleaf":
                found.add([*name.split("."), ""][1])
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_arrows_point_one_way(path: Path) -> None:
    package = package_of(path)
    if package == "":
        return  # the package itself loads things when they are first asked for
    allowed = MAY_IMPORT[package] | {package}
    assert imports_of(path) <= allowed


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_only_the_command_line_reads_the_environment(path: Path) -> None:
    if path.name == "cli.py":
        return
    text = path.read_text()
    assert "os.environ" not in text
    assert "getenv" not in text


def run_python(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_core_needs_nothing_but_the_standard_library() -> None:
    modules = ", ".join(
        f"looseleaf.core.{path.stem}"
        for path in (SOURCE / "core").glob("*.py")
        if path.stem[0] != "_"
    )
    run_python(
        "import sys\n"
        "for name in ('numpy', 'tokenizers', 'jinja2', 'msgspec', 'starlette', 'uvicorn', 'rich',\n"
        "             'prometheus_client', 'looseleaf._native'):\n"
        "    sys.modules[name] = None\n"
        f"import {modules}\n"
    )


def test_importing_the_package_loads_neither_numpy_nor_the_server() -> None:
    run_python(
        "import sys, looseleaf\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'numpy', 'starlette', 'uvicorn', 'tokenizers', 'rich'}, loaded\n"
        "assert 'looseleaf.server' not in sys.modules\n"
        "looseleaf.SamplingParams(max_tokens=1)\n"
        "assert 'numpy' not in sys.modules\n"
    )


@pytest.mark.parametrize(
    "path",
    [*MODULES, *SOURCE.rglob("native/*.cpp"), *SOURCE.rglob("native/*.h")],
    ids=lambda p: str(p.relative_to(SOURCE)),
)
def test_no_file_is_too_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500


def test_the_core_can_be_read_in_an_hour() -> None:
    lines = [
        line
        for path in (SOURCE / "core").glob("*.py")
        for line in path.read_text().splitlines()
        if line.strip()
    ]
    assert len(lines) <= 1800
