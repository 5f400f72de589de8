"""When sessions come back: how likely one that has been idle for a while returns soon, learned from the gaps they show.

How a turn ended says most of it. After a tool call a machine answers, after an end of turn a person does or does not.
"""

from bisect import bisect_right
from itertools import accumulate

# Seconds; each bound is about a quarter larger than the last, so a gap is known to a quarter.
_BOUNDS = tuple(round(1.25**n, 3) for n in range(42))  # up to 2.6 hours
_HALVE_AT = 4000.0  # weight of what is remembered: an hour of a fleet, after which the older half counts half
NEVER_SECONDS = 900.0  # idle for longer is counted as not coming back, until it does

# Prior, worth a few dozen observations: gaps of real agent sessions (9 s median and 97 % within 300 s after a tool
# call, 0.8 % never; 210 s median, 44 % later than 300 s, 15 % never after an end of turn).
_PRIOR = {
    "tool": ((4.0, 10.0), (9.0, 15.0), (40.0, 15.0), (150.0, 7.0), (400.0, 1.0), (0.0, 0.5)),
    "end": ((30.0, 5.0), (120.0, 8.0), (200.0, 6.0), (270.0, 4.0), (600.0, 6.0), (2000.0, 5.0), (0.0, 6.0)),
}
_PRIOR["unknown"] = _PRIOR["tool"]  # err towards keeping what may be in use


class Returns:
    """Gaps of one kind of turn end."""

    def __init__(self, kind: str) -> None:
        self._counts = [0.0] * (len(_BOUNDS) + 1)
        self._never = 0.0
        self._table: list[float] | None = None  # weight of gaps below each bound
        for gap, weight in _PRIOR[kind]:
            if gap:
                self._counts[bisect_right(_BOUNDS, gap)] += weight
            else:
                self._never += weight

    def came_back(self, gap: float) -> None:
        self._counts[bisect_right(_BOUNDS, gap)] += 1
        if gap > NEVER_SECONDS:
            self._never = max(self._never - 1, 0.0)
        self._changed()

    def stayed_away(self) -> None:
        self._never += 1
        self._changed()

    def probability(self, idle: float, horizon: float) -> float:
        """That a session idle for `idle` seconds returns within the next `horizon` seconds."""
        later = self._weight_below(float("inf")) - self._weight_below(idle)
        soon = self._weight_below(idle + horizon) - self._weight_below(idle)
        return soon / (later + self._never) if later + self._never > 0 else 0.0

    def _weight_below(self, gap: float) -> float:
        """Weight of the gaps shorter than this, linear within a bucket."""
        if self._table is None:
            self._table = list(accumulate(self._counts))
        index = bisect_right(_BOUNDS, gap)
        if index >= len(_BOUNDS):
            return self._table[-1]
        low = _BOUNDS[index - 1] if index else 0.0
        below = self._table[index - 1] if index else 0.0
        return below + self._counts[index] * (gap - low) / (_BOUNDS[index] - low)

    def _changed(self) -> None:
        self._table = None
        if sum(self._counts) + self._never > _HALVE_AT:
            self._counts = [count / 2 for count in self._counts]
            self._never /= 2
