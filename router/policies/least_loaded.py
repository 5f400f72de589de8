"""The replica with the fewest requests in flight, wherever the caches are. Equals take turns."""

from dataclasses import dataclass
from typing import ClassVar

from router.core.cost import load_of, lowest
from router.core.decision import Decision, Reason, Snapshot, expected
from router.core.request import Request


@dataclass(frozen=True, slots=True)
class LeastLoaded:
    """Join the shortest queue, by our own count and by what the engine says while that is fresh."""

    name: ClassVar[str] = "least_loaded"

    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        inflight = [load_of(load, snapshot.now) for load in snapshot.loads]
        replica = snapshot.loads[lowest(inflight, snapshot.tick)].id
        return Decision(replica, Reason.LOAD, expected(snapshot, replica))
