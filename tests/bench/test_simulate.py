"""The production policies in virtual time: what this router is for, and that every knob does what it says."""

from functools import cache
from typing import Any

import pytest

from bench.report import Figures
from bench.simulate import SimulationOptions, main, simulate
from bench.simulation import Simulation
from bench.simulation.outcome import outcome
from bench.traces import Session, azure, claude_sessions


@cache
def sessions() -> tuple[Session, ...]:
    return tuple(session for session in claude_sessions() if len(session.turns) > 20)[:60]


def options(**rest: Any) -> SimulationOptions:
    """Twenty agents on four replicas for half an hour, a second of ours."""
    usual = {"lanes": 20, "seconds": 1800.0, "warm_up": 600.0, "prefill_rate": 4000.0}
    return SimulationOptions(**(usual | rest))


def small(policy: str = "locality", **rest: Any) -> Figures:
    return simulate(options(policy=policy, **rest), sessions())


def played(**rest: Any) -> Simulation:
    simulation = Simulation(options(**rest), sessions())
    simulation.run()
    return simulation


def test_locality_beats_round_robin() -> None:
    ours, theirs = small("locality"), small("round_robin")
    assert ours.hit_rate > 2 * theirs.hit_rate
    assert ours.ttft_mean < theirs.ttft_mean / 3
    assert ours.turns_per_second > theirs.turns_per_second


def test_a_conversation_without_a_header_is_recognised_nearly_as_well() -> None:
    named, unnamed = (small(header=header, capacity=3.0) for header in (True, False))
    assert unnamed.hit_rate > named.hit_rate - 0.02  # room for all: only recognition can lose hits here


def test_equal_options_give_equal_figures() -> None:
    assert small() == small()


def test_scrapes_that_fail_and_silent_engines_cost_little() -> None:
    usual = small(capacity=2.0)
    for knob in ({"scrape_failures": 0.5}, {"report_cached": False}, {"report_capacity": False}):
        assert small(capacity=2.0, **knob).hit_rate > usual.hit_rate - 0.03


def test_a_restarted_replica_s_sessions_are_known_as_lost_at_once_or_by_their_replies() -> None:
    for failing, turns in ((0.0, 0), (1.0, 2)):
        made = outcome(options(restarts=((900.0, 1),), scrape_failures=failing), sessions())
        assert made.blind_turns <= turns
        assert made.figures.errors == 0


def test_a_slow_replica_gets_less_of_the_new_work() -> None:
    simulation = played(slow=0.25, capacity=3.0)
    rates = [load.prefill_rate for load in simulation.fleet.loads.values()]
    assert rates[0] < 0.5 * min(rates[1:])


def test_a_replica_that_joins_takes_sessions_and_one_that_leaves_takes_none() -> None:
    simulation = played(joins=(700.0,), leaves=((1000.0, 0),), capacity=2.0)
    assert any(trail.replica == "replica-4" for trail in simulation.trails)
    assert not any(trail.replica == "replica-0" and trail.at > 1000.0 for trail in simulation.trails)


def test_routers_that_share_a_store_agree_and_those_that_do_not_undo_each_other() -> None:
    one = small(capacity=2.0)
    shared = small(capacity=2.0, routers=4, store="shared")
    alone = small(capacity=2.0, routers=4)
    ring = small(capacity=2.0, routers=4, policy_options={"placement": "ring"})
    assert shared.hit_rate > one.hit_rate - 0.01
    assert ring.hit_rate > one.hit_rate - 0.05
    assert alone.hit_rate < shared.hit_rate - 0.02


def test_a_router_that_restarts_finds_its_sessions_in_the_store() -> None:
    """Those whose home is not the ring's first choice are lost without one."""
    calm = small(capacity=2.0)
    kept = small(capacity=2.0, router_restarts=(900.0,), store="shared")
    empty = small(capacity=2.0, router_restarts=(900.0,), policy_options={"margin": 0.0})
    assert kept.hit_rate > calm.hit_rate - 0.01
    assert empty.hit_rate < kept.hit_rate


def test_what_was_placed_while_the_store_was_away_is_told_afterwards() -> None:
    shared = {"capacity": 2.0, "routers": 4, "store": "shared"}
    assert small(**shared, store_outage=(700.0, 1000.0)).hit_rate > small(**shared).hit_rate - 0.05


def test_waits_of_those_who_still_wait_count() -> None:
    made = small(capacity=0.4, admission=True)
    assert made.held > 0
    assert made.wait_max >= made.wait_p95 > 0


def test_admission_of_others_can_be_plugged_in() -> None:
    for kind in ("FirstTurnHolding", "ConcurAimd", "ThunderAgentPause"):
        made = small(capacity=0.4, admission=True, admission_kind=f"bench.arms.admission:{kind}")
        assert made.held > 0
        assert made.requests > 50


@pytest.mark.parametrize("workload", ["mooncake", "azure_conv"])
def test_open_loops_play_what_was_recorded(workload: str) -> None:
    made = simulate(SimulationOptions(workload=workload, seconds=200.0, warm_up=0.0))
    assert made.requests > 400
    assert (made.hit_rate > 0.1) == (workload == "mooncake")


def test_an_unknown_workload_is_an_error() -> None:
    with pytest.raises(ValueError, match="workload"):
        simulate(SimulationOptions(workload="jobs"))


def test_azure_arrivals_share_nothing() -> None:
    arrivals = [arrival for arrival, _ in zip(azure("code"), range(50), strict=False)]
    blocks = [block for arrival in arrivals for block in arrival.blocks]
    assert len(blocks) == len(set(blocks))
    assert arrivals[0].at == 0.0


def test_the_command_prints_a_table_and_writes_json(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "figures.json"
    arguments = ["locality", "bench.arms.dual_map:DualMap", "--workload", "azure_code", "--seconds", "60"]
    assert main([*arguments, "--warm-up", "0", "--restarts", "[[30, 1]]", "--json", str(out)]) == 0
    assert "DualMap" in capsys.readouterr().out
    assert '"hit_rate"' in out.read_text()
