"""For tests of policies: fleets and requests in one line each, and the contract that every policy keeps.

Nothing here needs a test framework; `check_policy` raises AssertionError with the fleet it failed on.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import Any

from xxhash import xxh3_128_intdigest

from router.core.decision import Decision, Held, Home, Policy, Reason, Snapshot, decide
from router.core.replica import Load, Replica, Signals, State
from router.core.request import Request
from router.core.ring import Ring, mix

PROMPT = 10_000  # tokens of the prompts in `check_policy`: a small agent turn


def load(id: str = "a", **counters: Any) -> Load:
    """A healthy replica that does nothing, but for the counters given: `load("a", inflight=3)`."""
    labels = counters.pop("labels", {})
    return Load(Replica(id, f"http://{id}", labels=labels), id, **({"state": State.UP} | counters))


def snapshot(*replicas: Load | str, absent: Mapping[str, str] | None = None, **rest: Any) -> Snapshot:
    """A fleet as a policy sees it: `snapshot("b", load("a", inflight=3), absent={"c": "ejected"})`.

    Absent replicas are on the ring and in `passed_over`, as the map leaves those that may not be chosen.
    `rest` are further fields of `Snapshot`.
    """
    loads = tuple(sorted((load(one) if isinstance(one, str) else one for one in replicas), key=lambda one: one.id))
    by_id = {one.id: one for one in loads}
    absent = absent or {}
    ring = Ring((*by_id, *absent))
    given: dict[str, Any] = {"now": 0.0, "tick": 0, "ring": ring, "passed_over": tuple(sorted(absent.items()))}
    return Snapshot(loads=loads, by_id=by_id, **(given | rest))


def request(session: str | None = "a", parts: Iterable[str] = ("system", "hello"), **rest: Any) -> Request:
    """A request of a session, or of a conversation that names itself by its parts: system prompt first, then messages.

    `request(None, ())` has nothing to hash. `rest` are further fields of `Request`.
    """
    chain, sizes = _chain(parts)
    named = mix(session) if session else 0
    opening = min(1, len(chain) - 1) if chain else 0
    own = chain[opening] & 0xFFFF_FFFF_FFFF_FFFF if chain else 0
    given: dict[str, Any] = {
        "dialect": "chat",
        "model": "m",
        "session": named,
        "source": "x-session-id" if named else "conversation" if chain else "none",
        "key": named or own,
        "chain": chain,
        "sizes": sizes,
        "opening": opening,
        "body_bytes": sizes[-1] if sizes else 0,
    }
    return Request(**(given | rest))


def check_policy(policy: Policy) -> None:
    """Hold a policy to the contract, over several hundred fleets from 1 to 64 replicas.

    It chooses an eligible replica, or none with `Reason.HOLD`; the same again for the same input, in any order;
    changes nothing; gives a `Reason`; and expects no more cached tokens than the prompt has.
    """
    _require(isinstance(policy.name, str) and policy.name != "", f"{policy!r} needs a name")
    cases = tuple(_cases())
    first = [_check_once(policy, case) for case in cases]
    for case, before in zip(reversed(cases), reversed(first), strict=True):
        again = _choose(policy, case, _twin(case.snapshot))
        _require(again == before, f"{policy.name}, {case}: chose {before}, then for the same input {again}")


@dataclass(frozen=True, slots=True)
class _Case:
    title: str
    request: Request
    snapshot: Snapshot

    def __str__(self) -> str:
        return self.title


def _check_once(policy: Policy, case: _Case) -> Decision:
    before = _frozen(case.snapshot)
    decision = _choose(policy, case, case.snapshot)
    said = f"{policy.name}, {case}: {decision}"
    _require(_frozen(case.snapshot) == before, f"{said} changed the snapshot or a load")
    _require(isinstance(decision, Decision), f"{said} is not a Decision")
    _require(isinstance(decision.reason, Reason), f"{said}: the reason is not a Reason")
    _require((decision.replica is None) == (decision.reason is Reason.HOLD), f"{said}: no replica, if and only if HOLD")
    _require(
        decision.replica is None or decision.replica in case.snapshot.by_id, f"{said}: that replica is not eligible"
    )
    _require(
        0 <= decision.expected_cached <= case.snapshot.prompt_tokens, f"{said}: expected_cached is not in the prompt"
    )
    _require(decision.replica not in dict(decision.passed_over), f"{said}: chose what it passed over")
    if case.snapshot.panic and decision.replica:
        _require(decide(policy, case.request, case.snapshot).reason is Reason.PANIC, f"{said}: a panic must say so")
    return decision


def _choose(policy: Policy, case: _Case, seen: Snapshot) -> Decision:
    try:
        return policy.choose(case.request, seen)
    except Exception as error:
        raise AssertionError(f"{policy.name}, {case}: raised {error!r}") from error


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)


def _frozen(snapshot: Snapshot) -> tuple[object, ...]:
    """What a careless policy could change, by value: loads themselves compare by identity."""
    loads = tuple(tuple(getattr(one, field.name) for field in fields(Load)) for one in snapshot.loads)
    return loads, dict(snapshot.by_id), snapshot.ring.members


def _twin(snapshot: Snapshot) -> Snapshot:
    """The same fleet in other objects."""
    loads = tuple(copy(one) for one in snapshot.loads)
    return replace(snapshot, loads=loads, by_id={one.id: one for one in loads})


def _chain(parts: Iterable[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    chain: list[int] = []
    sizes: list[int] = []
    for part in parts:
        raw = part.encode()
        chain.append(xxh3_128_intdigest((chain[-1] if chain else 0).to_bytes(16, "big") + raw))
        sizes.append((sizes[-1] if sizes else 0) + len(raw))
    return tuple(chain), tuple(sizes)


def _cases() -> Iterator[_Case]:
    for count in (1, 2, 3, 7, 64):
        for mood, build in _FLEETS:
            for tick in (0, 1, 12_345):
                fleet = build(count, tick)
                for kind, asked in _requests():
                    yield _Case(f"{count} replicas, {mood}, {kind}, tick {tick}", asked, fleet)


def _requests() -> tuple[tuple[str, Request], ...]:
    return (
        ("a session", request("s")),
        ("a conversation without a name", request(None, ("tools", "be brief", "hello", "hi", "go on"))),
        ("a session whose body was not read", request("s", (), body_bytes=4 * PROMPT)),
        ("nothing to hash", request(None, ())),
    )


def _idle(count: int, tick: int) -> Snapshot:
    return snapshot(*_ids(count), tick=tick, prompt_tokens=PROMPT)


def _busy(count: int, tick: int) -> Snapshot:
    """Uneven, with scrapes that are fresh, old, partly unknown or missing."""
    loads = [_busy_load(name, mix(name, tick)) for name in _ids(count)]
    home = Home(loads[tick % count].id, Reason.SESSION, PROMPT - 100)
    return snapshot(*loads, tick=tick, now=100.0, prompt_tokens=PROMPT, mean_context=60_000.0, home=home)


def _busy_load(name: str, draw: int) -> Load:
    return load(
        name,
        inflight=draw % 50,
        queued_tokens=draw % 200_000,
        bound_tokens=draw % 1_000_000,
        prefill_rate=1_000.0 + draw % 20_000,
        signals=Signals(running=None if draw % 3 else float(draw % 30), waiting=float(draw % 7), kv_usage=0.9),
        signals_at=(None, 0.0, 99.5)[draw % 3],
    )


def _one_hot(count: int, tick: int) -> Snapshot:
    """All load on the replica that holds the prefix."""
    ids = _ids(count)
    loads = [load(name, inflight=100 if name == ids[0] else 0, queued_tokens=900_000) for name in ids]
    return snapshot(*loads, tick=tick, prompt_tokens=PROMPT, held=Held(ids[0], PROMPT))


def _home_lost(count: int, tick: int) -> Snapshot:
    home = Home(_ids(count)[-1], Reason.PREFIX, 0, lost=True, extends=False)
    return snapshot(*_ids(count), tick=tick, prompt_tokens=PROMPT, home=home, held=Held(_ids(count)[0], PROMPT // 3))


def _home_away(count: int, tick: int) -> Snapshot:
    """Home, and who holds the prefix, may not be chosen."""
    home, held = Home("gone", Reason.SESSION, PROMPT), Held("gone", PROMPT)
    absent = {"gone": "draining", "r00-cooling": "cooling"}
    return snapshot(*_ids(count), absent=absent, tick=tick, prompt_tokens=PROMPT, home=home, held=held)


def _panic(count: int, tick: int) -> Snapshot:
    loads = [load(name, state=State.EJECTED, failures=3, until=1e9) for name in _ids(count)]
    return snapshot(*loads, tick=tick, prompt_tokens=PROMPT, panic=True)


def _empty_prompt(count: int, tick: int) -> Snapshot:
    return snapshot(*_ids(count), tick=tick, prompt_tokens=0)


_FLEETS: tuple[tuple[str, Callable[[int, int], Snapshot]], ...] = (
    ("idle", _idle),
    ("busy and uneven", _busy),
    ("one replica holds the prefix and all the load", _one_hot),
    ("home has lost the session", _home_lost),
    ("home may not be chosen", _home_away),
    ("panic", _panic),
    ("a prompt of no tokens", _empty_prompt),
)


def _ids(count: int) -> tuple[str, ...]:
    return tuple(f"r{index:02}" for index in range(count))
