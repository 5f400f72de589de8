"""A uniform draw: the other baseline, and what several routers without a common turn amount to."""

from dataclasses import dataclass
from typing import ClassVar

from router.core.decision import Decision, Reason, Snapshot, expected
from router.core.request import Request
from router.core.ring import mix


@dataclass(frozen=True, slots=True)
class Random:
    """The draw is a hash of request and tick, so a recorded decision can be repeated."""

    name: ClassVar[str] = "random"

    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        draw = mix("random", request.key, snapshot.tick)
        replica = snapshot.loads[draw % len(snapshot.loads)].id
        return Decision(replica, Reason.CHANCE, expected(snapshot, replica))
