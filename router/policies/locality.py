"""The default: place once by cost, stick hard, move only for cause.

Known home, eligible and not lost  → stay there (`session`, `prefix`); no gate on the fleet's spread, no argmin.
New session, or home gone or lost  → walk the ring from the session's key, take the first replica whose cost is within
                                     a margin of the cheapest (`ring` if that is the first one, else `spread`).
The prompt was rewritten, or home  → as a new one, but home is asked first: moving is free, not wanted.
had to let go of most of it
"""

from collections.abc import Iterator
from dataclasses import dataclass

from router.core.cost import prefill_seconds
from router.core.decision import Decision, Home, Reason, Snapshot, expected
from router.core.request import Request
from router.core.ring import mix
from router.policies import in_range

_PLACEMENTS = ("cost", "ring")
_REPEATS = 0.5  # of prompts: chat repeats a third of them, agents nine tenths, one-off questions nothing
_FREE = ("rewritten", "evicted")  # home is left only because moving costs no more than staying


@dataclass(frozen=True, slots=True)
class Locality:
    placement: str = "cost"  # "ring" makes homes a pure function of the key: for several routers without a shared store
    margin: float = 0.8  # mean contexts by which another replica must be cheaper than the ring's choice
    bound_price: float = 0.1  # of the context bound to a replica: what a newcomer adds to its pressure
    migrate_gap: float = 0.0  # leave a live home if its queue exceeds that many times the cost of moving; 0 = never

    def __post_init__(self) -> None:
        if self.placement not in _PLACEMENTS:
            raise ValueError(f"placement: must be one of {', '.join(_PLACEMENTS)}, got {self.placement!r}")
        in_range("margin", self.margin, 0)
        in_range("bound_price", self.bound_price, 0)
        in_range("migrate_gap", self.migrate_gap, 0)

    @property
    def name(self) -> str:
        return "locality"

    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        home = snapshot.home
        if home is None:
            return self._place(request, snapshot, ())
        cause = self._cause_to_leave(home, snapshot)
        if not cause:
            return Decision(home.replica, home.reason, home.expected_cached)
        return self._place(request, snapshot, ((home.replica, cause),))

    def _cause_to_leave(self, home: Home, snapshot: Snapshot) -> str:
        load = snapshot.by_id.get(home.replica)
        if load is None:
            return dict(snapshot.passed_over).get(home.replica, "gone")
        if home.lost:
            return "lost"
        if not home.extends:
            return "rewritten"
        if home.evicted:
            return "evicted"
        if self.migrate_gap and len(snapshot.loads) > 1:
            staying = prefill_seconds(load, snapshot.prompt_tokens - home.expected_cached, snapshot.now)
            moving = min(prefill_seconds(other, snapshot.prompt_tokens, snapshot.now) for other in snapshot.loads)
            if staying > self.migrate_gap * moving:
                return "overloaded"
        return ""

    def _place(self, request: Request, snapshot: Snapshot, left: tuple[tuple[str, str], ...]) -> Decision:
        key = request.key or mix(snapshot.tick)  # nothing names it: any start is as good
        walk = self._walk(key, snapshot, left)
        choice, dearer = (next(walk), ()) if self.placement == "ring" else self._within_margin(walk, snapshot)
        left_too = dict(left)
        passed_over = left + tuple(each for each in dearer if each[0] not in left_too)
        passed_over = tuple(each for each in passed_over if each[0] != choice)
        return Decision(choice, self._reason(choice, key, snapshot), expected(snapshot, choice), passed_over)

    def _reason(self, choice: str, key: int, snapshot: Snapshot) -> Reason:
        home = snapshot.home
        if home is not None and home.replica == choice and not home.lost:
            return home.reason
        return Reason.RING if next(snapshot.ring.walk(key)) == choice else Reason.SPREAD

    def _within_margin(self, walk: Iterator[str], snapshot: Snapshot) -> tuple[str, tuple[tuple[str, str], ...]]:
        costs = self._costs(snapshot)
        limit = min(costs.values()) + self.margin * _reuse(snapshot) * snapshot.mean_context / _mean_rate(snapshot)
        dearer: list[tuple[str, str]] = []
        for replica in walk:
            if costs[replica] <= limit:
                return replica, tuple(dearer)
            dearer.append((replica, "dearer"))
        raise AssertionError("the cheapest replica is within any margin of itself")

    def _costs(self, snapshot: Snapshot) -> dict[str, float]:
        """Seconds until the first token there, plus a price on what is bound there already and will be used again.

        The price is of room, not of speed: a slow replica's cache is worth filling as much as another's.
        """
        prompt, held, now = snapshot.prompt_tokens, snapshot.held, snapshot.now
        price = self.bound_price * _reuse(snapshot) / _mean_rate(snapshot)
        costs = {}
        for load in snapshot.loads:
            own = prompt - held.tokens if held is not None and held.replica == load.id else prompt
            costs[load.id] = prefill_seconds(load, max(own, 0), now) + price * load.bound_tokens
        return costs

    def _walk(self, key: int, snapshot: Snapshot, left: tuple[tuple[str, str], ...]) -> Iterator[str]:
        """Eligible replicas in ring order; a home that is only left because moving is free comes first."""
        home = left[0][0] if left and left[0][1] in _FREE else ""
        if home:
            yield home
        for replica in snapshot.ring.walk(key):
            if replica in snapshot.by_id and replica != home:
                yield replica


def _reuse(snapshot: Snapshot) -> float:
    """What a home is worth at all, 0 to 1."""
    return min(snapshot.reuse / _REPEATS, 1.0)


def _mean_rate(snapshot: Snapshot) -> float:
    return sum([load.prefill_rate for load in snapshot.loads]) / len(snapshot.loads)
