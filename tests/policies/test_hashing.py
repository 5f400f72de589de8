"""The ring policies: who comes first on it, who comes next, and what makes the first one full."""

from collections import Counter

import pytest

from router.core.decision import Decision, Held, Home, Reason
from router.core.ring import Ring
from router.policies import load as policy
from router.policies.prefix_hash import PrefixHash
from router.testing import load, request, snapshot


def order(asked_key, names="abcd"):
    return list(Ring(names).walk(asked_key))


def test_a_session_goes_to_its_first_replica_on_the_ring():
    asked = request("s")
    first, *_ = order(asked.key)
    seen = [snapshot(*"abcd", tick=tick) for tick in range(20)]
    assert {policy("session_hash").choose(asked, one) for one in seen} == {Decision(first, Reason.RING)}


def test_a_session_whose_replica_is_away_goes_to_the_next_and_says_why():
    asked = request("s")
    first, second, third, fourth = order(asked.key)
    seen = snapshot(third, fourth, absent={first: "ejected", second: "draining"})
    assert policy("session_hash").choose(asked, seen) == Decision(
        third, Reason.SPREAD, passed_over=((first, "ejected"), (second, "draining"))
    )


def test_a_member_that_the_map_gives_no_reason_for_is_absent():
    asked = request("s")
    first, second, *_ = order(asked.key)
    seen = snapshot(second, ring=Ring("abcd"))
    assert policy("session_hash").choose(asked, seen).passed_over == ((first, "absent"),)


def test_the_load_of_a_replica_does_not_move_a_session():
    asked = request("s")
    first, *others = order(asked.key)
    seen = snapshot(load(first, inflight=1000), *others)
    assert policy("session_hash").choose(asked, seen) == Decision(first, Reason.RING)


@pytest.mark.parametrize("name", ["session_hash", "prefix_hash"])
def test_requests_with_nothing_to_hash_are_spread(name):
    """F101: one key for all of them would send them all to one replica."""
    decisions = [policy(name).choose(request(None, ()), snapshot(*"abcd", tick=tick)) for tick in range(2_000)]
    counts = Counter(decision.replica for decision in decisions)
    assert all(400 < counts[replica] < 600 for replica in "abcd")
    assert {decision.reason for decision in decisions} == {Reason.CHANCE}


@pytest.mark.parametrize("name", ["session_hash", "prefix_hash"])
def test_a_ring_without_any_eligible_member_falls_back_on_a_draw(name):
    seen = snapshot("a", "b", ring=Ring(["x", "y"]))
    decision = policy(name).choose(request("s"), seen)
    assert decision.replica in {"a", "b"}
    assert decision.reason is Reason.CHANCE


def test_sessions_with_the_same_stable_prefix_share_a_replica():
    one, other = request("s", ("tools and rules", "fix the bug")), request("t", ("tools and rules", "write a poem"))
    assert one.key != other.key
    goes_to = {policy("prefix_hash").choose(asked, snapshot(*"abcd")).replica for asked in (one, other)}
    assert goes_to == {order(one.chain[0])[0]}


def test_the_stable_prefix_ends_where_the_request_says():
    parts = ("tools and rules", "a long document", "a question")
    asked = request("s", parts, stable=1)
    assert policy("prefix_hash").choose(asked, snapshot(*"abcd")) == Decision(order(asked.chain[1])[0], Reason.RING)


def test_a_body_that_was_not_read_is_hashed_by_its_session():
    asked = request("s", ())
    assert policy("prefix_hash").choose(asked, snapshot(*"abcd")) == Decision(order(asked.key)[0], Reason.RING)


