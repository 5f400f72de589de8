"""The plain consistent-hash ring on the session: no memory, no load, the same answer in every router."""

from dataclasses import dataclass
from typing import ClassVar

from router.core.decision import Decision, Reason, Snapshot, expected
from router.core.request import Request
from router.core.ring import mix


@dataclass(frozen=True, slots=True)
class SessionHash:
    """The first eligible replica on the ring; who stood before it is told in `passed_over`."""

    name: ClassVar[str] = "session_hash"

    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        if not request.key:
            return drawn(snapshot)
        absent: list[tuple[str, str]] = []
        for member in snapshot.ring.walk(request.key):
            if member in snapshot.by_id:
                reason = Reason.SPREAD if absent else Reason.RING
                return Decision(member, reason, expected(snapshot, member), tuple(absent))
            absent.append((member, why_absent(snapshot, member)))
        return drawn(snapshot)


def why_absent(snapshot: Snapshot, member: str) -> str:
    """Why a member of the ring may not be chosen, in the map's word."""
    return next((why for replica, why in snapshot.passed_over if replica == member), "absent")


def drawn(snapshot: Snapshot) -> Decision:
    """Where nothing can be hashed a draw spreads the load; hashing "nothing" would send it all to one replica."""
    replica = snapshot.loads[mix("ring", snapshot.tick) % len(snapshot.loads)].id
    return Decision(replica, Reason.CHANCE, expected(snapshot, replica))
