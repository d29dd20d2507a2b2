"""A running OpenAI server seen from outside: what it serves, and when its tokens come."""

import http.client
import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from looseleaf.core.errors import LooseleafError

SHOWN = 200
"""Characters of a server's own words in an error."""

TIMEOUT = 600.0
"""Seconds without a sign of life."""


class OutsideError(LooseleafError):
    """A server that cannot be reached, refuses, or does not say what is needed."""


class Stream(NamedTuple):
    """A streamed completion. `times` are those of its pieces, in seconds since it was sent; token
    counts are the server's own."""

    times: tuple[float, ...]
    num_prompt_tokens: int
    num_output_tokens: int


class OutsideServer:
    """`url` is the one that ends in /v1, as OpenAI's clients have it. Raises OutsideError."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise OutsideError(
                f"--url {url[:SHOWN]!r} is not understood: write it like http://localhost:8000/v1"
            )
        self.url = url
        self._make = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/")
        self._headers = {"content-type": "application/json"}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"

    def models(self) -> list[dict[str, Any]]:
        """What /models lists, at least one."""
        response, connection = self._ask("GET", "/models", None)
        try:
            found = json.loads(response.read())["data"]
            names = [model for model in found if isinstance(model["id"], str)]
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise OutsideError(f"{self.url}/models is no list of models") from error
        finally:
            connection.close()
        if not names:
            raise OutsideError(f"{self.url} serves no model")
        return names

    def streams(self, bodies: Sequence[dict[str, Any]]) -> list[Stream]:
        """Answers to completions that are all sent at once."""
        together = threading.Barrier(len(bodies))

        def one(body: dict[str, Any]) -> Stream:
            together.wait()
            return self._stream(body)

        with ThreadPoolExecutor(len(bodies)) as pool:
            return list(pool.map(one, bodies))

    def _stream(self, body: dict[str, Any]) -> Stream:
        fields = body | {"stream": True, "stream_options": {"include_usage": True}}
        times: list[float] = []
        usage: dict[str, int] | None = None
        start = time.perf_counter()
        response, connection = self._ask("POST", "/completions", fields)
        try:
            while line := response.readline():
                now = time.perf_counter()
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise OutsideError(f"{self.url} failed: {str(event['error'])[:SHOWN]}")
                if event.get("choices"):
                    times.append(now - start)
                usage = event.get("usage") or usage
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise OutsideError(f"{self.url}: the answer broke off ({error!r:.{SHOWN}})") from error
        finally:
            connection.close()
        if usage is None or not times:
            raise OutsideError(
                f"{self.url} does not say how many tokens there were: it must know "
                "stream_options.include_usage"
            )
        return Stream(tuple(times), int(usage["prompt_tokens"]), int(usage["completion_tokens"]))

    def _ask(
        self, method: str, path: str, body: dict[str, Any] | None
    ) -> tuple[http.client.HTTPResponse, http.client.HTTPConnection]:
        """The connection is to be closed by the caller."""
        connection = self._make(self._host, self._port, timeout=TIMEOUT)
        data = None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, self._path + path, data, self._headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise OutsideError(f"{self.url} cannot be reached: {error}") from error
        if response.status != 200:
            said = response.read(SHOWN).decode(errors="replace")
            connection.close()
            raise OutsideError(f"{self.url}{path} answers {response.status}: {said}")
        return response, connection
