"""Bindings that come from outside: what they may change in the map, and what they may not."""

from router.core.admission import AdmissionOptions
from router.core.decision import Decision, Reason, decide
from router.core.fleet import Fleet, FleetOptions
from router.core.placed import Placed, adopt, placed, restore, unknown
from router.core.replica import Replica, Signals
from router.core.request import Request
from router.policies.locality import Locality

WALL = 1_800_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def fleet_of(*ids: str, clock: Clock | None = None, max_sessions: int = 100) -> Fleet:
    fleet = Fleet(clock or Clock(), FleetOptions(max_sessions=max_sessions))
    fleet.update([Replica(name, f"http://{name}") for name in ids])
    for load in fleet.loads.values():
        fleet.probed(load, True)
    return fleet


def named(session: int, size: int = 40_000) -> Request:
    return Request("chat", session=session, source="x-session-id", key=session, body_bytes=size)


def chat(*links: int) -> Request:
    sizes = tuple(4000 * (index + 1) for index in range(len(links)))
    return Request("chat", key=7, source="conversation", chain=links, sizes=sizes, opening=1, body_bytes=9999)


def go(fleet: Fleet, request: Request, replica: str) -> None:
    with fleet.lease(request, Decision(replica, Reason.RING)) as lease:
        lease.first_byte()


def choice(fleet: Fleet, request: Request) -> tuple[str | None, Reason]:
    decision = decide(Locality(), request, fleet.snapshot(request))
    return decision.replica, decision.reason


def test_a_restored_session_comes_home_by_its_name() -> None:
    fleet = fleet_of("a:1", "b:1")
    restore(fleet, [Placed(5, "b:1", context=30_000, seen=WALL - 60)], WALL)
    decision = decide(Locality(), named(5), fleet.snapshot(named(5)))
    assert (decision.replica, decision.reason, decision.expected_cached) == ("b:1", Reason.SESSION, 10_000)


def test_a_restored_conversation_comes_home_by_its_last_link() -> None:
    fleet = fleet_of("a:1", "b:1")
    restore(fleet, [Placed(2, "b:1", root=1, tail=2, seen=WALL)], WALL)
    assert choice(fleet, chat(1, 2, 3, 4)) == ("b:1", Reason.PREFIX)
    assert fleet.snapshot(chat(1, 9)).home is None


def test_a_restored_link_takes_no_shared_prefix_from_who_has_it() -> None:
    fleet = fleet_of("a:1", "b:1")
    go(fleet, chat(1, 2), "a:1")
    restore(fleet, [Placed(8, "b:1", root=1, tail=8, seen=WALL), Placed(9, "b:1", seen=WALL)], WALL)
    held = fleet.snapshot(chat(1, 5)).held
    assert held is not None
    assert held.replica == "a:1"
    assert choice(fleet, chat(1, 8, 9))[0] == "b:1"


def test_a_restored_binding_counts_as_bound_only_when_it_is_seen_again() -> None:
    fleet = fleet_of("a:1", "b:1")
    restore(fleet, [Placed(5, "b:1", context=30_000, seen=WALL)], WALL)
    assert fleet.loads["b:1"].bound_tokens == 0
    go(fleet, named(5), "b:1")
    assert fleet.loads["b:1"].bound_tokens >= 10_000


def test_what_was_restored_before_its_replica_is_known_waits_for_it() -> None:
    fleet = fleet_of("a:1")
    restore(fleet, [Placed(5, "b:1", seen=WALL)], WALL)
    assert choice(fleet, named(5))[0] == "a:1"
    fleet.update([Replica("a:1", "http://a:1"), Replica("b:1", "http://b:1")])
    fleet.probed(fleet.loads["b:1"], True)
    assert choice(fleet, named(5)) == ("b:1", Reason.SESSION)


def test_an_engine_that_restarted_since_has_lost_the_session() -> None:
    fleet = fleet_of("a:1", "b:1")
    restore(fleet, [Placed(5, "b:1", tail=2, started_at=WALL - 9000, seen=WALL)], WALL)
    for started, lost in [(None, False), (WALL - 9000.4, False), (WALL - 100, True)]:
        fleet.loads["b:1"].signals = Signals(started_at=started)
        home = fleet.snapshot(named(5)).home
        assert home is not None
        assert home.lost is lost
    assert fleet.snapshot(chat(1, 2, 3)).held is None


def test_a_session_that_is_served_again_belongs_to_the_engine_that_runs_now() -> None:
    fleet = fleet_of("a:1")
    fleet.loads["a:1"].signals = Signals(started_at=WALL - 100)
    restore(fleet, [Placed(5, "a:1", started_at=WALL - 9000, seen=WALL)], WALL)
    go(fleet, named(5), "a:1")
    home = fleet.snapshot(named(5)).home
    assert home is not None
    assert not home.lost


def test_what_a_router_knows_by_itself_stands_against_what_it_is_given_back() -> None:
    fleet = fleet_of("a:1", "b:1")
    go(fleet, named(5), "a:1")
    restore(fleet, [Placed(5, "b:1", seen=WALL)], WALL)
    assert choice(fleet, named(5))[0] == "a:1"


def test_restored_bindings_are_bounded_and_the_oldest_give_way() -> None:
    fleet = fleet_of("a:1", max_sessions=2)
    go(fleet, named(1), "a:1")
    restore(fleet, [Placed(2, "a:1", seen=WALL), Placed(3, "a:1", seen=WALL)], WALL)
    assert [binding.session for binding in fleet.affinity] == [2, 3]
    assert fleet.loads["a:1"].bound_tokens == 0


