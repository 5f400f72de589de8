"""The least cost for every turn anew, as Dynamo's KV router: weighted prefill plus decode, lowest wins.

Left out: its event stream from the engines; here the map says what the session's home should hold.
"""

from dataclasses import dataclass
from typing import ClassVar

from router.core.cost import lowest
from router.core.decision import Decision, Reason, Snapshot, expected
from router.core.replica import Load
from router.core.request import Request


@dataclass(frozen=True, slots=True)
class DynamoCost:
    name: ClassVar[str] = "dynamo_cost"

    overlap_weight: float = 1.0  # of prefill against decode; the published default

    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        costs = [self._cost(load, snapshot) for load in snapshot.loads]
        choice = snapshot.loads[lowest(costs, snapshot.tick)].id
        return Decision(choice, Reason.LOAD, expected(snapshot, choice))

    def _cost(self, load: Load, snapshot: Snapshot) -> float:
        """In tokens: prefill owed there and our own, plus the contexts that decode there."""
        own = snapshot.prompt_tokens - expected(snapshot, load.id)
        return self.overlap_weight * (load.queued_tokens + own) + load.inflight * snapshot.mean_context
