"""The ledger: what clients saw against what the router entered, request by request and in sum.

Law: each request that reached the router has one line in its log, and the outcome on it fits what the client saw.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from bench.chaos.client import Ending

ACCESS = '"router.access"'  # what every line of a request has in it
_SHOWN = 8  # examples per kind of violation: enough to see a pattern


@dataclass(slots=True)
class Book:
    """Endings by nonce, and what was wrong so far."""

    endings: dict[str, Ending] = field(default_factory=dict)
    violations: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def violate(self, kind: str, detail: str = "") -> None:
        self.violations[kind] += 1
        if detail and self.violations[kind] <= _SHOWN:
            self.examples.append(f"{kind}: {detail}")

    def enter(self, ending: Ending) -> None:
        self.endings[ending.nonce] = ending
        if ending.wrong:
            self.violate("seen by a client", f"{ending.nonce} {ending.wrong}")

    @property
    def seen(self) -> Counter[str]:
        """What clients saw, in their words."""
        return Counter(each.what or "wrong" for each in self.endings.values())

    def compare(self, lines: Iterable[str]) -> Counter[str]:
        """The router's log against the endings; returns the outcomes on it."""
        outcomes: Counter[str] = Counter()
        entered: Counter[str] = Counter()
        for line in lines:
            entry = _request(line)
            if entry is None:
                continue
            outcome, nonce = str(entry["outcome"]), str(entry["request_id"])
            outcomes[outcome] += 1
            entered[nonce] += 1
            self._compare_one(nonce, outcome, line)
        for nonce, count in entered.items():
            if count > 1:
                self.violate("entered twice", nonce)
        for nonce, ending in self.endings.items():
            if ending.reached and not entered[nonce]:
                self.violate("not entered", f"{nonce} {ending.what}")
        return outcomes

    def _compare_one(self, nonce: str, outcome: str, line: str) -> None:
        ending = self.endings.get(nonce)
        if ending is None:
            self.violate("nobody's request", line)
        elif ending.reached is False:
            self.violate("a request without a whole head", line)
        elif outcome not in ending.possible:
            self.violate("outcome", f"the client saw {ending.what!r} (HTTP {ending.status}), the log says {line}")


def _request(line: str) -> dict[str, object] | None:
    if ACCESS not in line:
        return None
    found: dict[str, object] = json.loads(line)
    return found
