"""What several routers share, and what outlives one: bindings, seen by others after a delay.

Law: the first writer wins unless a session moved for cause; who asks during an outage learns nothing; what was
placed during it is told afterwards.
"""

from dataclasses import dataclass, replace

from router.core.affinity import Binding
from router.core.fleet import Fleet
from router.core.request import Request


@dataclass(frozen=True, slots=True)
class Kept:
    session: int
    replica: str
    context: int
    seen_from: float  # when others can read it


class Store:
    """Bindings by session name, and for conversations without one by the last link of each turn."""

    def __init__(self, delay: float, outage: tuple[float, float]) -> None:
        self._delay, self._outage = delay, outage
        self._kept: dict[int, Kept] = {}
        self._untold: dict[int, Kept] = {}

    def is_down(self, now: float) -> bool:
        return self._outage[0] <= now < self._outage[1]

    def look_up(self, key: int, now: float) -> Kept | None:
        if self.is_down(now):
            return None
        self._tell(now)
        kept = self._kept.get(key)
        return kept if kept is not None and kept.seen_from <= now else None

    def bind(self, key: int, binding: Binding, now: float) -> None:
        """The home under this key; another one than before is a move for cause."""
        kept = Kept(binding.session, binding.replica, binding.context, now + self._delay)
        if self.is_down(now):
            self._untold[key] = kept
            return
        self._tell(now)
        before = self._kept.get(key)
        if before is None or before.replica != kept.replica:
            self._kept[key] = kept

    def _tell(self, now: float) -> None:
        for key, kept in self._untold.items():
            self._kept.setdefault(key, replace(kept, seen_from=now + self._delay))
        self._untold.clear()


def adopt(fleet: Fleet, store: Store, request: Request) -> None:
    """What the store knows of a session that this fleet does not know, or whose home it left."""
    found = fleet.affinity.find(request)
    binding = None if found.fork else found.binding
    if binding is not None and not _is_gone(fleet, binding):
        return
    keys = (request.session,) if request.session else request.chain[max(found.known, request.opening) :][::-1]
    for key in keys:
        kept = store.look_up(key, fleet.now())
        if kept is not None and kept.replica in fleet.loads:
            _bind(fleet, request, key, kept)
            return


def _is_gone(fleet: Fleet, binding: Binding) -> bool:
    load = fleet.loads.get(binding.replica)
    return load is None or not load.eligible or load.incarnation != binding.incarnation


def _bind(fleet: Fleet, request: Request, key: int, kept: Kept) -> None:
    load = fleet.loads[kept.replica]
    binding = Binding(kept.session, load.id, load.incarnation, 0, seen=fleet.now())
    known = 0
    if key in request.chain:
        known = request.chain.index(key)
        binding.root, binding.tail = request.chain[0], key
        request = replace(request, chain=request.chain[: known + 1], sizes=request.sizes[: known + 1])
    for gone in fleet.affinity.put(binding, request, known):
        fleet.bound.forget(gone, fleet.loads)
    fleet.bound.count(binding, kept.context, fleet.loads)
