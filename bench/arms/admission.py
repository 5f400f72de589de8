"""Other answers to "more agents than room", over the router's own book-keeping of places. For the simulator only."""

from collections.abc import Iterable
from math import inf

from router.core.admission import Admission, AdmissionOptions, Place
from router.core.replica import Load


class FirstTurnHolding(Admission):
    """New sessions wait for room; who is in stays in until it is idle for a window. What a simple gate does."""

    idle_seconds = 300.0

    def _gives_way(self, place: Place, now: float) -> bool:
        return False

    def _idle_below(self, load: Load, now: float, horizon: float) -> list[Place]:
        idle = [place for queue in self._idle.get(load, {}).values() for place in queue.values()]
        return [place for place in idle if now - place.idle_since > self.idle_seconds]


class ConcurAimd(FirstTurnHolding):
    """A window of agents: more while the cache has room or does well, half of them when it is full and thrashes.

    After CONCUR (arXiv 2601.22705): the window is of agents, not of requests, and who is beyond it pauses between two
    turns. Its signals are the engines' KV usage and hit rate; here the contexts of those let in, as idle agents hold no
    KV that an engine counts as used, and the hit rate that replies report.
    """

    every_seconds = 10.0  # between two steps: a few turns of everybody
    full = 0.9  # of the fleet's KV; below it a low hit rate is a cold start
    thrashing = 0.85  # hit rate below this is recomputation, not new text
    more = 2.0  # agents a step
    least = 8.0  # agents in the window, at the least

    def __init__(self, options: AdmissionOptions) -> None:
        super().__init__(options)
        self._window = 32.0
        self._stepped_at = 0.0

    def room(
        self, session: int, tokens: int, loads: Iterable[Load], now: float, *, first: bool
    ) -> frozenset[str] | None:
        loads = tuple(loads)
        self._step(loads, now)
        place = self._places.get(session)
        if place is not None and (place.running or len(self._places) <= self._window):
            return None
        if not first and self.first_waiting_since is not None:
            return frozenset()
        for load in loads:
            for idle in self._idle_below(load, now, self.idle_seconds):
                self.leave(idle.session)
        return frozenset(load.id for load in loads) if len(self._places) < self._window else frozenset()

    def _step(self, loads: tuple[Load, ...], now: float) -> None:
        if now - self._stepped_at < self.every_seconds:
            return
        self._stepped_at = now
        ratios = [load.hit_ratio for load in loads if load.hit_ratio is not None]
        used = sum(load.placed_tokens for load in loads)
        room = sum(load.kv_capacity_tokens or inf for load in loads)
        if ratios and used > self.full * room and sum(ratios) / len(ratios) < self.thrashing:
            self._window = max(self._window / 2, self.least)
        else:
            self._window = min(self._window, len(self._places)) + self.more


class ThunderAgentPause(FirstTurnHolding):
    """Where a replica is over its capacity, whoever comes next pauses; the smallest context resumes first.

    After ThunderAgent's program-aware scheduler. Nothing bounds how long the largest one waits.
    """

    smallest_first = True

    def _gives_way(self, place: Place, now: float) -> bool:
        capacity = place.load.kv_capacity_tokens
        over = capacity is not None and place.load.placed_tokens > capacity
        return over and not place.running
