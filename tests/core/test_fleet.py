"""The map: who may be chosen, what is remembered of whom, and that everything taken is given back."""

import pytest

from router.core.decision import Decision, Reason, decide
from router.core.fleet import Fleet, FleetOptions
from router.core.health import Fault
from router.core.lease import Lease
from router.core.pools import NoReplica
from router.core.replica import Replica, Signals, State
from router.core.request import Request, Usage
from router.policies.locality import Locality


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def fleet_of(*ids: str, clock: Clock | None = None, **options: object) -> Fleet:
    fleet = Fleet(clock or Clock(), FleetOptions(**options))  # type: ignore[arg-type]
    fleet.update([Replica(name, f"http://{name}") for name in ids])
    for load in fleet.loads.values():
        fleet.probed(load, True)
    return fleet


def session(name: int, size: int = 40_000) -> Request:
    return Request("chat", session=name, source="x-session-id", key=name, body_bytes=size)


def chat(*links: int, key: int = 7, opening: int = 1) -> Request:
    """A conversation without a name; each link stands for 4,000 bytes."""
    sizes = tuple(4000 * (index + 1) for index in range(len(links)))
    return Request("chat", key=key, source="conversation", chain=links, sizes=sizes, opening=opening, body_bytes=9999)


def go(fleet: Fleet, request: Request, replica: str, usage: Usage | None = None) -> None:
    """Serve a request on a replica, well."""
    with fleet.lease(request, Decision(replica, Reason.RING)) as lease:
        lease.first_byte()
        lease.settle(usage)


def idle(fleet: Fleet) -> bool:
    return not fleet.pending and all(load.inflight == load.queued_tokens == 0 for load in fleet.loads.values())


def test_a_named_session_comes_home() -> None:
    fleet = fleet_of("a:1", "b:1")
    go(fleet, session(5), "b:1")
    home = fleet.snapshot(session(5)).home
    assert home is not None
    assert (home.replica, home.reason, home.expected_cached) == ("b:1", Reason.SESSION, 10_000)


def test_a_conversation_is_recognised_by_its_last_link() -> None:
    fleet = fleet_of("a:1", "b:1")
    go(fleet, chat(1, 2), "b:1")
    home = fleet.snapshot(chat(1, 2, 3, 4)).home
    assert home is not None
    assert (home.replica, home.reason, home.expected_cached) == ("b:1", Reason.PREFIX, 2000)
    assert fleet.sessions == 1
    go(fleet, chat(1, 2, 3, 4), "b:1")
    assert fleet.sessions == 1


def test_a_shared_system_prompt_makes_no_common_session() -> None:
    fleet = fleet_of("a:1", "b:1")
    go(fleet, chat(1, 2), "b:1")
    snapshot = fleet.snapshot(chat(1, 3))
    assert snapshot.home is None
    assert snapshot.held is not None
    assert (snapshot.held.replica, snapshot.held.tokens) == ("b:1", 1000)


def test_a_fork_follows_its_ancestor_and_is_a_session_of_its_own() -> None:
    fleet = fleet_of("a:1", "b:1")
    go(fleet, chat(1, 2), "b:1")
    go(fleet, chat(1, 2, 3), "b:1")
    fork = chat(1, 2, 4)
    home = fleet.snapshot(fork).home
    assert home is not None
    assert (home.replica, home.expected_cached) == ("b:1", 2000)
    go(fleet, fork, "b:1")
    assert fleet.sessions == 2
    assert fleet.snapshot(chat(1, 2, 3, 5)).home is not None


def test_binding_waits_for_the_first_byte_of_a_success() -> None:
    """F91"""
    fleet = fleet_of("a:1", "b:1")
    with fleet.lease(session(5), Decision("a:1", Reason.RING)) as lease:
        lease.blame(Fault.UNREACHED)
    assert fleet.snapshot(session(5)).home is None
    go(fleet, session(5), "b:1")
    home = fleet.snapshot(session(5)).home
    assert home is not None
    assert home.replica == "b:1"


def test_simultaneous_first_turns_follow_the_first_lease() -> None:
    """F92"""
    fleet, policy = fleet_of("a:1", "b:1", "c:1"), Locality(margin=0)
    leases = []
    for _ in range(20):
        request = session(5, 4_000_000)
        leases.append(fleet.lease(request, decide(policy, request, fleet.snapshot(request))))
    assert len({lease.load.id for lease in leases}) == 1
    for lease in leases:
        lease.close()
    assert idle(fleet)


def test_lease_closes_once_and_gives_back_to_the_load_it_came_from() -> None:
    """F116, F140"""
    fleet = fleet_of("a:1", "b:1")
    old = [fleet.lease(session(n), Decision("a:1", Reason.RING)) for n in range(10)]
    fleet.update([Replica("b:1", "http://b:1")])
    fleet.update([Replica("a:1", "http://a:1"), Replica("b:1", "http://b:1")])
    new = [fleet.lease(session(n), Decision("a:1", Reason.RING)) for n in range(5)]
    for lease in old:
        lease.close()
        lease.close()
    assert fleet.loads["a:1"].inflight == len(new) == 5


