"""Who has a place in a KV cache, so that what is let in fits: the only thing that helps a fleet over its capacity.

A session takes a place with its first turn and keeps it while it is likely to use it. A newcomer that fits nowhere
is held. A session that had its slice gives way at its next turn once the first in line has waited long enough, so
nobody waits for ever; within its slice it is never held.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from router.core.replica import Load
from router.core.returns import Returns

_TOOL_FINISHES = frozenset(("tool_calls", "tool_use", "function_call"))
KINDS = ("tool", "end", "unknown")


@dataclass(frozen=True, slots=True)
class AdmissionOptions:
    """Defaults from the studies in docs/admission.md: each on a plateau, over capacities and lengths of thought."""

    fill: float = 0.95  # of a replica's KV cache: throughput grows up to 1.0, at 1.1 the cache thrashes
    backlog_seconds: float = 5.0  # of prefill owed at a full replica: more newcomers would only wait there instead
    slice_seconds: float = 900.0  # what a place costs to win (a whole prefill) must pay off: at 300 s all swap
    patience_seconds: float = 270.0  # the first in line waits that long before others give way to it: flat from 240
    horizon_seconds: float = 60.0  # a place is kept for a session that rather returns within this than not
    keep_above: float = 0.5  # "rather than not"


@dataclass(slots=True, eq=False)
class Place:
    """One session's room on one replica."""

    session: int
    load: Load
    tokens: int
    since: float
    running: int = 0
    kind: str = "unknown"
    idle_since: float = 0.0


class Admission:
    """Places by session, idle ones in the order in which they fell idle. Knows no clock: time is an argument."""

    def __init__(self, options: AdmissionOptions) -> None:
        self.options = options
        self.first_waiting_since: float | None = None  # told by the waiting room; None = nobody waits
        self._places: dict[int, Place] = {}
        self._idle: dict[Load, dict[str, OrderedDict[int, Place]]] = {}
        self._returns = {kind: Returns(kind) for kind in KINDS}

    def room(
        self, session: int, tokens: int, loads: Iterable[Load], now: float, *, first: bool
    ) -> frozenset[str] | None:
        """Replicas that the session may use now; None where nothing restricts it. A pure read.

        `first`: it is the first in line; everybody else without a place stands behind those who wait.
        """
        place = self._places.get(session)
        if place is not None and not self._gives_way(place, now):
            return None
        if not first and self.first_waiting_since is not None:
            return frozenset()
        return frozenset(load.id for load in loads if self._fits(load, tokens, now))

    def _gives_way(self, place: Place, now: float) -> bool:
        if place.running or self.first_waiting_since is None:
            return False
        options = self.options
        had_its_slice = now - place.since >= options.slice_seconds
        return had_its_slice and now - self.first_waiting_since >= options.patience_seconds

    def _fits(self, load: Load, tokens: int, now: float) -> bool:
        over = self._over(load, tokens)
        if over is None or over <= 0 or over <= self._one_off_tokens(load):
            return True
        if load.queued_tokens > self.options.backlog_seconds * load.prefill_rate:
            return False
        # Alone on an empty replica anybody may try: the engine knows its own limit.
        over = min(over, load.placed_tokens)
        return over <= _tokens(self._idle_below(load, now, self.options.horizon_seconds))

    def _over(self, load: Load, tokens: int) -> float | None:
        """Tokens that would have to go for so many more; None where the replica's capacity is not known."""
        capacity = load.kv_capacity_tokens
        return None if capacity is None else load.placed_tokens + tokens - self.options.fill * capacity

    def _one_off_tokens(self, load: Load) -> int:
        """Of idle places whose kind of turn is rather the last: a chat's room, which nobody waits for."""
        queues = self._idle.get(load, {}).items()
        one_off = (kind for kind, queue in queues if queue and self._returns[kind].probability(0.0, inf) < 0.5)
        return sum(_tokens(self._idle[load][kind].values()) for kind in one_off)

    def _idle_below(self, load: Load, now: float, horizon: float) -> list[Place]:
        """Idle places whose sessions will rather not return within so many seconds, the least likely first."""
        found: list[tuple[float, Place]] = []
        for kind, queue in self._idle.get(load, {}).items():
            for place in queue.values():
                likely = self._returns[kind].probability(now - place.idle_since, horizon)
                if likely >= self.options.keep_above:
                    break
                found.append((likely, place))
        return [place for _, place in sorted(found, key=lambda each: each[0])]

    def _make_room(self, load: Load, tokens: int, now: float) -> None:
        over = self._over(load, tokens)
        if over is None:
            return
        for place in self._idle_below(load, now, self.options.horizon_seconds) if over > 0 else ():
            over -= place.tokens
            self.leave(place.session)
            if over <= 0:
                return

    def running(self, session: int) -> bool:
        place = self._places.get(session)
        return place is not None and place.running > 0

    def enter(self, session: int, load: Load, tokens: int, now: float) -> None:
        """A lease opened: the session has its place there, and only there."""
        place = self._places.get(session)
        if place is not None and place.load is not load:
            self.leave(session)
            place = None
        if place is None:
            self._make_room(load, tokens, now)
            self._places[session] = place = Place(session, load, 0, now)
        elif not place.running:
            self._idle[load][place.kind].pop(session, None)
        place.running += 1
        self.resize(session, load, max(tokens, place.tokens))

    def resize(self, session: int, load: Load, tokens: int) -> None:
        """What the session's context is now known to be."""
        place = self._places.get(session)
        if place is not None and place.load is load:
            load.placed_tokens += tokens - place.tokens
            place.tokens = tokens

    def rest(self, session: int, load: Load, kind: str, now: float) -> None:
        """A lease closed, and the session's last turn ended in this way."""
        place = self._places.get(session)
        if place is None or place.load is not load:
            return
        place.running -= 1
        if not place.running:
            place.kind, place.idle_since = kind, now
            queues = self._idle.setdefault(load, {each: OrderedDict() for each in KINDS})
            queues[kind][session] = place

    def leave(self, session: int) -> None:
        """Its room is free again. Harmless where it has none."""
        place = self._places.pop(session, None)
        if place is None:
            return
        place.load.placed_tokens -= place.tokens
        if not place.running:
            self._idle[place.load][place.kind].pop(session, None)

    def gone(self, load: Load) -> None:
        """The replica left or lost its cache: so did everybody's place there."""
        for session in [place.session for place in self._places.values() if place.load is load]:
            self.leave(session)
        self._idle.pop(load, None)

    def came_back(self, kind: str, gap: float) -> None:
        """A session's next turn came `gap` seconds after its last one ended in this way."""
        self._returns[kind].came_back(gap)

    def stayed_away(self, kind: str) -> None:
        """A session has been idle for so long that it counts as not coming back."""
        self._returns[kind].stayed_away()


def _tokens(places: Iterable[Place]) -> int:
    return sum([place.tokens for place in places])


def kind_of(finish: str) -> str:
    """How a turn ended, in the three words that matter here, from the engine's word for it."""
    if not finish:
        return "unknown"
    return "tool" if finish in _TOOL_FINISHES else "end"
