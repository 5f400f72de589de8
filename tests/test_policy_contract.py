"""Every policy that can be named keeps the contract; names and options lead where they say, or tell what was meant."""

import subprocess
import sys
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import router
from router.core.decision import Decision, Policy, Reason, Snapshot
from router.core.request import Request
from router.policies import BUILT_IN, UnknownPolicy, load, names
from router.testing import check_policy, request, snapshot

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", names())
def test_every_policy_keeps_the_contract(name):
    check_policy(load(name))


@pytest.mark.parametrize("name", names())
def test_a_policy_is_called_what_it_is_loaded_by(name):
    assert load(name).name == name


@pytest.mark.parametrize("name", names())
def test_policies_are_values(name):
    assert load(name) == load(name)
    assert hash(load(name)) == hash(load(name))


@pytest.mark.parametrize("name", names())
def test_a_replica_that_may_not_be_chosen_never_is(name):
    """F86"""
    policy = load(name)
    for number in range(100):
        seen = snapshot("b", "c", absent={"a": "ejected"}, tick=number, prompt_tokens=100)
        assert policy.choose(request(f"s{number}"), seen).replica in {"b", "c"}


def test_built_in_names_and_entry_points_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["router.policies"] == dict(BUILT_IN)
    assert set(BUILT_IN) <= set(names())


def test_a_vendored_copy_without_metadata_knows_the_built_in_names(tmp_path):
    """-S hides site-packages and with them our own entry points; xxhash is all that a policy needs of them."""
    site = Path(sys.modules["xxhash"].__file__).parent.parent
    (tmp_path / "router").symlink_to(Path(router.__file__).parent)
    (tmp_path / "xxhash").symlink_to(site / "xxhash")
    code = "from router.policies import load, names; print(*names()); print(load('prefix_hash', {'bound': 2}).name)"
    said = subprocess.run([sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == [" ".join(BUILT_IN), "prefix_hash"]


def test_loading_nothing_imports_no_policy():
    code = "import sys, router.policies; print([m for m in sys.modules if m.startswith('router.policies.')])"
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("round-robin", "no policy is called 'round-robin'; known: round_robin, locality,"),
        ("longest", "known: longest_prefix, locality,"),
        ("", "no policy is called ''; known: locality,"),
        ("no_such_module:Policy", "No module named 'no_such_module' .*PYTHONPATH"),
        ("router.policies.random:Rnd", "has no attribute 'Rnd'"),
        ("router.policies:BUILT_IN", "is not a class"),
        (":Policy", "Empty module name"),
        ("router.policies.random:", "has no attribute ''"),
    ],
)
def test_a_name_that_leads_nowhere_says_what_is_known(name, complaint):
    with pytest.raises(UnknownPolicy, match=complaint):
        load(name)


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("prefix_hash", {"bond": 2}, "policy prefix_hash has no option 'bond'; known: bound, floor"),
        ("longest_prefix", {"spread": 2}, "has no option 'spread'; known: max_spread, threshold"),
        ("round_robin", {"name": "x"}, "policy round_robin has no option 'name'; known: none, it has no options"),
        ("prefix_hash", {"bound": 0}, "policy prefix_hash: bound must be a number of at least 1, not 0"),
        (f"{__name__}:Needy", {}, "missing 1 required positional argument: 'depot'"),
        (f"{__name__}:Nameless", {}, "a policy has a `name` and a method `choose"),
        (f"{__name__}:Idle", {}, "a policy has a `name` and a method `choose"),
    ],
)
def test_a_wrong_option_or_class_says_what_is_known(name, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        load(name, options)


def test_a_class_of_ones_own_is_loaded_by_its_place():
    assert load(f"{__name__}:First") == First()
    assert load(f"{__name__}:Loose", {"anything": 1}).name == "loose"


@dataclass(frozen=True)
class First:
    name: str = "first"

    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        return Decision(snapshot.loads[0].id, Reason.LOAD)


@dataclass(frozen=True)
class Needy(First):
    name: str = "needy"

    def __init__(self, depot: str) -> None: ...


class Loose(First):
    def __init__(self, **options: object) -> None:
        object.__setattr__(self, "name", "loose")


class Nameless:
    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        return Decision(snapshot.loads[0].id, Reason.LOAD)


class Idle:
    name = "idle"


class Elsewhere(First):
    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        return Decision("gone", Reason.LOAD)


class Remembers(First):
    calls = 0

    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        type(self).calls += 1
        return Decision(snapshot.loads[self.calls % len(snapshot.loads)].id, Reason.TURN)


class Counts(First):
    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        snapshot.loads[0].inflight += 1
        return super().choose(request, snapshot)


class Wordy(First):
    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        return replace(super().choose(request, snapshot), reason="because")


class Bare(First):
    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        return snapshot.loads[0].id


class Hopes(First):
    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        return replace(super().choose(request, snapshot), expected_cached=10_001)


class Shrugs(First):
    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        return Decision(None, Reason.LOAD)


class Contradicts(First):
    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        first = snapshot.loads[0].id
        return Decision(first, Reason.SPREAD, passed_over=((first, "full"),))


class Stumbles(First):
    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        return Decision(snapshot.loads[request.chain[0] % len(snapshot.loads)].id, Reason.RING)


class Waits(First):
    def choose(self, request: Request, snapshot: Snapshot) -> Decision:
        return Decision(None, Reason.HOLD)


def test_a_policy_that_holds_keeps_the_contract():
    check_policy(Waits())


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        (First(name=""), "needs a name"),
        (Elsewhere(), "first, 1 replicas, idle, a session, tick 0: .*'gone'.*: that replica is not eligible"),
        (Remembers(), "then for the same input"),
        (Counts(), "changed the snapshot or a load"),
        (Wordy(), "the reason is not a Reason"),
        (Bare(), "is not a Decision"),
        (Hopes(), "expected_cached is not in the prompt"),
        (Shrugs(), "no replica, if and only if HOLD"),
        (Contradicts(), "chose what it passed over"),
        (Stumbles(), "a session whose body was not read, tick 0: raised IndexError"),
    ],
)
def test_a_broken_policy_is_told_what_it_broke_and_where(policy: Policy, complaint):
    with pytest.raises(AssertionError, match=complaint):
        check_policy(policy)


def test_hand_built_requests_are_pure_functions_of_their_words():
    assert request("s") == request("s")
    assert request("s").key == request("s", ("other", "words")).key != request("t").key
    grown, shorter = request(None, ("system", "hello", "hi")), request(None, ("system", "hello"))
    assert grown.key == shorter.key
    assert grown.chain[:2] == shorter.chain
    assert request(None, ()).key == 0


def test_hand_built_fleets_keep_the_promises_of_a_snapshot():
    seen = snapshot("b", "a", absent={"c": "cooling"})
    assert [one.id for one in seen.loads] == ["a", "b"]
    assert seen.by_id == {one.id: one for one in seen.loads}
    assert seen.ring.members == ("a", "b", "c")
    assert seen.passed_over == (("c", "cooling"),)
