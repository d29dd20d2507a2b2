"""Who goes first and who gives way: pure functions of requests.

A policy is a sort key. The waiting queue and the running list are both kept in its order, so the
head is the one to serve next and the tail the one to preempt.
"""

from collections.abc import Callable

from looseleaf.core.request import Request

Key = tuple[int, int]


def fcfs(request: Request) -> Key:
    """First come, first served; a preempted request keeps its place."""
    return (0, request.arrival_index)


def priority(request: Request) -> Key:
    """Lower `priority` first; equals by arrival."""
    return (request.priority, request.arrival_index)


POLICIES: dict[str, Callable[[Request], Key]] = {
    "fcfs": fcfs,
    "priority": priority,
    "fair": priority,  # which is then a tenant's place, and nobody is preempted for another's
}


def outranks(policy: str, candidate: Request, victim: Request) -> bool:
    """Whether a waiting `candidate` may take the place of a running `victim`.

    Only strictly higher priority may: between equals each would preempt the other for ever.
    """
    return policy == "priority" and candidate.priority < victim.priority