def test_another_routers_placement_is_followed_and_the_accounting_with_it() -> None:
    """F92, F146"""
    fleet = fleet_of("a:1", "b:1")
    go(fleet, named(5), "a:1")
    assert adopt(fleet, Placed(5, "b:1", seen=WALL), WALL)
    assert choice(fleet, named(5)) == ("b:1", Reason.SESSION)
    assert (fleet.loads["a:1"].bound_tokens, fleet.loads["b:1"].bound_tokens) == (0, 10_000)


def test_a_placement_that_cannot_be_used_here_is_not_followed() -> None:
    fleet = fleet_of("a:1", "b:1")
    go(fleet, named(5), "a:1")
    fleet.drain("b:1")
    fleet.loads["a:1"].signals = Signals(started_at=WALL)
    assert not adopt(fleet, Placed(5, "gone:1", seen=WALL), WALL)
    assert not adopt(fleet, Placed(5, "b:1", seen=WALL), WALL)
    assert not adopt(fleet, Placed(5, "a:1", started_at=WALL - 500, seen=WALL), WALL)
    assert choice(fleet, named(5))[0] == "a:1"


def test_an_adopted_session_that_is_idle_counts_nowhere() -> None:
    fleet = fleet_of("a:1", "b:1")
    restore(fleet, [Placed(5, "a:1", context=10, seen=WALL)], WALL)
    assert adopt(fleet, Placed(5, "b:1", seen=WALL), WALL)
    assert [load.bound_tokens for load in fleet.loads.values()] == [0, 0]


def test_a_router_asks_only_for_sessions_that_it_does_not_know() -> None:
    fleet = fleet_of("a:1", "b:1")
    assert unknown(fleet, named(5)) == (5,)
    assert unknown(fleet, chat(1, 2, 3)) == (3, 2)
    assert unknown(fleet, Request("chat", chain=(9, 8), sizes=(1, 2), opening=0)) == (8, 9)
    assert unknown(fleet, Request("other")) == ()
    with fleet.lease(named(5), Decision("a:1", Reason.RING)) as lease:
        assert unknown(fleet, named(5)) == ()
        lease.first_byte()
    assert unknown(fleet, named(5)) == ()


def test_a_router_asks_again_before_it_moves_a_session() -> None:
    """F146: another router may have moved it already."""
    fleet = fleet_of("a:1", "b:1")
    go(fleet, named(5), "a:1")
    fleet.drain("a:1")
    assert unknown(fleet, named(5)) == (5,)


def test_a_binding_survives_the_way_out_and_back() -> None:
    clock = Clock()
    fleet = fleet_of("a:1", clock=clock)
    fleet.loads["a:1"].signals = Signals(started_at=WALL - 50)
    go(fleet, chat(1, 2, 3), "a:1")
    clock.now += 30
    (binding,) = fleet.affinity
    out = placed(fleet, binding, WALL)
    assert out == Placed(3, "a:1", 3000, 1, 3, WALL - 30, WALL - 50, "unknown")
    fresh = Fleet(clock)
    restore(fresh, [out], WALL)
    (back,) = fresh.affinity
    assert (back.session, back.root, back.tail, back.seen, back.context) == (3, 1, 3, clock.now - 30, 3000)


def test_a_store_hears_of_placements_and_moves_and_not_of_turns() -> None:
    clock = Clock()
    fleet = fleet_of("a:1", "b:1", clock=clock)
    heard: list[tuple[str, str]] = []
    fleet.on_bound = lambda binding, before: heard.append((before, binding.replica))
    go(fleet, named(5), "a:1")
    go(fleet, named(5), "a:1")
    go(fleet, named(5), "b:1")
    assert heard == [("", "a:1"), ("a:1", "b:1")]
    fleet.observe(fleet.loads["b:1"], Signals(started_at=1.0))
    fleet.observe(fleet.loads["b:1"], Signals(started_at=500.0))
    go(fleet, named(5), "b:1")
    assert heard[2:] == [("b:1", "b:1")]


def test_a_store_hears_again_when_a_context_has_grown_or_a_row_has_aged() -> None:
    clock = Clock()
    fleet = fleet_of("a:1", clock=clock)
    heard: list[int] = []
    fleet.on_bound = lambda binding, before: heard.append(binding.context)
    for size in (40_000, 50_000, 56_000, 57_000, 60_000, 400_000):
        go(fleet, named(5, size), "a:1")
    assert heard == [10_000, 14_250, 100_000]
    clock.now += fleet.options.tell_seconds
    go(fleet, named(5, 400_000), "a:1")
    assert heard[3:] == [100_000]


def test_return_times_are_not_learned_from_what_a_store_says() -> None:
    """What it knows of the last turn is as old as its last write, hours at times."""
    clock = Clock()
    fleet = Fleet(clock, FleetOptions(admission=AdmissionOptions()))
    fleet.update([Replica("a:1", "http://a:1")])
    fleet.probed(fleet.loads["a:1"], True)
    learned: list[float] = []
    assert fleet.admission is not None
    fleet.admission.came_back = lambda kind, gap: learned.append(gap)  # type: ignore[method-assign]
    restore(fleet, [Placed(5, "a:1", seen=WALL - 5000)], WALL)
    go(fleet, named(5), "a:1")
    clock.now += 9
    go(fleet, named(5), "a:1")
    assert learned == [9.0]