def test_a_late_reply_of_a_removed_replica_binds_nothing() -> None:
    fleet = fleet_of("a:1", "b:1")
    lease = fleet.lease(session(5), Decision("a:1", Reason.RING))
    fleet.update([Replica("b:1", "http://b:1")])
    lease.first_byte()
    lease.settle(Usage(prompt_tokens=10))
    lease.close()
    assert fleet.snapshot(session(5)).home is None


def test_unreached_is_ejected_at_once_and_a_good_probe_after_its_time_out_brings_it_back() -> None:
    """F64, F77"""
    clock = Clock()
    fleet = fleet_of("a:1", "b:1", clock=clock)
    with fleet.lease(session(1), Decision("a:1", Reason.RING)) as lease:
        lease.blame(Fault.UNREACHED)
    assert [load.id for load in fleet.snapshot(session(1)).loads] == ["b:1"]
    fleet.probed(fleet.loads["a:1"], True)
    assert fleet.loads["a:1"].state is State.EJECTED
    clock.now += 1.0
    fleet.probed(fleet.loads["a:1"], True)
    assert fleet.loads["a:1"].state is State.UP


def test_a_replica_whose_health_lies_is_out_after_one_more_fault() -> None:
    """F77"""
    clock = Clock()
    fleet = fleet_of("a:1", "b:1", clock=clock)
    load = fleet.loads["a:1"]
    for _ in range(5):
        fail(fleet, Fault.FAULT)
    assert load.state is State.EJECTED
    clock.now += 1.0
    fleet.probed(load, True)
    fail(fleet, Fault.FAULT)
    assert load.state is State.EJECTED
    assert load.until == clock.now + 2.0


def fail(fleet: Fleet, fault: Fault, retry_after: float | None = None) -> None:
    with fleet.lease(session(1), Decision("a:1", Reason.RING)) as lease:
        lease.blame(fault, retry_after)


def test_faults_with_successes_between_them_eject_nobody() -> None:
    """F70"""
    fleet = fleet_of("a:1", "b:1")
    for _ in range(20):
        fail(fleet, Fault.FAULT)
        go(fleet, session(2), "a:1")
    assert fleet.loads["a:1"].state is State.UP


def test_pushback_cools_for_retry_after_and_the_longer_deadline_stands() -> None:
    """F61, F76"""
    clock = Clock()
    fleet = fleet_of("a:1", "b:1", clock=clock)
    fail(fleet, Fault.PUSHBACK, 30)
    fail(fleet, Fault.PUSHBACK, 1)
    assert [load.id for load in fleet.snapshot(session(1)).loads] == ["b:1"]
    clock.now += 29
    assert [load.id for load in fleet.snapshot(session(1)).loads] == ["b:1"]
    clock.now += 1
    assert [load.id for load in fleet.snapshot(session(1)).loads] == ["a:1", "b:1"]
    assert fleet.loads["a:1"].failures == 0


def test_when_nobody_is_healthy_the_least_bad_are_tried() -> None:
    """F80"""
    fleet = fleet_of("a:1")
    fail(fleet, Fault.UNREACHED)
    snapshot = fleet.snapshot(session(1))
    assert snapshot.panic
    assert [load.id for load in snapshot.loads] == ["a:1"]


def test_late_probes_eject_nobody_and_bad_ones_not_while_bytes_flow() -> None:
    """F80"""
    clock = Clock()
    fleet = fleet_of("a:1", "b:1", clock=clock)
    load = fleet.loads["a:1"]
    for _ in range(50):
        fleet.probed(load, None)
    go(fleet, session(1), "a:1")
    for _ in range(5):
        fleet.probed(load, False)
    assert load.state is State.UP
    clock.now += 60
    fleet.probed(load, False)
    assert load.state is State.EJECTED


def test_a_new_replica_waits_for_its_first_good_probe() -> None:
    """F62"""
    fleet = fleet_of("a:1")
    fleet.update([Replica("a:1", "http://a:1"), Replica("b:1", "http://b:1")])
    assert [load.id for load in fleet.snapshot(session(1)).loads] == ["a:1"]
    fleet.probed(fleet.loads["b:1"], False)
    fleet.probed(fleet.loads["b:1"], True)
    assert [load.id for load in fleet.snapshot(session(1)).loads] == ["a:1", "b:1"]


