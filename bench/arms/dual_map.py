"""Two hashed candidates, the better of them, as DualMap (arXiv 2602.06502).

The candidate that holds the prefix, unless its queue would break the objective for the first token and the other's
would not. Left out: its moving of requests that wait already, which a router in front of an engine cannot do.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from router.core.cost import prefill_seconds
from router.core.decision import Decision, Reason, Snapshot, expected
from router.core.request import Request
from router.core.ring import mix
from router.policies.session_hash import drawn


@dataclass(frozen=True, slots=True)
class DualMap:
    name: ClassVar[str] = "dual_map"

    objective_seconds: float = 5.0  # until the first token

    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        if not request.key:
            return drawn(snapshot)
        one = next(_walk(snapshot, request.key))
        other = next((each for each in _walk(snapshot, mix("second", request.key)) if each != one), one)
        costs = {each: _seconds(snapshot, each) for each in (one, other)}
        warm = max((one, other), key=lambda each: expected(snapshot, each))
        if expected(snapshot, warm) and costs[warm] <= self.objective_seconds:
            return Decision(warm, Reason.PREFIX, expected(snapshot, warm))
        choice = min((one, other), key=costs.__getitem__)
        return Decision(choice, Reason.RING if choice == one else Reason.SPREAD, expected(snapshot, choice))


def _walk(snapshot: Snapshot, key: int) -> Iterator[str]:
    return (member for member in snapshot.ring.walk(key) if member in snapshot.by_id)


def _seconds(snapshot: Snapshot, replica: str) -> float:
    own = max(snapshot.prompt_tokens - expected(snapshot, replica), 0)
    return prefill_seconds(snapshot.by_id[replica], own, snapshot.now)
