"""Each replica in turn: what a load balancer does that knows nothing. The baseline that others are measured against."""

from dataclasses import dataclass
from typing import ClassVar

from router.core.decision import Decision, Reason, Snapshot, expected
from router.core.request import Request


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """The turn is the tick, over those that may be chosen, so an excluded replica's share goes to all others."""

    name: ClassVar[str] = "round_robin"

    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        replica = snapshot.loads[snapshot.tick % len(snapshot.loads)].id
        return Decision(replica, Reason.TURN, expected(snapshot, replica))
