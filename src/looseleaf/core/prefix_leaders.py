"""Who is computing which prefix right now, and who is held back until it can be shared.

A running request *leads* the blocks of its prompt that it has yet to compute. A waiting request
that needs the same blocks next is *held* on the last one it has in common with the leader, and
wakes when that block is published, or when the leader leaves without it.
"""

from collections import deque
from collections.abc import Iterable

from looseleaf.core.request import Request, RequestId

PendingKey = tuple[int, bytes]
"""(number of tokens after which the block is complete, the block's hash)"""


class PrefixLeaders:
    def __init__(self) -> None:
        self._leader_of: dict[bytes, Request] = {}
        self._pending: dict[RequestId, deque[PendingKey]] = {}
        self._held_on: dict[bytes, list[Request]] = {}
        self._woken: list[Request] = []

    def held(self) -> list[Request]:
        return [request for held in self._held_on.values() for request in held] + self._woken

    def common(self, keys: Iterable[PendingKey]) -> tuple[Request, bytes] | None:
        """The leader of the first of `keys`, and the last hash of the run that it leads; None if
        nobody is computing what is needed next. Looks no further than it has to."""
        common = None
        for _, block_hash in keys:
            leader = self._leader_of.get(block_hash)
            if leader is None or (common is not None and leader is not common[0]):
                break
            common = leader, block_hash
        return common

    def lead(self, request: Request, keys: Iterable[PendingKey]) -> None:
        """The admitted `request` computes `keys`, as far as nobody else does already."""
        led: deque[PendingKey] = deque()
        for key in keys:
            if key[1] not in self._leader_of:
                self._leader_of[key[1]] = request
                led.append(key)
        if led:
            self._pending[request.request_id] = led

    def hold(self, request: Request, block_hash: bytes) -> None:
        self._held_on.setdefault(block_hash, []).append(request)

    def advance(self, request: Request) -> None:
        """The blocks of `request`'s computed tokens are published."""
        pending = self._pending.get(request.request_id)
        if pending is None:
            return
        while pending and pending[0][0] <= request.num_computed_tokens:
            self._settle(pending.popleft()[1])
        if not pending:
            del self._pending[request.request_id]

    def leave(self, request: Request) -> None:
        """A leader is gone from the running ones; who was held on it goes ahead by itself."""
        for _, block_hash in self._pending.pop(request.request_id, ()):
            self._settle(block_hash)

    def drop(self, request: Request) -> None:
        """A held request is gone."""
        if request in self._woken:
            self._woken.remove(request)
            return
        for block_hash, held in self._held_on.items():
            if request in held:
                held.remove(request)
                if not held:
                    del self._held_on[block_hash]
                return

    def take_woken(self) -> list[Request]:
        """Those that need not be held any longer, once each."""
        woken, self._woken = self._woken, []
        return woken

    def check(self, running: list[Request]) -> None:
        """Every leader runs, and whoever is held is held on something that is being computed."""
        for block_hash, leader in self._leader_of.items():
            assert leader in running, f"{leader} leads and does not run"
            assert block_hash in {h for _, h in self._pending[leader.request_id]}
        assert set(self._held_on) <= set(self._leader_of), "held on what nobody computes"
        assert not self._woken, "woken requests are queued again at once"

    def _settle(self, block_hash: bytes) -> None:
        del self._leader_of[block_hash]
        self._woken.extend(self._held_on.pop(block_hash, ()))
