"""A real browser, driven through web/tests/browser/driver.mjs."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

WEB = Path(__file__).resolve().parents[2] / "web"
PAGE = WEB.parent / "src" / "looseleaf" / "studio" / "static" / "index.html"


def missing(*, page: bool = True) -> str | None:
    """What a browser test needs and does not find; the studio's page only if it is to be opened."""
    if shutil.which("node") is None:
        return "node"
    if not (WEB / "node_modules" / "playwright-core").is_dir():
        return "web/node_modules (make web)"
    if page and not PAGE.is_file():
        return "the built page (make web)"
    return None if shutil.which("chromium") else "chromium"


class Browser:
    """Calls the driver's methods by their names."""

    def __init__(self) -> None:
        chromium = shutil.which("chromium")
        assert chromium is not None
        self._process = subprocess.Popen(
            ["node", "tests/browser/driver.mjs", chromium],
            cwd=WEB,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, method: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([method, *arguments]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the browser ended at {method}"
        reply = json.loads(line)
        if "error" in reply:
            raise AssertionError(f"{method}{arguments}: {reply['error']}")
        return reply["value"]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()