@pytest.mark.parametrize(
    ("inflight", "place", "full"),  # in flight at the 1st, 2nd, ... on the ring; which is taken; which were full
    [
        ((0, 0, 0, 0), 0, 0),
        ((2, 0, 0, 0), 0, 0),  # up to the floor nobody is full
        ((3, 0, 0, 0), 1, 1),
        ((3, 3, 0, 0), 2, 2),
        ((3, 3, 3, 3), 0, 0),  # limit 1.25 x 13 / 4 = 4.06
        ((4, 3, 3, 3), 0, 0),  # limit 1.25 x 14 / 4 = 4.38
        ((5, 3, 3, 3), 1, 1),  # limit 1.25 x 15 / 4 = 4.69
        ((100, 100, 100, 0), 3, 3),  # limit 1.25 x 301 / 4 = 94.06
    ],
)
def test_a_full_replica_is_passed_over_for_its_ring_neighbour(inflight, place, full):
    """F89"""
    asked = request("s")
    ring = order(asked.chain[0])
    seen = snapshot(*(load(name, inflight=count) for name, count in zip(ring, inflight, strict=True)))
    assert policy("prefix_hash").choose(asked, seen) == Decision(
        ring[place], Reason.SPREAD if full else Reason.RING, passed_over=tuple((name, "full") for name in ring[:full])
    )


def test_who_is_away_and_who_is_full_are_told_apart():
    asked = request("s")
    first, second, third, fourth = order(asked.chain[0])
    seen = snapshot(load(second, inflight=50), third, fourth, absent={first: "cooling"})
    assert policy("prefix_hash").choose(asked, seen) == Decision(
        third, Reason.SPREAD, passed_over=((first, "cooling"), (second, "full"))
    )


def test_one_hot_prefix_never_exceeds_the_bound():
    """F89: 50 parallel calls of one prefix, 20 cold ones."""
    loads = {name: load(name) for name in "abcd"}
    for number in range(70):
        hot = number % 7 < 5
        asked = request("hot" if hot else f"cold {number}", ("hot" if hot else f"cold {number}", "hello"))
        chosen = policy("prefix_hash").choose(asked, snapshot(*loads.values(), tick=number)).replica
        loads[chosen].inflight += 1
        total = number + 1
        assert max(one.inflight for one in loads.values()) <= max(3, -(-1.25 * total // 4))
    assert sum(one.inflight for one in loads.values()) == 70


@pytest.mark.parametrize("bound", [1, 1.25, 4])
@pytest.mark.parametrize("floor", [0, 2])
@pytest.mark.parametrize("inflight", [(0, 0), (1, 1), (7, 7), (7, 8), (0, 9), (2.5, 2.5)])
def test_somebody_always_has_room(bound, floor, inflight):
    loads = [load(name, inflight=count) for name, count in zip("ab", inflight, strict=True)]
    decision = PrefixHash(bound, floor).choose(request("s"), snapshot(*loads))
    assert decision.reason in {Reason.RING, Reason.SPREAD}


@pytest.mark.parametrize(
    ("home", "held", "expected_cached"),
    [
        (Home("a", Reason.SESSION, 70), None, 70),
        (Home("b", Reason.SESSION, 70), Held("a", 40), 40),
        (Home("a", Reason.SESSION, 70, lost=True), None, 0),
    ],
)
@pytest.mark.parametrize("name", ["session_hash", "prefix_hash"])
@pytest.mark.parametrize("asked", [request("s"), request(None, ())])
def test_what_is_expected_is_what_the_chosen_replica_holds(name, asked, home, held, expected_cached):
    seen = snapshot("a", home=home, held=held, prompt_tokens=100)
    assert policy(name).choose(asked, seen).expected_cached == expected_cached


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"bound": 0.9}, "bound must be a number of at least 1, not 0.9"),
        ({"bound": "1.25"}, "bound must be a number of at least 1, not '1.25'"),
        ({"bound": True}, "bound must be"),
        ({"bound": float("nan")}, "bound must be"),
        ({"floor": -1}, "floor must be a number of at least 0, not -1"),
    ],
)
def test_wrong_options_are_named(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        policy("prefix_hash", options)
