"""Consistent hashing with bounded loads on the session, as HAProxy's `hash-balance-factor 125`.

Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018. Nothing is remembered: a
session that spills comes back as soon as its first choice has room.
"""

from dataclasses import dataclass
from typing import ClassVar

from router.core.cost import load_of
from router.core.decision import Decision, Reason, Snapshot, expected
from router.core.request import Request
from router.policies import in_range
from router.policies.session_hash import drawn


@dataclass(frozen=True, slots=True)
class HaproxyBoundedHash:
    name: ClassVar[str] = "haproxy_bounded_hash"

    bound: float = 1.25  # times the mean in flight: the usual setting

    def __post_init__(self) -> None:
        in_range("bound", self.bound, 1)

    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        if not request.key:
            return drawn(snapshot)
        loads = {load.id: load_of(load, snapshot.now) for load in snapshot.loads}
        limit = self.bound * (sum(loads.values()) + 1) / len(loads)
        passed: list[tuple[str, str]] = []
        for member in snapshot.ring.walk(request.key):
            if member in loads and loads[member] < limit:
                reason = Reason.SPREAD if passed else Reason.RING
                return Decision(member, reason, expected(snapshot, member), tuple(passed))
            passed.append((member, "full"))
        return drawn(snapshot)
