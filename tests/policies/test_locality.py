"""Locality as tables: fleet → replica because reason."""

import pytest

from router.core.decision import Decision, Held, Home, Reason
from router.core.replica import Signals
from router.policies.locality import Locality
from router.testing import load, request, snapshot

CONTEXT = 100_000  # tokens: the mean context and the prompt of these tables


def choose(policy: Locality, *loads: object, **fields: object) -> Decision:
    fields = {"prompt_tokens": CONTEXT, "mean_context": float(CONTEXT), **fields}
    return policy.choose(request("s"), snapshot(*loads, **fields))  # type: ignore[arg-type]


def ring_order(*ids: str) -> list[str]:
    return list(snapshot(*ids).ring.walk(request("s").key))


FIRST, SECOND, THIRD = ring_order("a", "b", "c")


def test_stays_home_however_busy_home_is() -> None:
    for replica in (FIRST, SECOND, THIRD):
        busy = [load(name, queued_tokens=5_000_000 if name == replica else 0) for name in "abc"]
        decision = choose(Locality(), *busy, home=Home(replica, Reason.SESSION, 96_000))
        assert decision == Decision(replica, Reason.SESSION, 96_000)


def test_says_prefix_where_the_chain_found_home() -> None:
    assert choose(Locality(), "a", "b", home=Home("b", Reason.PREFIX, 5)).reason is Reason.PREFIX


@pytest.mark.parametrize(
    ("queued_at_first", "chosen", "reason"),
    [
        (0, FIRST, Reason.RING),
        (70_000, FIRST, Reason.RING),  # dearer, but by less than 0.8 mean contexts
        (90_000, SECOND, Reason.SPREAD),
    ],
)
def test_new_session_takes_the_ring_s_choice_unless_it_is_a_margin_dearer(
    queued_at_first: int, chosen: str, reason: Reason
) -> None:
    loads = [load(name, queued_tokens=queued_at_first if name == FIRST else 0) for name in "abc"]
    decision = choose(Locality(), *loads)
    assert (decision.replica, decision.reason) == (chosen, reason)
    assert decision.passed_over == (() if reason is Reason.RING else ((FIRST, "dearer"),))


def test_bound_context_has_a_small_price() -> None:
    loads = [load(name, bound_tokens=850_000 if name == FIRST else 0) for name in "abc"]
    assert choose(Locality(), *loads).replica == SECOND
    loads = [load(name, bound_tokens=750_000 if name == FIRST else 0) for name in "abc"]
    assert choose(Locality(), *loads).replica == FIRST


@pytest.mark.parametrize(
    ("reuse", "counter", "replica"),
    [
        (0.9, "queued_tokens", FIRST),
        (0.0, "queued_tokens", SECOND),
        (0.9, "bound_tokens", SECOND),
        (0.0, "bound_tokens", FIRST),
    ],
)
def test_where_nothing_repeats_the_ring_is_worth_nothing_and_what_is_bound_costs_nothing(
    reuse: float, counter: str, replica: str
) -> None:
    amount = 50_000 if counter == "queued_tokens" else 5_000_000
    loads = [load(name, **({counter: amount} if name == FIRST else {})) for name in "abc"]
    assert choose(Locality(), *loads, reuse=reuse).replica == replica


def test_a_home_that_had_to_let_go_is_kept_unless_it_is_a_margin_dearer() -> None:
    home = Home(THIRD, Reason.SESSION, 10_000, evicted=True)
    assert choose(Locality(), "a", "b", "c", home=home).replica == THIRD
    loads = [load(name, queued_tokens=100_000 if name == THIRD else 0) for name in "abc"]
    decision = choose(Locality(), *loads, home=home)
    assert (decision.replica, decision.reason) == (FIRST, Reason.RING)
    assert decision.passed_over == ((THIRD, "evicted"),)
    assert choose(Locality(placement="ring"), *loads, home=home).replica == THIRD


def test_slow_replica_is_dearer_for_the_same_queue() -> None:
    loads = [load(name, queued_tokens=60_000, prefill_rate=2000.0 if name == FIRST else 8000.0) for name in "abc"]
    assert choose(Locality(), *loads).replica == SECOND


def test_queue_that_others_sent_counts_while_the_scrape_is_fresh() -> None:
    waiting = Signals(waiting=100)
    fresh = [load(name, signals=waiting if name == FIRST else Signals(), signals_at=999.0) for name in "abc"]
    assert choose(Locality(), *fresh, now=1000.0).replica == SECOND
    stale = [load(name, signals=waiting if name == FIRST else Signals(), signals_at=900.0) for name in "abc"]
    assert choose(Locality(), *stale, now=1000.0).replica == FIRST


def test_known_prefix_elsewhere_breaks_the_tie_only() -> None:
    decision = choose(Locality(), "a", "b", "c", held=Held(SECOND, 20_000))
    assert (decision.replica, decision.expected_cached) == (FIRST, 0)
    decision = choose(Locality(margin=0), "a", "b", "c", held=Held(SECOND, 20_000))
    assert (decision.replica, decision.expected_cached) == (SECOND, 20_000)


@pytest.mark.parametrize("why", ["ejected", "draining", "cooling"])
def test_home_that_may_not_be_chosen_is_left_for_cause(why: str) -> None:
    gone = FIRST
    rest = [name for name in "abc" if name != gone]
    decision = choose(
        Locality(), *rest, absent={gone: why}, home=Home(gone, Reason.SESSION, 9), passed_over=((gone, why),)
    )
    assert (decision.replica, decision.reason) == (SECOND, Reason.SPREAD)
    assert decision.passed_over[0] == (gone, why)
    assert decision.expected_cached == 0


def test_lost_home_gets_no_preference_and_no_expectation() -> None:
    decision = choose(Locality(), "a", "b", "c", home=Home(THIRD, Reason.SESSION, 0, lost=True))
    assert (decision.replica, decision.reason, decision.expected_cached) == (FIRST, Reason.RING, 0)
    assert decision.passed_over == ((THIRD, "lost"),)


def test_rewritten_prompt_stays_unless_home_is_a_margin_dearer() -> None:
    home = Home(THIRD, Reason.SESSION, 15_000, extends=False)
    assert choose(Locality(), "a", "b", "c", home=home).replica == THIRD
    loads = [load(name, queued_tokens=400_000 if name == THIRD else 0) for name in "abc"]
    decision = choose(Locality(), *loads, home=home)
    assert decision.replica == FIRST
    assert decision.passed_over == ((THIRD, "dearer"),) or decision.passed_over[0] == (THIRD, "rewritten")


def test_ring_placement_ignores_cost() -> None:
    loads = [load(name, queued_tokens=9_000_000 if name == FIRST else 0) for name in "abc"]
    decision = choose(Locality(placement="ring"), *loads)
    assert (decision.replica, decision.reason) == (FIRST, Reason.RING)


def test_overload_migration_is_an_option() -> None:
    loads = [load(name, queued_tokens=1_000_000 if name == FIRST else 0) for name in "abc"]
    home = Home(FIRST, Reason.SESSION, 96_000)
    assert choose(Locality(), *loads, home=home).replica == FIRST
    decision = choose(Locality(migrate_gap=3.0), *loads, home=home)
    assert decision.replica == SECOND
    assert (FIRST, "overloaded") in decision.passed_over


@pytest.mark.parametrize(("option", "value"), [("placement", "best"), ("margin", -1), ("bound_price", float("nan"))])
def test_wrong_options_are_named(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=option):
        Locality(**{option: value})  # type: ignore[arg-type]
