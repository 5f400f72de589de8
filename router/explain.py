"""Where a request would go and why: the proxy's own reading, map and decision, with nothing sent or remembered."""

from collections.abc import Mapping, Sequence
from typing import Any

from router.core.cost import prefill_seconds
from router.core.decision import Policy, Snapshot, decide, expected
from router.core.fleet import Fleet
from router.core.keys import Sources
from router.core.pools import NoReplica
from router.core.request import Request
from router.dialects import Head, dialect_of, read


class Explainer:
    def __init__(self, fleet: Fleet, policy: Policy, sources: Sources) -> None:
        self._fleet, self._policy, self._sources = fleet, policy, sources

    def __call__(self, path: str, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> Mapping[str, Any]:
        """The verdict, ready for JSON. `cost` is seconds to the first token; nothing of the request's text is in it."""
        dialect = dialect_of(path)
        request = read(Head(b"POST", path, b"", headers), (body,), self._sources, self._fleet.only_model)
        verdict = {"dialect": dialect.name, "model": request.model, "session_source": request.source}
        try:
            snapshot = self._fleet.snapshot(request)
        except NoReplica as error:
            return verdict | {"replica": None, "policy": self._policy.name, "reason": f"no replica: {error.reason}"}
        decision = decide(self._policy, request, snapshot)
        home = snapshot.home
        return verdict | {
            "replica": decision.replica,
            "policy": self._policy.name,
            "reason": decision.reason.value,
            "prompt_tokens": snapshot.prompt_tokens,
            "expected_cached_tokens": decision.expected_cached,
            "home": home.replica if home else None,
            "home_lost": home.lost if home else None,
            "links": len(request.chain),
            "candidates": self._candidates(request, snapshot, dict(decision.passed_over + snapshot.passed_over)),
        }

    def _candidates(self, request: Request, snapshot: Snapshot, why: Mapping[str, str]) -> list[dict[str, Any]]:
        rows = []
        for replica in snapshot.ring.walk(request.key):
            load = self._fleet.loads[replica]
            held = min(expected(snapshot, replica), snapshot.prompt_tokens)
            cost = prefill_seconds(load, max(snapshot.prompt_tokens - held, 0), snapshot.now)
            rows.append(
                {
                    "replica": replica,
                    "state": load.standing,
                    "inflight": load.inflight,
                    "queued_tokens": load.queued_tokens,
                    "bound_tokens": load.bound_tokens,
                    "held_tokens": held,
                    "cost": round(cost, 3),
                    "passed_over": why.get(replica),
                }
            )
        return rows
