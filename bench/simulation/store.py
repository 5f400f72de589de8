"""What several routers share, and what outlives one: rows as `router.stores` keeps them, seen by others after a delay.

Law: a row gives way to its own replica or to a move from where it is; who asks during an outage learns nothing, and
what was placed during it is told afterwards.
"""

from dataclasses import dataclass

from router.core.fleet import Fleet
from router.core.placed import Placed, adopt, placed, restore, unknown
from router.core.request import Request


@dataclass(frozen=True, slots=True)
class _Row:
    placed: Placed
    seen_from: float  # when others can read it


class Store:
    def __init__(self, delay: float, outage: tuple[float, float]) -> None:
        self._delay, self._outage = delay, outage
        self._rows: dict[int, _Row] = {}
        self._sessions: dict[int, int] = {}  # by the last link of a row
        self._untold: dict[int, tuple[Placed, str]] = {}
        self._turns: list[tuple[int, Placed]] = []
        self._queued: dict[int, dict[str, int]] = {}  # by router: what it is owed by each replica

    def is_down(self, now: float) -> bool:
        return self._outage[0] <= now < self._outage[1]

    def publish(self, told: Placed, before: str, now: float) -> None:
        """Written if the row is still at `before`; "" = there is none."""
        if self.is_down(now):
            self._untold[told.session] = (told, before)
            return
        self._flush(now)
        row = self._rows.get(told.session)
        if row is None or row.placed.replica in (told.replica, before):
            self._rows[told.session] = _Row(told, now + self._delay)
            self._sessions[told.tail] = told.session

    def look_up(self, keys: tuple[int, ...], now: float) -> Placed | None:
        if self.is_down(now):
            return None
        self._flush(now)
        for key in keys:
            row = self._rows.get(key) or self._rows.get(self._sessions.get(key, 0))
            if row is not None and row.seen_from <= now:
                return row.placed
        return None

    def all(self) -> list[Placed]:
        """Least recently seen first."""
        return sorted((row.placed for row in self._rows.values()), key=lambda each: each.seen)

    def owed(self, router: int, queued: dict[str, int], now: float) -> dict[str, int]:
        """Tells what this router waits for, and learns what the others do."""
        if self.is_down(now):
            return {}
        self._queued[router] = queued
        others = [told for number, told in self._queued.items() if number != router]
        return {name: sum(told.get(name, 0) for told in others) for name in queued}

    def turned(self, router: int, told: Placed) -> None:
        """A turn ended there."""
        self._turns.append((router, told))

    def turns(self, router: int, since: int, now: float) -> tuple[int, list[Placed]]:
        """Where to go on next time, and whose turns ended at other routers since."""
        if self.is_down(now):
            return since, []
        return len(self._turns), [told for number, told in self._turns[since:] if number != router]

    def _flush(self, now: float) -> None:
        untold, self._untold = self._untold, {}
        for told, before in untold.values():
            self.publish(told, before, now)


def recall(fleet: Fleet, store: Store, request: Request) -> None:
    """Learn where this session lives, if others know and this router does not, as the proxy does before it chooses."""
    keys = unknown(fleet, request)
    found = store.look_up(keys, fleet.now()) if keys else None
    if found is not None and not adopt(fleet, found, fleet.now()):
        restore(fleet, (found,), fleet.now())


def tell(fleet: Fleet, store: Store) -> None:
    """From now on every placement and move of this fleet is published; what is kept is restored."""
    fleet.on_bound = lambda binding, before: store.publish(placed(fleet, binding, fleet.now()), before, fleet.now())
    restore(fleet, store.all(), fleet.now())


def hear(fleet: Fleet, told: Placed) -> None:
    """A session was served through another router: it is as warm and as large as if it had come here."""
    load, binding = fleet.loads.get(told.replica), fleet.affinity.binding(told.session)
    if load is None or (binding is not None and binding.seen > told.seen):
        return
    adopt(fleet, told, fleet.now())
    binding = fleet.affinity.binding(told.session)
    load.sent_tokens += told.context
    if binding is not None and binding.replica == told.replica:
        binding.seen, binding.recalled = told.seen, False
        fleet.bound.count(binding, told.context, fleet.loads)
