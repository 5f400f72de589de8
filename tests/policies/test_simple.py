"""The policies that know no prefix: each table row is a fleet and what becomes of a request there."""

from collections import Counter
from dataclasses import replace

import pytest

from router.core.decision import Decision, Held, Home, Reason, decide
from router.core.replica import Signals
from router.policies import load as policy
from router.policies import names
from router.testing import load, request, snapshot

FRESH = {"signals_at": 99.0}
STALE = {"signals_at": 90.0}


def fleet(**inflight):
    return [load(name, inflight=count) for name, count in inflight.items()]


@pytest.mark.parametrize(
    ("tick", "goes_to"),
    [(0, "a"), (1, "b"), (2, "c"), (3, "a"), (1_000_000_000_000, "b")],
)
def test_round_robin_takes_turns_by_tick(tick, goes_to):
    assert policy("round_robin").choose(request(), snapshot("c", "a", "b", tick=tick)) == Decision(goes_to, Reason.TURN)


def test_round_robin_stays_fair_while_a_replica_is_excluded():
    """The neighbour of the excluded one does not get its share on top of its own."""
    turns = [snapshot("a", "c", "d", absent={"b": "ejected"}, tick=tick) for tick in range(300)]
    assert Counter(policy("round_robin").choose(request(), turn).replica for turn in turns) == dict.fromkeys("acd", 100)


def test_random_is_uniform_and_repeatable():
    draws = [policy("random").choose(request(), snapshot(*"abcd", tick=tick)) for tick in range(4_000)]
    again = [policy("random").choose(request(), snapshot(*"abcd", tick=tick)) for tick in range(4_000)]
    counts = Counter(draw.replica for draw in draws)
    assert draws == again
    assert {draw.reason for draw in draws} == {Reason.CHANCE}
    assert set(counts) == set("abcd")
    assert all(850 < count < 1150 for count in counts.values())


@pytest.mark.parametrize(
    ("loads", "goes_to"),
    [
        (fleet(a=3, b=1, c=2), "b"),
        (fleet(a=1, b=1, c=0), "c"),
        # A fresh scrape shows other clients' requests.
        ([load("a", inflight=1, signals=Signals(running=9.0, waiting=2.0), **FRESH), load("b", inflight=5)], "b"),
        # An old one is unknown: our own count stands in.
        ([load("a", inflight=1, signals=Signals(running=9.0, waiting=2.0), **STALE), load("b", inflight=5)], "a"),
        # A fresh scrape that says nothing of requests is unknown too, not zero.
        ([load("a", inflight=3, signals=Signals(kv_usage=0.5), **FRESH), load("b", inflight=2)], "b"),
        # A scrape never hides what we sent: neither before it ...
        ([load("a", inflight=4, signals=Signals(running=0.0, waiting=0.0), **FRESH), load("b", inflight=3)], "b"),
        # ... nor since.
        (
            [
                load("a", inflight=4, signals=Signals(running=6.0), dispatched_since_scrape=2, **FRESH),
                load("b", inflight=7),
            ],
            "b",
        ),
    ],
)
def test_least_loaded_goes_where_the_fewest_are_in_flight(loads, goes_to):
    """F109"""
    decision = policy("least_loaded").choose(request(), snapshot(*loads, now=100.0))
    assert decision == Decision(goes_to, Reason.LOAD)


def test_least_loaded_rotates_among_equals_only():
    """F109: an idle fleet does not send everything to its first replica."""
    loads = fleet(a=2, b=1, c=1, d=1)
    chosen = [policy("least_loaded").choose(request(), snapshot(*loads, tick=tick)).replica for tick in range(300)]
    assert Counter(chosen) == dict.fromkeys("bcd", 100)


def test_least_loaded_fills_a_fleet_evenly():
    loads = fleet(a=0, b=0, c=0, d=0)
    for tick in range(42):
        chosen = policy("least_loaded").choose(request(), snapshot(*loads, tick=tick)).replica
        next(load for load in loads if load.id == chosen).inflight += 1
    assert sorted(load.inflight for load in loads) == [10, 10, 11, 11]


def test_two_choices_never_takes_the_most_loaded():
    """Two distinct draws: one of them is always better than the worst."""
    loads = fleet(a=0, b=1, c=2, d=9)
    counts = Counter(
        policy("two_choices").choose(request(), snapshot(*loads, tick=tick)).replica for tick in range(3_000)
    )
    assert set(counts) == {"a", "b", "c"}
    assert 1_350 < counts["a"] < 1_650  # a is in half of the pairs
    assert 850 < counts["b"] < 1_150  # b with c or d: a third


def test_two_choices_is_uniform_among_equals():
    counts = Counter(
        policy("two_choices").choose(request(), snapshot(*"abc", tick=tick)).replica for tick in range(3_000)
    )
    assert all(850 < counts[name] < 1_150 for name in "abc")


def test_two_choices_with_one_replica_has_no_choice():
    assert policy("two_choices").choose(request(), snapshot("a")) == Decision("a", Reason.ONLY)


@pytest.mark.parametrize("name", ["round_robin", "random", "least_loaded", "two_choices"])
@pytest.mark.parametrize(
    ("home", "held", "expected_cached"),
    [
        (None, None, 0),
        (Home("a", Reason.SESSION, 700), None, 700),
        (Home("a", Reason.SESSION, 700), Held("a", 400), 700),
        (Home("a", Reason.SESSION, 700, lost=True), None, 0),
        (Home("b", Reason.SESSION, 700), Held("a", 400), 400),
        (Home("b", Reason.SESSION, 700), Held("b", 400), 0),
    ],
)
def test_what_is_expected_is_what_the_chosen_replica_holds(name, home, held, expected_cached):
    seen = snapshot("a", home=home, held=held, prompt_tokens=1000)
    assert policy(name).choose(request(), seen).expected_cached == expected_cached


@pytest.mark.parametrize("name", names())
def test_a_panic_says_so_whoever_chose(name):
    seen = snapshot("a", "b", panic=True)
    decision = decide(policy(name), request(), seen)
    assert decision.reason is Reason.PANIC
    assert decision == replace(policy(name).choose(request(), seen), reason=Reason.PANIC)


def test_without_a_panic_or_state_the_policy_decides():
    assert decide(policy("round_robin"), request(), snapshot("a", "b", tick=1)) == Decision("b", Reason.TURN)


def test_a_hold_stays_a_hold_in_a_panic():
    assert decide(Holds(), request(), snapshot("a", panic=True)) == Decision(None, Reason.HOLD)


class Holds:
    name = "holds"

    def choose(self, request, snapshot):
        return Decision(None, Reason.HOLD)


@pytest.mark.parametrize("name", names())
def test_state_on_a_replica_overrules_every_policy(name):
    seen = snapshot("a", "b", pinned="b", home=Home("b", Reason.SESSION, 70), prompt_tokens=100, panic=True)
    assert decide(policy(name), request(), seen) == Decision("b", Reason.RESPONSE, 70)
    assert decide(policy(name), request(), replace(seen, home=None)) == Decision("b", Reason.RESPONSE, 0)
