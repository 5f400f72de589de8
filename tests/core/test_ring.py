"""The ring is a pure function of its members: who they are, never when or in which order they came."""

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.ring import POINTS, Ring, mix

KEYS = [mix("key", number) for number in range(2_000)]
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
FLEETS = st.lists(NAMES, min_size=2, max_size=12, unique=True)
FEW = settings(max_examples=25, deadline=None)  # each example builds rings; the speed of a machine is not under test


def owners(members, points=POINTS):
    ring = Ring(members, points)
    return {key: next(ring.walk(key)) for key in KEYS}


@FEW
@given(FLEETS)
def test_a_replica_that_leaves_moves_its_own_keys_and_no_others(members):
    leaver, rest = members[0], members[1:]
    before, after = owners(members), owners(rest)
    assert all(after[key] == owner for key, owner in before.items() if owner != leaver)
    assert leaver not in after.values()


@FEW
@given(FLEETS)
def test_a_replica_that_joins_takes_about_its_share(members):
    newcomer, rest = members[0], members[1:]
    before, after = owners(rest), owners(members)
    moved = [key for key in KEYS if before[key] != after[key]]
    assert {after[key] for key in moved} <= {newcomer}
    share = len(moved) / len(KEYS)
    assert 0.4 / len(members) < share < 1.8 / len(members)  # 160 points, 2,000 keys: four standard deviations and more


@FEW
@given(FLEETS.flatmap(lambda members: st.tuples(st.just(members), st.permutations(members))))
def test_order_and_repetition_of_members_do_not_matter(pair):
    """F148"""
    members, shuffled = pair
    one, other = Ring(members), Ring([*shuffled, shuffled[0]])
    assert one.members == other.members
    assert all(list(one.walk(key)) == list(other.walk(key)) for key in KEYS[:50])


@FEW
@given(FLEETS, st.integers(min_value=0, max_value=2**128 - 1))
def test_a_walk_meets_every_member_once_and_drops_out_in_order(members, key):
    walk = list(Ring(members).walk(key))
    assert sorted(walk) == sorted(members)
    without_first = list(Ring(walk[1:]).walk(key))
    assert without_first == walk[1:]


@FEW
@given(FLEETS, st.integers(min_value=0, max_value=2**64 - 1), st.data())
def test_first_is_the_head_of_the_walk_among_those_allowed(members, key, data):
    among = data.draw(st.sets(st.sampled_from(members)))
    ring = Ring(members)
    assert ring.first(key, among) == next((member for member in ring.walk(key) if member in among), None)


@pytest.mark.parametrize("count", [4, 16, 64])
def test_shares_are_even_enough(count):
    shares = owners(f"10.0.0.{number}:8000" for number in range(count))
    fullest = max(list(shares.values()).count(member) for member in set(shares.values()))
    noise = 4 * (len(KEYS) / count) ** 0.5  # of counting 2,000 keys
    assert fullest < 1.25 * len(KEYS) / count + noise


def test_another_process_builds_the_same_ring():
    """F148"""
    code = (
        "from router.core.ring import Ring, mix\n"
        "ring = Ring({'b:1', 'a:1', '[fd00::1]:8000', 'ü'})\n"
        "print([list(ring.walk(mix('s', n))) for n in range(50)])"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    ring = Ring(["ü", "[fd00::1]:8000", "a:1", "b:1"])
    here = str([list(ring.walk(mix("s", number))) for number in range(50)])
    assert said == [f"{here}\n".encode()] * 2


def test_placement_is_the_same_in_every_release():
    """A rolling upgrade must not move sessions: changing these literals is a breaking change."""
    ring = Ring(["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"])
    assert "".join(next(ring.walk(mix("s", number)))[7] for number in range(16)) == "2222233221212223"
    assert mix("a", 1) == 14_924_708_896_500_468_241


def test_ipv6_names_are_names_like_others():
    members = ["[fd00::1]:8000", "[fd00::2]:8000", "fd00::1", "[::1]:8000"]
    assert set(owners(members).values()) == set(members)


def test_names_that_end_in_digits_do_not_share_points():
    members = ["node1", "node11", "node111", "1", "11"]
    ring = Ring(members, points=200)
    assert len(ring._hashes) == len(members) * 200


def test_one_member_owns_every_key():
    assert set(owners(["a"]).values()) == {"a"}
    assert list(Ring(["a"]).walk(7)) == ["a"]


def test_no_member_is_an_empty_walk():
    ring = Ring([])
    assert ring.members == ()
    assert list(ring.walk(7)) == []
    assert ring.first(7, {"a"}) is None


def test_first_is_none_where_nobody_is_allowed():
    assert Ring(["a", "b"]).first(7, frozenset()) is None


def test_keys_of_128_bits_walk_by_their_low_half():
    ring = Ring(["a", "b", "c"])
    assert list(ring.walk(KEYS[0])) == list(ring.walk((5 << 64) + KEYS[0]))


def test_the_last_key_wraps_around():
    ring = Ring(["a", "b", "c"])
    assert list(ring.walk(2**64 - 1)) == list(ring.walk(0))
