"""Who may serve a model: members, eligible loads and ring, cached until the fleet changes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from router.core.replica import Load, State
from router.core.ring import Ring

_RINGS = 64  # distinct member sets kept; a fleet has one per model


Loads: TypeAlias = tuple[Load, ...]
Passed: TypeAlias = tuple[tuple[str, str], ...]


class NoReplica(Exception):
    """Nobody to choose from. `reason` is a bounded word: empty, excluded, full."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Pool:
    """What one model's requests may choose from."""

    members: tuple[Load, ...]
    loads: tuple[Load, ...]  # eligible ones, by id; never empty where members is not
    by_id: Mapping[str, Load]
    ring: Ring
    passed_over: tuple[tuple[str, str], ...]
    panic: bool

    def open_to(self, excluding: Collection[str], max_inflight: int | None) -> tuple[Loads, Mapping[str, Load], Passed]:
        """(loads, the same by id, who is passed over) without those tried already and those at their limit.

        Raises NoReplica.
        """
        if not excluding and max_inflight is None:
            return self.loads, self.by_id, self.passed_over
        left = tuple(load for load in self.loads if load.id not in excluding)
        if not left:
            raise NoReplica("excluded")
        free = tuple(load for load in left if max_inflight is None or load.inflight < max_inflight)
        if not free:
            raise NoReplica("full")
        gone = tuple((load.id, "tried" if load.id in excluding else "full") for load in self.loads if load not in free)
        return free, {load.id: load for load in free}, self.passed_over + gone


class Pools:
    """Pools by model. `changed()` forgets them; the rings stay, they depend on the members alone."""

    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}
        self._rings: dict[tuple[str, ...], Ring] = {}

    def changed(self) -> None:
        self._pools.clear()

    def of(self, model: str, fleet: Collection[Load]) -> Pool | None:
        """The pool of a model: those that list it, else everybody; None for an empty fleet.

        A model that nobody lists goes to a replica all the same: the engine's own error is the clearest.
        """
        pool = self._pools.get(model)
        if pool is not None:
            return pool
        serving = [load for load in fleet if model in load.models]
        if not serving:
            if model:
                return self.of("", fleet)  # one entry for all unknown names: clients cannot grow the map
            serving = list(fleet)
        if not serving:
            return None
        self._pools[model] = pool = self._build(serving)
        return pool

    def _build(self, serving: list[Load]) -> Pool:
        members = tuple(sorted(serving, key=lambda load: load.id))
        eligible = tuple(load for load in members if load.eligible)
        passed_over = tuple((load.id, load.standing) for load in members if not load.eligible)
        loads = eligible or _least_bad(members)
        return Pool(
            members, loads, {load.id: load for load in loads}, self._ring(members), passed_over, panic=not eligible
        )

    def _ring(self, members: tuple[Load, ...]) -> Ring:
        key = tuple(load.id for load in members)
        ring = self._rings.get(key)
        if ring is None:
            if len(self._rings) >= _RINGS:
                self._rings.clear()
            self._rings[key] = ring = Ring(key)
        return ring


def _least_bad(members: tuple[Load, ...]) -> tuple[Load, ...]:
    """When nobody looks healthy our view is probably stale: try those that once were, then those never seen."""
    served = tuple(load for load in members if load.state is not State.STARTING and not load.draining)
    idle = tuple(load for load in members if not load.draining)
    return served or idle or members
