"""The ring on the stable prefix (tools, system prompt), with bounded load: callers who share it meet on one replica.

Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018.
"""

from dataclasses import dataclass
from typing import ClassVar

from router.core.cost import load_of
from router.core.decision import Decision, Reason, Snapshot, expected
from router.core.request import Request
from router.policies import in_range
from router.policies.session_hash import drawn, why_absent


@dataclass(frozen=True, slots=True)
class PrefixHash:
    """The first replica on the ring that is not full. Full of requests in flight, that is: a full KV cache is good."""

    name: ClassVar[str] = "prefix_hash"

    bound: float = 1.25  # times the mean in flight: the paper's compromise between evenness and moves
    floor: float = 2  # in flight; up to this nobody is full, or a fleet with nothing to do would spill

    def __post_init__(self) -> None:
        in_range("bound", self.bound, 1)  # below 1 everybody can be full at once
        in_range("floor", self.floor, 0)

    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        key = request.chain[request.stable] if request.chain else request.key
        if not key:
            return drawn(snapshot)
        limit = self._limit(snapshot)
        passed: list[tuple[str, str]] = []
        for member in snapshot.ring.walk(key):
            load = snapshot.by_id.get(member)
            if load and load_of(load, snapshot.now) < limit:
                reason = Reason.SPREAD if passed else Reason.RING
                return Decision(member, reason, expected(snapshot, member), tuple(passed))
            passed.append((member, "full" if load else why_absent(snapshot, member)))
        return drawn(snapshot)

    def _limit(self, snapshot: Snapshot) -> float:
        """Full from here on. Above the mean, this request counted, so that somebody always has room."""
        total = sum([load_of(load, snapshot.now) for load in snapshot.loads])
        return max(self.bound * (total + 1) / len(snapshot.loads), self.floor + 1)
