"""Properties that every run must have, over the simulator and the production fleet."""

from collections import defaultdict
from functools import cache
from typing import Any

import pytest

from bench.simulation import Simulation, SimulationOptions, simulate
from bench.traces import Session, claude_sessions
from router.core.decision import Snapshot
from router.core.request import Request
from router.policies import load as load_policy
from router.testing import check_policy
from router.testing import load as a_load
from router.testing import request as a_request
from router.testing import snapshot as a_snapshot

ARMS = (
    "bench.arms.haproxy_bounded_hash:HaproxyBoundedHash",
    "bench.arms.sglang_cache_aware:SglangCacheAware",
    "bench.arms.dual_map:DualMap",
    "bench.arms.dynamo_cost:DynamoCost",
    "bench.arms.sticky_fewest_sessions:StickyFewestSessions",
)


@cache
def sessions() -> tuple[Session, ...]:
    return tuple(session for session in claude_sessions() if len(session.turns) > 20)[:60]


def played(**rest: Any) -> Simulation:
    usual = {"lanes": 20, "seconds": 1800.0, "warm_up": 600.0, "prefill_rate": 4000.0, "capacity": 3.0}
    simulation = Simulation(SimulationOptions(**(usual | rest)), sessions())
    simulation.run()
    return simulation


def homes(simulation: Simulation, start: float, end: float) -> dict[int, list[str]]:
    """Session → where its turns went in this span, in order."""
    made: dict[int, list[str]] = defaultdict(list)
    for trail in sorted(simulation.trails, key=lambda trail: trail.at):
        if start <= trail.at < end:
            made[trail.session].append(trail.replica)
    return made


@pytest.mark.parametrize("threads", [True, False])
@pytest.mark.parametrize("placement", ["cost", "ring"])
def test_a_leaving_replica_moves_only_its_own_sessions(threads: bool, placement: str) -> None:
    simulation = played(threads=threads, policy_options={"placement": placement}, leaves=((1000.0, 2),))
    before, after = homes(simulation, 0.0, 1000.0), homes(simulation, 1000.0, 1800.0)
    for session, places in after.items():
        if session in before and before[session][-1] != "replica-2":
            assert places[0] == before[session][-1]


@pytest.mark.parametrize("threads", [True, False])
def test_a_session_stays_where_it_is_while_there_is_room(threads: bool) -> None:
    simulation = played(threads=threads)
    assert all(len(set(places)) == 1 for places in homes(simulation, 0.0, 1800.0).values())


@pytest.mark.parametrize("trace", ["azure_code", "azure_conv"])
def test_locality_loses_little_to_round_robin_where_nothing_repeats(trace: str) -> None:
    """At the trace's own rate, and where prefill is the bottleneck."""
    for rate in (8_000.0, 3_000.0):
        ours, theirs = (
            simulate(SimulationOptions(policy=policy, workload=trace, prefill_rate=rate, seconds=900.0, warm_up=300.0))
            for policy in ("locality", "round_robin")
        )
        assert ours.ttft_mean <= 1.02 * theirs.ttft_mean
        assert ours.turns_per_second >= 0.98 * theirs.turns_per_second


@pytest.mark.parametrize("arm", ARMS)
def test_arms_keep_the_contract_of_a_policy(arm: str) -> None:
    check_policy(load_policy(arm))


def test_bounded_load_keeps_its_bound() -> None:
    policy = load_policy(ARMS[0])
    inflight = dict.fromkeys("abcd", 0)
    for number in range(400):
        seen: Snapshot = a_snapshot(*(a_load(name, inflight=count) for name, count in inflight.items()), tick=number)
        asked: Request = a_request(f"s{number % 3}")
        choice = policy.choose(asked, seen).replica
        assert choice is not None
        inflight[choice] += 1
        assert inflight[choice] <= 1.25 * (sum(inflight.values()) + 1) / 4 + 1
