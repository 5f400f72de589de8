"""Who may take new requests: faults and probes in, a state out. All rules of ejection are here.

    what was seen                                            counts as    effect
    refused, DNS, TLS, connect timeout                       UNREACHED    ejected at once
    reset, garbage, 5xx, first byte or idle timeout          FAULT        ejected after `eject_after` in a row
    429, 503                                                 PUSHBACK     cooling, for Retry-After or a second
    other 4xx, the client hung up                            (nothing)    neutral
    a success begins to answer                               (nothing)    back at once, on trial
    a success ends                                           (nothing)    clears all of it
    a probe answered badly                                   -            ejected after three in a row unless bytes flow
    a probe not answered in time                             -            nothing: busy engines answer late

An ejected replica returns with the first good probe after its time out, which doubles with each ejection in a row.
"""

from dataclasses import dataclass
from enum import StrEnum

from router.core.replica import Load, Signals, State


class Fault(StrEnum):
    UNREACHED = "unreached"
    FAULT = "fault"
    PUSHBACK = "pushback"


@dataclass(frozen=True, slots=True)
class HealthRules:
    eject_after: int = 5  # faults in a row: an engine that answers 500 to a bad prompt gets good ones in between
    eject_seconds: float = 1.0  # first time out; a restarting engine needs longer and then gets longer
    eject_seconds_max: float = 30.0  # a recovered replica is never ignored for longer
    pushback_seconds: float = 1.0  # where the engine names no Retry-After; vLLM's queue-full does not
    pushback_seconds_max: float = 60.0  # a Retry-After of hours would lose the replica
    bad_probes: int = 3  # in a row
    bytes_fresh_seconds: float = 10.0  # real traffic this recent outranks probes


def eject(load: Load, now: float, rules: HealthRules) -> None:
    time_out = min(rules.eject_seconds * 2.0**load.ejections, rules.eject_seconds_max)
    load.state = State.EJECTED
    load.until = max(load.until, now + time_out)
    load.ejections = min(load.ejections + 1, 16)


def blame(load: Load, fault: Fault, now: float, rules: HealthRules, retry_after: float | None = None) -> None:
    """Record one fault of the replica's own."""
    if fault is Fault.PUSHBACK:
        wait = rules.pushback_seconds if retry_after is None else min(max(retry_after, 0.0), rules.pushback_seconds_max)
        load.until = max(load.until, now + wait)
        if load.state is State.UP:
            load.state = State.COOLING
        return
    load.failures += 1
    if load.state is State.STARTING:
        return
    if fault is Fault.UNREACHED or load.failures >= rules.eject_after:
        eject(load, now, rules)


def answering(load: Load, now: float) -> None:
    """A success began to come: real traffic outranks every probe. Faults are forgotten only at its end, because a
    replica that always breaks off begins well each time."""
    load.bad_probes = 0
    load.good_at = now
    if load.state is not State.UP:
        load.state, load.until = State.UP, 0.0


def succeeded(load: Load) -> None:
    """A success came to its end."""
    load.failures = load.ejections = 0


def probed(load: Load, ok: bool | None, now: float, rules: HealthRules) -> None:
    """One active probe: True answered well, False answered badly or refused, None no answer in time."""
    if ok is None:
        return
    if not ok:
        load.bad_probes += 1
        fresh = load.good_at is not None and now - load.good_at < rules.bytes_fresh_seconds
        if load.state in (State.UP, State.COOLING) and load.bad_probes >= rules.bad_probes and not fresh:
            eject(load, now, rules)
        return
    load.bad_probes = 0
    if load.state is State.STARTING:
        load.state, load.failures = State.UP, 0
    elif load.state is State.EJECTED and now >= load.until:
        # On trial: a replica whose /health lies is out again after one fault, not after five.
        load.state, load.failures = State.UP, rules.eject_after - 1


def shows_restart(before: Signals, after: Signals) -> bool:
    """Two scrapes in a row: the engine's start time changed, or a counter went back."""
    was, count = before.cache_queries, after.cache_queries
    if was is not None and count is not None and count < was:
        return True
    if before.started_at is None or after.started_at is None:
        return False
    return abs(after.started_at - before.started_at) > 1.0


def relax(load: Load, now: float) -> None:
    """Cooling ends by itself."""
    if load.state is State.COOLING and now >= load.until:
        load.state = State.UP
