"""`longest_prefix`: the replica that holds the prompt, unless it holds too little or the fleet is uneven."""

import pytest

from router.core.decision import Decision, Held, Home, Reason
from router.core.replica import Signals
from router.policies import load as policy
from router.testing import load, request, snapshot

IDLE = (load("a"), load("b"), load("c"))
UNEVEN = (load("a", inflight=5), load("b", inflight=37), load("c", inflight=6))


@pytest.mark.parametrize(
    ("loads", "held", "decision"),
    [
        (IDLE, Held("b", 900), Decision("b", Reason.PREFIX, 900)),
        (IDLE, Held("b", 500), Decision("b", Reason.PREFIX, 500)),
        (IDLE, Held("b", 499), Decision("a", Reason.LOAD, 0, (("b", "short"),))),
        (IDLE, Held("a", 499), Decision("a", Reason.LOAD, 499)),  # least loaded, and still holds what it holds
        (IDLE, None, Decision("a", Reason.LOAD)),
        (IDLE, Held("gone", 900), Decision("a", Reason.LOAD)),
        (UNEVEN, Held("b", 900), Decision("a", Reason.LOAD, 0, (("b", "uneven"),))),
        (UNEVEN, Held("a", 900), Decision("a", Reason.LOAD, 900)),
        ((load("a", inflight=5), load("b", inflight=36)), Held("b", 900), Decision("b", Reason.PREFIX, 900)),
    ],
)
def test_the_holder_is_followed_if_it_holds_enough_and_the_fleet_is_even(loads, held, decision):
    assert policy("longest_prefix").choose(request(), snapshot(*loads, held=held, prompt_tokens=1000)) == decision


def test_other_clients_count_for_evenness():
    loads = (load("a"), load("b", signals=Signals(running=30.0, waiting=5.0), signals_at=99.0))
    seen = snapshot(*loads, held=Held("b", 900), prompt_tokens=1000, now=100.0)
    assert policy("longest_prefix").choose(request(), seen) == Decision("a", Reason.LOAD, 0, (("b", "uneven"),))


def test_home_says_better_than_a_shared_link_what_is_cached():
    seen = snapshot(*IDLE, held=Held("b", 600), home=Home("b", Reason.SESSION, 950), prompt_tokens=1000)
    assert policy("longest_prefix").choose(request(), seen) == Decision("b", Reason.PREFIX, 950)


def test_a_prompt_of_unknown_length_follows_whoever_holds_anything():
    assert policy("longest_prefix").choose(request(), snapshot(*IDLE, held=Held("b", 1))).replica == "b"
    assert policy("longest_prefix").choose(request(), snapshot(*IDLE, held=Held("b", 0))).reason is Reason.LOAD


def test_equals_take_turns():
    chosen = {policy("longest_prefix").choose(request(), snapshot(*IDLE, tick=tick)).replica for tick in range(3)}
    assert chosen == {"a", "b", "c"}


def test_options_set_both_limits():
    strict = policy("longest_prefix", {"threshold": 0.95, "max_spread": 4})
    even = (load("a"), load("b", inflight=3))
    assert strict.choose(request(), snapshot(*even, held=Held("b", 900), prompt_tokens=1000)).replica == "a"
    assert strict.choose(request(), snapshot(*even, held=Held("b", 950), prompt_tokens=1000)).replica == "b"
    assert strict.choose(request(), snapshot(*UNEVEN, held=Held("b", 950), prompt_tokens=1000)).replica == "a"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"threshold": 1.5}, "threshold must be a number from 0 to 1, not 1.5"),
        ({"threshold": None}, "threshold must be a number from 0 to 1, not None"),
        ({"max_spread": -1}, "max_spread must be a number of at least 0, not -1"),
    ],
)
def test_wrong_options_are_named(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        policy("longest_prefix", options)
