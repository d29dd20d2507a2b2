"""The peers by name."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from peers.adapters.llama_cpp import LlamaCpp
from peers.adapters.openvino_genai import OpenVINO
from peers.adapters.transformers import Transformers
from peers.adapters.vllm import VLLM
from peers.peer import Peer
from peers.processes import PeerError

PEERS: Mapping[str, Peer] = MappingProxyType(
    {peer.name: peer for peer in (LlamaCpp(), OpenVINO(), VLLM(), Transformers())}
)

Variant = tuple[Peer, str]


def installed() -> list[Variant]:
    return [
        (peer, variant)
        for peer in PEERS.values()
        for variant in peer.variants
        if peer.model(variant).exists()
    ]


def select(names: Sequence[str]) -> list[Variant]:
    """The variants of `PEER` or `PEER:VARIANT` names. Raises PeerError for one that is unknown or
    not installed."""
    chosen: list[Variant] = []
    for name in names:
        peer = PEERS.get(name.partition(":")[0])
        variants = [
            (other, variant)
            for other, variant in installed()
            if other is peer and name in (other.name, f"{other.name}:{variant}")
        ]
        if peer is None or not variants:
            known = [f"{p.name}:{variant}" for p in PEERS.values() for variant in p.variants]
            raise PeerError(
                f"{name} is not installed: --install fetches what it can, --list says what is "
                f"there; the names are {', '.join(PEERS)} and {', '.join(known)}"
            )
        chosen += variants
    return list(dict.fromkeys(chosen))
