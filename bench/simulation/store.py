"""What several routers share, and what outlives one: bindings by session, seen by others after a delay.

Law: the first writer wins; who asks during an outage learns nothing; what was placed during it is told afterwards.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kept:
    replica: str
    context: int
    seen_from: float  # when others can read it


class Store:
    def __init__(self, delay: float, outage: tuple[float, float]) -> None:
        self._delay, self._outage = delay, outage
        self._kept: dict[int, Kept] = {}
        self._untold: list[tuple[int, str, int]] = []

    def is_down(self, now: float) -> bool:
        return self._outage[0] <= now < self._outage[1]

    def look_up(self, session: int, now: float) -> Kept | None:
        self._tell(now)
        kept = self._kept.get(session)
        return kept if kept is not None and kept.seen_from <= now and not self.is_down(now) else None

    def bind(self, session: int, replica: str, context: int, now: float, *, moved: bool) -> None:
        """A placement; `moved`: for cause, so it replaces the one before."""
        if self.is_down(now):
            self._untold.append((session, replica, context))
            return
        self._tell(now)
        if moved or session not in self._kept:
            self._kept[session] = Kept(replica, context, now + self._delay)

    def _tell(self, now: float) -> None:
        if not self._untold or self.is_down(now):
            return
        for session, replica, context in self._untold:
            self._kept.setdefault(session, Kept(replica, context, now + self._delay))
        self._untold.clear()
