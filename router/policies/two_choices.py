"""The less loaded of two drawn replicas: nearly as even as `least_loaded`, without the herd when counts are old.

Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 2001.
"""

from dataclasses import dataclass
from typing import ClassVar

from router.core.cost import load_of
from router.core.decision import Decision, Reason, Snapshot, expected
from router.core.request import Request
from router.core.ring import mix


@dataclass(frozen=True, slots=True)
class TwoChoices:
    """Two distinct draws from one hash of request and tick; the first drawn wins a tie."""

    name: ClassVar[str] = "two_choices"

    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        loads, count = snapshot.loads, len(snapshot.loads)
        if count == 1:
            return Decision(loads[0].id, Reason.ONLY, expected(snapshot, loads[0].id))
        draw = mix("two_choices", request.key, snapshot.tick)
        first = draw % count
        second = (first + 1 + (draw >> 32) % (count - 1)) % count  # 1 to count - 1 places further: never the same
        one, other = loads[first], loads[second]
        replica = other.id if load_of(other, snapshot.now) < load_of(one, snapshot.now) else one.id
        return Decision(replica, Reason.CHANCE, expected(snapshot, replica))
