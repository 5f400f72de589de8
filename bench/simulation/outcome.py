"""What a run came to beyond its figures: homes on the ring, work by replica, the hit rate minute by minute."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.report import Figures
from bench.simulation.options import SimulationOptions
from bench.simulation.run import Simulation, Trail
from bench.traces import Session
from router.core.decision import Reason

_MINUTE = 60.0
_HOMES = frozenset((Reason.SESSION, Reason.PREFIX))
_BLIND = 0.5  # a reply with less than that of what was expected was sent to a home that had lost the session


@dataclass(frozen=True, slots=True)
class Minute:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    first_token: float = 0.0  # sum of seconds
    turns: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    figures: Figures
    at_ring_home: float  # share of placements that took the ring's first choice
    placed_tokens: dict[str, int]  # prompt tokens of placements, by replica
    minutes: tuple[Minute, ...]  # by when a turn was sent
    blind_turns: int  # the most that one session spent at a restarted home that was still believed warm

    def hit_rate(self, start: float, end: float) -> float:
        """Of the turns sent in this span of seconds."""
        span = self.minutes[int(start / _MINUTE) : int(end / _MINUTE)]
        return sum(one.cached_tokens for one in span) / max(1, sum(one.prompt_tokens for one in span))

    def first_token(self, start: float, end: float) -> float:
        """Mean seconds, of the turns sent in this span."""
        span = self.minutes[int(start / _MINUTE) : int(end / _MINUTE)]
        return sum(one.first_token for one in span) / max(1, sum(one.turns for one in span))


def outcome(
    options: SimulationOptions, sessions: Sequence[Session], progress: Callable[[float], None] = lambda done: None
) -> Outcome:
    """One run."""
    simulation = Simulation(options, sessions)
    made = simulation.run(progress)
    placements = simulation.reasons[Reason.RING] + simulation.reasons[Reason.SPREAD]
    return Outcome(
        made,
        simulation.reasons[Reason.RING] / placements if placements else 1.0,
        _placed(simulation.trails),
        _minutes(simulation.trails, options.seconds),
        max((_blind(simulation.trails, f"replica-{number}", when) for when, number in options.restarts), default=0),
    )


def _placed(trails: Sequence[Trail]) -> dict[str, int]:
    placed: dict[str, int] = defaultdict(int)
    for trail in trails:
        if trail.reason not in _HOMES:
            placed[trail.replica] += trail.prompt
    return dict(placed)


def _minutes(trails: Sequence[Trail], seconds: float) -> tuple[Minute, ...]:
    sums = [[0, 0, 0.0, 0] for _ in range(int(seconds / _MINUTE) + 1)]
    for trail in trails:
        row = sums[int(trail.at / _MINUTE)]
        row[0] += trail.prompt
        row[1] += trail.cached
        row[2] += trail.first_token
        row[3] += 1
    return tuple(Minute(int(row[0]), int(row[1]), row[2], int(row[3])) for row in sums)


def _blind(trails: Sequence[Trail], replica: str, when: float) -> int:
    """Turns in a row, from the restart on, that a session sent to it in vain."""
    blind: dict[int, int] = defaultdict(int)
    seen: set[int] = set()
    for trail in sorted(trails, key=lambda trail: trail.at):
        if trail.at < when or trail.session in seen:
            continue
        if trail.replica == replica and trail.expected and trail.cached < _BLIND * trail.expected:
            blind[trail.session] += 1
        else:
            seen.add(trail.session)
    return max(blind.values(), default=0)
