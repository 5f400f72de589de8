"""A binding as it travels: between this router's life and its next one, and between routers.

Law: what comes from outside is a hint. It names a home, never a working set: nothing counts as bound before the
session was seen here, and a binding of our own is overruled only in favour of a replica that may be chosen.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from router.core.affinity import Binding
from router.core.replica import Load
from router.core.request import Request

if TYPE_CHECKING:
    from router.core.fleet import Fleet

_SAME_START = 1.0  # seconds: engines write their start time with a fraction, others round it
LOST = -1  # the incarnation of a binding whose engine is known to have restarted since


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a session lives, in terms that outlive a process: no counter of ours, no monotonic clock."""

    session: int  # its key, up to 128 bits
    replica: str
    context: int = 0  # tokens of its prompt when this was written
    root: int = 0  # first link of that prompt, 128 bits: tools and system
    tail: int = 0  # its last link: a conversation that names itself is found again by it
    seen: float = 0.0  # epoch seconds
    started_at: float | None = None  # when the engine started that held it, epoch seconds; None = it does not say
    kind: str = "unknown"  # how its last turn had ended


def is_lost(binding: Binding, load: Load) -> bool:
    """Whether the engine restarted since the session was there."""
    if binding.incarnation != load.incarnation:
        return True
    return not _same_start(binding.started_at, load.signals.started_at)


def _same_start(before: float | None, now: float | None) -> bool:
    return before is None or now is None or abs(now - before) <= _SAME_START


def placed(fleet: "Fleet", binding: Binding, wall: float) -> Placed:
    """The binding as it travels. `wall`: the time, epoch seconds."""
    load = fleet.loads.get(binding.replica)
    return Placed(
        binding.session,
        binding.replica,
        binding.context,
        binding.root,
        binding.tail,
        wall - (fleet.now() - binding.seen),
        load.signals.started_at if load is not None else None,
        binding.kind,
    )


def restore(fleet: "Fleet", those: Iterable[Placed], wall: float) -> None:
    """Put bindings back, least recently seen first. What this router knows by itself stands."""
    now = fleet.now()
    for each in those:
        binding = fleet.affinity.binding(each.session) or _binding(fleet, each, now - max(wall - each.seen, 0.0))
        for gone in fleet.affinity.restore(binding, each.root, each.tail):
            fleet.let_go(gone)


def adopt(fleet: "Fleet", other: Placed, wall: float) -> bool:
    """Another router placed or moved this session first: follow it. False where its choice cannot be followed here."""
    load = fleet.loads.get(other.replica)
    if load is None or not load.eligible or not _same_start(other.started_at, load.signals.started_at):
        return False
    binding = fleet.affinity.binding(other.session)
    if binding is not None and binding.replica != other.replica:
        counted = binding.counted
        fleet.bound.forget(binding, fleet.loads)
        binding.replica, binding.incarnation, binding.misses = load.id, load.incarnation, 0
        binding.started_at = other.started_at
        if counted:
            fleet.bound.count(binding, binding.context, fleet.loads)
    restore(fleet, (other,), wall)
    return True


def unknown(fleet: "Fleet", request: Request) -> tuple[int, ...]:
    """Under which keys others may know the session, best first; () where this router need not ask.

    It asks for a session that it does not know, and before it moves one: another may have moved it already.
    """
    found = fleet.affinity.find(request)
    if not found.session or found.session in fleet.pending:
        return ()
    if found.binding is not None:
        load = fleet.loads.get(found.binding.replica)
        at_home = load is not None and load.eligible and not is_lost(found.binding, load)
        return () if at_home else (found.binding.session,)
    if found.named:
        return (found.session,)
    return request.chain[: request.opening - 1 : -1] if request.opening else request.chain[::-1]


def _binding(fleet: "Fleet", given: Placed, seen: float) -> Binding:
    load = fleet.loads.get(given.replica)
    return Binding(
        given.session,
        given.replica,
        load.incarnation if load is not None else 0,  # it is not here yet: a new load begins at 0
        given.context,
        given.root,
        given.tail,
        seen,
        kind=given.kind,
        started_at=given.started_at,
        recalled=True,
        told=given.context,
        told_at=seen,
    )
