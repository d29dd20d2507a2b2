"""Fair shares of tokens between tenants that all want more than there is."""

from dataclasses import dataclass, field

FIRST_GUESS = 128
"""Tokens of an answer, of a tenant that has had none yet."""
OUTPUT_COST = 2
"""Of a generated token, in prompt tokens."""
MEMORY = 0.9
"""How much of the mean length of a tenant's answers stays with each further one."""


@dataclass(slots=True)
class _Account:
    """`counter` is the service charged so far, of what has ended and of what has not."""

    counter: float = 0.0
    mean_output: float = FIRST_GUESS
    tags: dict[str, float] = field(default_factory=dict)
    """Of its requests that have not ended: the counter when each came."""


@dataclass(slots=True)
class _Charge:
    tenant: str
    weight: float
    cost: float
    num_samples: int


class FairShares:
    """A virtual token counter for each tenant (Sheng et al., "Fairness in Serving Large Language
    Models", OSDI 2024): who has been served the fewest tokens, by weight, goes first.

    A request's place is its tenant's counter at the moment it comes, which is then charged with
    what the request is expected to cost and, when it ends, set right by what it did cost. So a
    place is a plain sort key (start-time fair queueing): the scheduler keeps its one queue, looks
    ahead in it for shared prefixes, and preempts whoever has had most, all as with a priority. A
    queue in front of the engine, as in the paper, would hide requests from it, and leave seats
    empty for a step whenever it had to be asked for more. The price is that requests which wait
    already keep their places when an answer turns out longer than its tenant's before.

    A tenant that comes back after a pause does not bring credit with it: its counter is lifted to
    the least that anybody who is still being served began with.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._charges: dict[str, _Charge] = {}
        self._floor = 0.0

    def enter(
        self, request_id: str, tenant: str, weight: float, num_prompt_tokens: int, num_samples: int
    ) -> int:
        """The place of a request that has come: the lowest goes first. `leave` must follow."""
        account = self._accounts.setdefault(tenant, _Account())
        being_served = [tag for other in self._accounts.values() for tag in other.tags.values()]
        self._floor = max(self._floor, min(being_served, default=self._floor))
        tag = max(account.counter, self._floor)
        cost = num_prompt_tokens + OUTPUT_COST * account.mean_output * num_samples
        account.counter = tag + cost / weight
        account.tags[request_id] = tag
        self._charges[request_id] = _Charge(tenant, weight, cost, num_samples)
        return round(tag)

    def leave(self, request_id: str, num_computed: int, num_output_tokens: int) -> None:
        """It has ended, with so many prompt tokens computed and output tokens in all. A second
        call does nothing."""
        charge = self._charges.pop(request_id, None)
        if charge is None:
            return
        account = self._accounts[charge.tenant]
        del account.tags[request_id]
        cost = num_computed + OUTPUT_COST * num_output_tokens
        account.counter += (cost - charge.cost) / charge.weight
        per_sample = num_output_tokens / charge.num_samples
        account.mean_output += (1 - MEMORY) * (per_sample - account.mean_output)