def test_drained_replica_takes_nothing_new_and_undrain_brings_it_back() -> None:
    fleet = fleet_of("a:1", "b:1")
    fleet.drain("a:1")
    snapshot = fleet.snapshot(session(1))
    assert [load.id for load in snapshot.loads] == ["b:1"]
    assert snapshot.passed_over == (("a:1", "draining"),)
    fleet.undrain("a:1")
    assert len(fleet.snapshot(session(1)).loads) == 2
    with pytest.raises(KeyError):
        fleet.drain("z:1")


def test_terminating_replica_takes_nothing_new() -> None:
    """F151"""
    fleet = fleet_of("a:1", "b:1")
    fleet.update([Replica("a:1", "http://a:1", terminating=True), Replica("b:1", "http://b:1")])
    assert [load.id for load in fleet.snapshot(session(1)).loads] == ["b:1"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Signals(cache_queries=100), Signals(cache_queries=5)),
        (Signals(started_at=1000.0), Signals(started_at=2000.0)),
    ],
)
def test_a_restart_is_seen_and_its_sessions_are_lost(before: Signals, after: Signals) -> None:
    """F85, F88"""
    fleet = fleet_of("a:1", "b:1")
    load = fleet.loads["a:1"]
    assert not fleet.observe(load, before)
    go(fleet, session(5), "a:1", Usage(10_000, 0, 10))
    assert load.bound_tokens == 10_010
    assert fleet.observe(load, after)
    home = fleet.snapshot(session(5)).home
    assert home is not None
    assert (home.lost, home.expected_cached, load.bound_tokens) == (True, 0, 0)
    go(fleet, session(5), "a:1", Usage(10_000, 0, 10))
    assert load.bound_tokens == 10_010


def test_unknown_signals_are_no_restart() -> None:
    fleet = fleet_of("a:1")
    load = fleet.loads["a:1"]
    fleet.observe(load, Signals(cache_queries=100, started_at=5.0))
    assert not fleet.observe(load, Signals())


def test_three_replies_far_below_expectation_mean_lost_and_a_good_one_clears_them() -> None:
    fleet = fleet_of("a:1", "b:1")
    lost = Usage(prompt_tokens=10_000, cached_tokens=0, completion_tokens=1)
    go(fleet, session(5), "a:1", Usage(10_000, 0, 1))

    def turn(usage: Usage) -> bool:
        snapshot = fleet.snapshot(session(5))
        assert snapshot.home is not None
        with fleet.lease(session(5), Decision("a:1", Reason.SESSION, snapshot.home.expected_cached)) as lease:
            lease.first_byte()
            lease.settle(usage)
        after = fleet.snapshot(session(5)).home
        assert after is not None
        return after.lost

    assert not turn(lost)
    assert not turn(lost)
    assert not turn(Usage(10_000, 9_900, 1))
    assert not turn(lost)
    assert not turn(lost)
    assert turn(lost)


def test_a_rewritten_prompt_makes_moving_free() -> None:
    fleet = fleet_of("a:1", "b:1")
    named = Request("chat", session=5, key=5, chain=(1, 2, 3), sizes=(4000, 8000, 12000), opening=1)
    go(fleet, named, "a:1")
    compacted = Request("chat", session=5, key=5, chain=(1, 9), sizes=(4000, 8000), opening=1)
    home = fleet.snapshot(compacted).home
    assert home is not None
    assert (home.extends, home.expected_cached) == (False, 1000)


def test_another_thread_of_a_session_stays_home_and_shrinks_nothing() -> None:
    fleet = fleet_of("a:1", "b:1")
    main = Request("chat", session=5, key=5, chain=(1, 2, 3), sizes=(4000, 8000, 400_000), opening=1)
    agent = Request("chat", session=5, key=5, chain=(8, 9), sizes=(4000, 8000), opening=1)
    go(fleet, main, "a:1")
    home = fleet.snapshot(agent).home
    assert home is not None
    assert (home.replica, home.extends, home.expected_cached) == ("a:1", True, 0)
    go(fleet, agent, "a:1")
    assert fleet.loads["a:1"].bound_tokens == 100_000
    back = fleet.snapshot(main).home
    assert back is not None
    assert back.expected_cached == 100_000


def test_bound_tokens_follow_sessions_and_let_go_of_idle_ones() -> None:
    clock = Clock()
    fleet = fleet_of("a:1", "b:1", clock=clock, idle_window=900.0)
    go(fleet, session(1), "a:1", Usage(10_000, 0, 500))
    clock.now += 600
    go(fleet, session(2), "a:1", Usage(20_000, 0, 0))
    assert (fleet.loads["a:1"].bound_tokens, fleet.loads["a:1"].bound_sessions) == (30_500, 2)
    clock.now += 301
    assert fleet.snapshot(session(3)).mean_context == 20_000
    assert (fleet.loads["a:1"].bound_tokens, fleet.loads["a:1"].bound_sessions) == (20_000, 1)
    assert fleet.snapshot(session(1)).home is not None  # the binding outlives the accounting
    go(fleet, session(2), "b:1", Usage(20_000, 0, 0))
    assert (fleet.loads["a:1"].bound_tokens, fleet.loads["b:1"].bound_tokens) == (0, 20_000)


