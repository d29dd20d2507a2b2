"""The seam between the comparison and the engines it compares."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from peers.protocol import Answer, Request


class Peer(Protocol):
    """Another engine, in one or several variants of the same model's weights.

    The best variant comes first. A name is what a person types, a label what a table shows.
    """

    name: str
    label: str
    version: str
    variants: Sequence[str]

    def install(self, model: Path) -> None:
        """Fetch and build the peer at its pinned version, and derive its models from the GGUF file
        `model`. What is there already is kept. Raises PeerError."""

    def model(self, variant: str) -> Path:
        """The variant's model. A variant is installed once that exists."""

    def size_mib(self) -> float:
        """What the installed peer takes on disk, without models."""

    def run(self, request: Request, timeout_s: float) -> Answer:
        """Start the peer, do the request's jobs, end the peer. Raises PeerError."""
