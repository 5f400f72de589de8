"""The replica that holds most of this prompt, unless the fleet is uneven: what cache-aware routers do.

SGLang's router calls these knobs `cache_threshold` and `balance_abs_threshold`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from router.core.cost import load_of, lowest
from router.core.decision import Decision, Reason, Snapshot, expected
from router.core.request import Request
from router.policies import in_range


@dataclass(frozen=True, slots=True)
class LongestPrefix:
    """Follows the deepest known link; takes the least loaded where that is too short or the fleet too uneven."""

    name: ClassVar[str] = "longest_prefix"

    threshold: float = 0.5  # of the prompt's tokens; less is a shared preamble, not a conversation
    max_spread: float = 32  # requests in flight between the most and the least loaded, as cache-aware routers have it

    def __post_init__(self) -> None:
        in_range("threshold", self.threshold, 0, 1)
        in_range("max_spread", self.max_spread, 0)

    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        inflight = [load_of(load, snapshot.now) for load in snapshot.loads]
        held = snapshot.held
        if held is None or held.replica not in snapshot.by_id:
            return self._least(snapshot, inflight)
        if held.tokens <= 0 or held.tokens < self.threshold * snapshot.prompt_tokens:
            return self._least(snapshot, inflight, (held.replica, "short"))
        if max(inflight) - min(inflight) >= self.max_spread:
            return self._least(snapshot, inflight, (held.replica, "uneven"))
        return Decision(held.replica, Reason.PREFIX, expected(snapshot, held.replica))

    def _least(self, snapshot: Snapshot, inflight: Sequence[float], *holder: tuple[str, str]) -> Decision:
        replica = snapshot.loads[lowest(inflight, snapshot.tick)].id
        passed_over = tuple(one for one in holder if one[0] != replica)
        return Decision(replica, Reason.LOAD, expected(snapshot, replica), passed_over)
