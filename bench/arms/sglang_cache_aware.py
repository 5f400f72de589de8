"""Longest prefix behind a fleet-wide gate, as the cache-aware policy of SGLang's router and its successors.

If the fleet is uneven, shortest queue for everybody; else the longest match if it is long enough; else the least
loaded. Left out: its own tree of text; here the map's links say who holds what, or the session's home does.
"""

from dataclasses import dataclass
from typing import ClassVar

from router.core.cost import load_of, lowest
from router.core.decision import Decision, Reason, Snapshot, expected
from router.core.request import Request


@dataclass(frozen=True, slots=True)
class SglangCacheAware:
    name: ClassVar[str] = "sglang_cache_aware"

    cache_threshold: float = 0.3  # of the prompt; the published default, like the two below
    balance_abs_threshold: float = 64
    balance_rel_threshold: float = 1.5

    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        loads = [load_of(load, snapshot.now) for load in snapshot.loads]
        high, low = max(loads), min(loads)
        least = snapshot.loads[lowest(loads, snapshot.tick)].id
        if high - low > self.balance_abs_threshold and high > self.balance_rel_threshold * low:
            return Decision(least, Reason.LOAD, expected(snapshot, least))
        best = max(snapshot.loads, key=lambda load: expected(snapshot, load.id)).id
        cached = expected(snapshot, best)
        if cached > self.cache_threshold * snapshot.prompt_tokens:
            return Decision(best, Reason.PREFIX, cached)
        return Decision(least, Reason.LOAD, expected(snapshot, least))
