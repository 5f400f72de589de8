"""The contract between the map and the policies: `Snapshot` in, `Decision` out."""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Protocol

from router.core.replica import Load
from router.core.request import Request
from router.core.ring import Ring
from router.core.value import value


class Reason(StrEnum):
    """Which branch chose. A metric label: few, fixed, never built from input."""

    SESSION = "session"  # at home by its session's binding
    PREFIX = "prefix"  # at home by the deepest known hash of its chain
    RESPONSE = "response"  # the replica that made the response it names
    RING = "ring"  # first eligible on the ring
    SPREAD = "spread"  # further along the ring, because the first was dearer or full
    TURN = "turn"  # round robin's next
    CHANCE = "chance"  # drawn
    LOAD = "load"  # least loaded
    ONLY = "only"  # nothing to choose from
    PANIC = "panic"  # nobody is eligible; least bad
    HOLD = "hold"  # not now: the waiting room


@value
class Home:
    """Where a session's KV cache should be."""

    replica: str
    reason: Reason  # SESSION or PREFIX: how it was found
    expected_cached: int  # tokens of this prompt that home should hold; 0 if lost
    lost: bool = False  # restarted, or seen to have evicted the session
    extends: bool = True  # False: the prompt was rewritten (compaction), so moving is free
    evicted: bool = False  # home's cache was full of what was used since: most of it is gone, so moving is free


@value
class Held:
    """The deepest link of the chain that any replica is known to hold, whoever's session it was."""

    replica: str
    tokens: int


@value
class Snapshot:
    """The fleet as one request may see it. Policies read it and change nothing.

    `loads` is never empty and ordered by id; `by_id` holds the same objects. A replica that may not be
    chosen is in neither: eligibility is decided before a policy sees anything.
    """

    now: float
    tick: int  # leases so far; turns and draws come from it
    loads: tuple[Load, ...]
    by_id: Mapping[str, Load]
    ring: Ring  # over every known member, eligible or not, so a short absence moves nobody else
    home: Home | None = None
    held: Held | None = None
    prompt_tokens: int = 0  # this request's, estimated
    mean_context: float = 0.0  # tokens, of the sessions bound now; a default where none is
    pinned: str = ""  # state on the replica forces this one (previous_response_id)
    panic: bool = False  # nobody is healthy: `loads` are the least bad
    passed_over: tuple[tuple[str, str], ...] = ()  # (replica, why) for members that are not eligible
    reuse: float = 1.0  # share of recent prompts that had been sent before
    hold: bool = False  # admission: no replica has room for this session now


@value
class Decision:
    """Where a request goes and why. `replica` is None only for a hold."""

    replica: str | None
    reason: Reason
    expected_cached: int = 0  # tokens of the prompt that should be cached there
    passed_over: tuple[tuple[str, str], ...] = ()  # (replica, why): eligible ones that came first and were not taken


class Policy(Protocol):
    """Chooses a replica. One method, no state that outlives a call, no side effect."""

    @property
    def name(self) -> str: ...

    def choose(self, request: Request, snapshot: Snapshot) -> Decision: ...


def expected(snapshot: Snapshot, replica: str) -> int:
    """Tokens of this prompt that `replica` should hold: what home holds, else the deepest known link, else none."""
    home, held = snapshot.home, snapshot.held
    if home and home.replica == replica and not home.lost:
        return home.expected_cached
    return held.tokens if held and held.replica == replica else 0


def decide(policy: Policy, request: Request, snapshot: Snapshot) -> Decision:
    """Ask the policy, unless admission holds or state on a replica has already decided.

    In a panic the reason says so, whoever chose.
    """
    if snapshot.pinned:
        held = snapshot.home.expected_cached if snapshot.home and snapshot.home.replica == snapshot.pinned else 0
        return Decision(snapshot.pinned, Reason.RESPONSE, held)
    if snapshot.hold:
        return Decision(None, Reason.HOLD)
    decision = policy.choose(request, snapshot)
    if snapshot.panic and decision.replica is not None:
        return replace(decision, reason=Reason.PANIC)
    return decision
