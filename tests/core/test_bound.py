"""The working set by arithmetic: who was used since, and what an engine has let go of by then."""

import pytest

from router.core.decision import Decision, Reason
from router.core.fleet import Fleet, FleetOptions
from router.core.replica import Replica, Signals
from router.core.request import Request, Usage

CAPACITY = 100_000.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def fleet_of(clock: Clock, capacity: float | None = CAPACITY) -> Fleet:
    fleet = Fleet(clock, FleetOptions())
    fleet.update([Replica("a:1", "http://a:1"), Replica("b:1", "http://b:1")])
    for load in fleet.loads.values():
        fleet.probed(load, True)
        fleet.observe(load, Signals(kv_capacity_tokens=capacity))
    return fleet


def go(fleet: Fleet, clock: Clock, name: int, tokens: int = 40_000) -> None:
    """One turn of a session on a:1; the next comes a while later."""
    with fleet.lease(session(name, tokens), Decision("a:1", Reason.RING)) as lease:
        lease.first_byte()
        lease.settle(Usage(tokens, 0, 0))
    clock.now += 30.0


def session(name: int, tokens: int = 40_000) -> Request:
    return Request("chat", session=name, source="x-session-id", key=name, body_bytes=4 * tokens)


@pytest.mark.parametrize(
    ("since", "kept", "evicted"),
    [
        ((), 40_000, False),
        ((30_000,), 40_000, False),
        ((30_000, 40_000), 30_000, False),  # the end of it had to go
        ((30_000, 55_000), 15_000, True),
        ((60_000, 60_000), 0, True),
    ],
)
def test_what_was_used_since_pushes_a_session_out(since: tuple[int, ...], kept: int, evicted: bool) -> None:
    clock = Clock()
    fleet = fleet_of(clock)
    go(fleet, clock, 1)
    for number, tokens in enumerate(since):
        go(fleet, clock, 10 + number, tokens)
    home = fleet.snapshot(session(1)).home
    assert home is not None
    assert (home.expected_cached, home.evicted, home.lost) == (kept, evicted, False)


def test_the_same_session_again_pushes_nobody_out() -> None:
    clock = Clock()
    fleet = fleet_of(clock)
    go(fleet, clock, 1)
    for _ in range(10):
        go(fleet, clock, 2)
    home = fleet.snapshot(session(1)).home
    assert home is not None
    assert (home.expected_cached, home.evicted) == (40_000, False)


def test_home_is_believed_warm_where_the_engine_does_not_say_how_much_it_holds() -> None:
    clock = Clock()
    fleet = fleet_of(clock, capacity=None)
    for name in range(1, 20):
        go(fleet, clock, name)
    home = fleet.snapshot(session(1)).home
    assert home is not None
    assert (home.expected_cached, home.evicted) == (40_000, False)


def test_home_is_believed_warm_where_others_send_too() -> None:
    """What we saw of the order in which its cache was used is then not all of it."""
    clock = Clock()
    fleet = fleet_of(clock)
    load = fleet.loads["a:1"]
    asked = 0.0
    for name in range(1, 20):
        fleet.observe(load, Signals(kv_capacity_tokens=CAPACITY, cache_queries=asked))
        go(fleet, clock, name)
        asked += 4 * 40_000
    assert load.is_shared
    home = fleet.snapshot(session(1)).home
    assert home is not None
    assert not home.evicted


def test_alone_at_a_replica_its_counters_agree_with_ours() -> None:
    clock = Clock()
    fleet = fleet_of(clock)
    load = fleet.loads["a:1"]
    for name in range(1, 20):
        fleet.observe(load, Signals(kv_capacity_tokens=CAPACITY, cache_queries=name * 40_000.0))
        go(fleet, clock, name)
    assert not load.is_shared
