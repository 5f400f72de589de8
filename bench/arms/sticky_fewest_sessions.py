"""Sticky sessions, new ones to whoever has the fewest, as `sticky_least_loaded` of the vLLM router and many proxies."""

from dataclasses import dataclass
from typing import ClassVar

from router.core.cost import lowest
from router.core.decision import Decision, Reason, Snapshot, expected
from router.core.request import Request


@dataclass(frozen=True, slots=True)
class StickyFewestSessions:
    name: ClassVar[str] = "sticky_fewest_sessions"

    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        home = snapshot.home
        if home is not None and home.replica in snapshot.by_id:
            return Decision(home.replica, home.reason, home.expected_cached)
        counts = [load.bound_sessions + load.inflight for load in snapshot.loads]
        choice = snapshot.loads[lowest(counts, snapshot.tick)].id
        return Decision(choice, Reason.LOAD, expected(snapshot, choice))