def test_maps_are_bounded_at_insert() -> None:
    """F119, F121"""
    fleet = fleet_of("a:1", max_sessions=100, max_prefixes=100)
    for n in range(1, 1001):
        go(fleet, chat(1, 1000 + n, 5000 + n), "a:1")
    assert fleet.sessions == 100
    assert fleet.prefixes <= 100
    assert fleet.loads["a:1"].bound_sessions == 100


def test_models_scope_the_pool_and_unknown_ones_go_to_everybody() -> None:
    """F97"""
    fleet = fleet_of("a:1", "b:1")
    fleet.learn(fleet.loads["a:1"], models=frozenset({"big"}))
    fleet.learn(fleet.loads["b:1"], models=frozenset({"small"}))
    assert [load.id for load in fleet.snapshot(Request("chat", model="big")).loads] == ["a:1"]
    assert [load.id for load in fleet.snapshot(Request("chat", model="small")).loads] == ["b:1"]
    assert len(fleet.snapshot(Request("chat", model="nope")).loads) == 2


def test_a_response_pins_what_continues_it_and_carries_the_session_on() -> None:
    fleet = fleet_of("a:1", "b:1")
    go(fleet, chat(1, 2), "b:1", Usage(1000, 0, 10, response_id="resp_1"))
    following = Request("responses", key=9, chain=(4, 5), sizes=(10, 440), response_id="resp_1")
    snapshot = fleet.snapshot(following)
    assert snapshot.pinned == "b:1"
    assert snapshot.prompt_tokens == pytest.approx(1010 + 100, abs=1)
    assert decide(Locality(), following, snapshot).reason is Reason.RESPONSE
    go(fleet, following, "b:1")
    assert fleet.sessions == 1


def test_nobody_to_choose_from_says_why() -> None:
    with pytest.raises(NoReplica, match="empty"):
        Fleet(Clock()).snapshot(session(1))
    fleet = fleet_of("a:1", max_inflight=1)
    with pytest.raises(NoReplica, match="excluded"):
        fleet.snapshot(session(1), ["a:1"])
    with fleet.lease(session(1), Decision("a:1", Reason.RING)), pytest.raises(NoReplica, match="full"):
        fleet.snapshot(session(2))
    assert fleet.snapshot(session(2)).loads


def test_a_hold_cannot_be_leased() -> None:
    with pytest.raises(ValueError, match="hold"):
        fleet_of("a:1").lease(session(1), Decision(None, Reason.HOLD))


def test_replies_teach_bytes_per_token_and_prefill_rate() -> None:
    clock = Clock()
    fleet = fleet_of("a:1", clock=clock)
    for n in range(1, 200):
        lease: Lease = fleet.lease(session(n, 60_000), Decision("a:1", Reason.RING))
        clock.now += 5.0
        lease.first_byte()
        lease.settle(Usage(prompt_tokens=20_000))
        lease.close()
    assert fleet.estimates.bytes_per_token("") == pytest.approx(3.0, rel=0.05)
    assert fleet.loads["a:1"].prefill_rate == pytest.approx(4000, rel=0.1)


def test_same_id_with_another_url_is_another_replica() -> None:
    """F155"""
    fleet = fleet_of("a:1")
    old = fleet.loads["a:1"]
    added, removed = fleet.update([Replica("a:1", "http://elsewhere:1")])
    assert removed == [old]
    assert added == [fleet.loads["a:1"]]
    assert fleet.loads["a:1"] is not old


def test_sessions_that_find_nothing_one_after_another_show_a_restart_that_no_scrape_did() -> None:
    """F85"""
    fleet = fleet_of("a:1", "b:1")
    for name in range(1, 9):
        go(fleet, session(name), "a:1", Usage(10_000, 0, 10))

    def turn(name: int, cached: int) -> None:
        with fleet.lease(session(name), Decision("a:1", Reason.SESSION, 10_000)) as lease:
            lease.first_byte()
            lease.settle(Usage(10_000, cached, 10))

    def lost() -> list[int]:
        homes = {name: fleet.snapshot(session(name)).home for name in range(1, 9)}
        return [name for name, home in homes.items() if home is not None and home.lost]

    for name in (1, 2, 3):
        turn(name, 0)
    turn(4, 9_990)  # one that is warm: it was no restart
    turn(1, 9_990)
    for name in (5, 6, 7):
        turn(name, 0)
    assert lost() == []
    turn(8, 0)
    assert lost() == [1, 2, 3, 4]  # the last four have just been computed again
    assert fleet.loads["a:1"].bound_sessions == 4
