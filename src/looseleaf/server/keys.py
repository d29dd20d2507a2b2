"""API keys: who may ask, and what each may take."""

import hmac
import json
import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import Struct

from looseleaf.core.errors import LooseleafError

MAX_KEY_CHARS = 512
_LABEL = re.compile(r"[A-Za-z0-9._-]{1,64}")


class KeyLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the holder of a key may take; None is no limit.

    Of two tenants that both have requests waiting, one with twice the `weight` is served twice the
    tokens, where the scheduling policy is fair. `priority` is the most urgent (lowest) that its
    requests may have.
    """

    max_concurrent_requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    weight: float = 1.0
    priority: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_concurrent_requests", "requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise LooseleafError(f"{name} is {value}, but it must be at least 1")
        if not 0.001 <= self.weight <= 1000:
            raise LooseleafError(f"weight is {self.weight:g}, but it must be from 0.001 to 1000")


class Tenant(Struct, frozen=True):
    """Who asks: the label of a key, for logs, fairness and metrics, and its limits."""

    label: str
    limits: KeyLimits = KeyLimits()


ANYBODY = Tenant("")
"""Who asks where there are no keys."""


class _Entry(KeyLimits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key as it stands in a file."""

    label: str
    key: str


class KeyRing:
    """The keys of a server, of which it keeps the digests alone. An empty one lets anybody in."""

    def __init__(self, keys: Iterable[tuple[str, Tenant]] = ()) -> None:
        """Raises LooseleafError for a key or a label that cannot be used, or is there twice."""
        self._tenants: dict[bytes, Tenant] = {}
        labels: set[str] = set()
        for key, tenant in keys:
            digest = _digest(_checked(key, tenant.label).encode())
            if _LABEL.fullmatch(tenant.label) is None:
                raise LooseleafError(
                    "the label of an API key must have 1 to 64 letters, digits, dots, dashes or "
                    "underscores"
                )
            if digest in self._tenants or tenant.label in labels:
                raise LooseleafError(f"the API key {tenant.label} or its label is given twice")
            labels.add(tenant.label)
            self._tenants[digest] = tenant

    def __len__(self) -> int:
        return len(self._tenants)

    def share(self, tenant: Tenant) -> float:
        """Of what all have together, by weight."""
        total = sum(one.limits.weight for one in self._tenants.values())
        return tenant.limits.weight / total

    def tenant(self, key: bytes) -> Tenant | None:
        """Whose key it is. All are compared, each in constant time."""
        asked, found = _digest(key), None
        for digest, tenant in self._tenants.items():
            if hmac.compare_digest(asked, digest):
                found = tenant
        return found


NO_KEYS = KeyRing()


def key_ring(keys: Sequence[str] = (), file: Path | None = None) -> KeyRing:
    """Of keys that are labelled `key-1`, `key-2`, ..., and of those in a file.

    The file is JSON or YAML: a list of entries with `label`, `key` and, as wanted, the fields of
    `KeyLimits`; or a mapping that has that list under `keys`. Raises LooseleafError.
    """
    found = [(key, Tenant(f"key-{number}")) for number, key in enumerate(keys, start=1)]
    if file is not None:
        found += [(entry.key, _tenant(entry)) for entry in _read(file)]
    return KeyRing(found)


def _tenant(entry: _Entry) -> Tenant:
    limits = {name: getattr(entry, name) for name in KeyLimits.__struct_fields__}
    return Tenant(entry.label, KeyLimits(**limits))


def _read(file: Path) -> list[_Entry]:
    """Nothing that is said of the file repeats what stands in it."""
    try:
        text = file.read_text("utf-8")
        content: Any = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise LooseleafError(f"cannot read the API keys in {file}: {error.strerror}") from None
    except (ValueError, RecursionError, yaml.YAMLError):
        raise LooseleafError(f"the API keys in {file} are neither YAML nor JSON") from None
    if isinstance(content, dict) and set(content) == {"keys"}:
        content = content["keys"]
    try:
        entries = msgspec.convert(content, list[_Entry])
    except (msgspec.ValidationError, LooseleafError) as error:
        raise LooseleafError(f"the API keys in {file} do not fit: {error}") from None
    if not entries:
        raise LooseleafError(f"{file} has no API keys: a list of entries with label and key")
    return entries


def _checked(key: str, label: str) -> str:
    if not (1 <= len(key) <= MAX_KEY_CHARS and key.isascii() and key.isprintable()):
        raise LooseleafError(
            f"the API key {label} must have 1 to {MAX_KEY_CHARS} characters of printable ASCII"
        )
    if key != key.strip():
        raise LooseleafError(f"the API key {label} begins or ends with a space")
    return key


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
