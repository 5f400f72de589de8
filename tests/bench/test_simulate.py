"""The production policies in virtual time: what this router is for."""

from functools import cache
from typing import Any

from bench.report import Figures
from bench.simulate import SimulationOptions, simulate
from bench.traces import Session, claude_sessions


@cache
def sessions() -> tuple[Session, ...]:
    return tuple(session for session in claude_sessions() if len(session.turns) > 20)[:60]


def small(policy: str, **rest: Any) -> Figures:
    """Twenty agents on four replicas for half an hour, a second of ours."""
    options = SimulationOptions(policy=policy, lanes=20, seconds=1800.0, warm_up=600.0, prefill_rate=4000.0, **rest)
    return simulate(options, sessions())


def test_locality_beats_round_robin() -> None:
    ours, theirs = small("locality"), small("round_robin")
    assert ours.hit_rate > 2 * theirs.hit_rate
    assert ours.ttft_mean < theirs.ttft_mean / 3
    assert ours.turns_per_second > theirs.turns_per_second


def test_a_conversation_without_a_header_is_recognised_nearly_as_well() -> None:
    named, unnamed = (small("locality", header=header, capacity=3.0) for header in (True, False))
    assert unnamed.hit_rate > named.hit_rate - 0.02  # room for all: only recognition can lose hits here


def test_equal_options_give_equal_figures() -> None:
    assert small("locality") == small("locality")
