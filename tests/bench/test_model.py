"""One engine as arithmetic: every number here can be checked by hand."""

import pytest

from bench.model import Engine, EngineOptions, Event, Job, Stage

OPTIONS = EngineOptions(
    kv_blocks=100, block_tokens=10, prefill_rate=100.0, quantum_tokens=0, tpot_base=0.1, tpot_slope=0.0, max_running=4
)


def job(first: int, blocks: int, output: int = 1, rest: int = 0) -> Job:
    return Job(tuple(range(first, first + blocks)), blocks * 10 + rest, output)


def run(engine: Engine) -> list[Event]:
    events = []
    while (due := engine.next_event()) < 1e9:
        events += engine.advance(due)
    return events


def test_prefill_takes_uncached_tokens_over_the_rate_and_decode_one_tpot_a_token() -> None:
    engine = Engine(OPTIONS)
    engine.submit(0.0, job(0, 10, output=11))
    first, finished = run(engine)
    assert (first.stage, first.at, first.cached_tokens) == (Stage.FIRST_TOKEN, 1.0, 0)
    assert finished.stage is Stage.FINISHED
    assert finished.at == pytest.approx(2.0)


def test_the_next_turn_hits_every_full_block_of_the_last() -> None:
    engine = Engine(OPTIONS)
    engine.submit(0.0, job(0, 10, rest=5))
    run(engine)
    engine.submit(10.0, job(0, 12))
    first, _ = run(engine)
    assert first.cached_tokens == 100
    assert first.at == pytest.approx(10.2)


def test_one_token_is_always_computed() -> None:
    engine = Engine(OPTIONS)
    engine.submit(0.0, job(0, 10))
    run(engine)
    engine.submit(5.0, job(0, 10))
    assert run(engine)[0].cached_tokens == 90


def test_first_come_first_served_prefill_makes_the_second_wait() -> None:
    engine = Engine(OPTIONS)
    long, short = job(0, 20), job(500, 1)
    engine.submit(0.0, long)
    engine.submit(0.0, short)
    firsts = [event for event in run(engine) if event.stage is Stage.FIRST_TOKEN]
    assert [event.job for event in firsts] == [long, short]
    assert [event.at for event in firsts] == pytest.approx([2.0, 2.1])


def test_shared_quanta_let_a_short_prompt_pass_a_long_one() -> None:
    engine = Engine(EngineOptions(kv_blocks=100, block_tokens=10, prefill_rate=100.0, quantum_tokens=10))
    long, short = job(0, 20), job(500, 1)
    engine.submit(0.0, long)
    engine.submit(0.0, short)
    firsts = [event for event in run(engine) if event.stage is Stage.FIRST_TOKEN]
    assert [event.job for event in firsts] == [short, long]
    assert [event.at for event in firsts] == pytest.approx([0.2, 2.1])


def test_decode_slows_with_the_batch() -> None:
    engine = Engine(EngineOptions(kv_blocks=100, block_tokens=10, prefill_rate=1e9, tpot_base=0.1, tpot_slope=0.1))
    for first in (0, 100):
        engine.submit(0.0, job(first, 1, output=11))
    assert run(engine)[-1].at == pytest.approx(3.0)  # ten tokens at 0.1 + 2 x 0.1


def test_what_does_not_fit_waits_its_turn_and_overtakes_nobody() -> None:
    engine = Engine(OPTIONS)
    jobs = [job(0, 60), job(1000, 60), job(2000, 10)]
    for one in jobs:
        engine.submit(0.0, one)
    assert (engine.signals().running, engine.signals().waiting) == (1.0, 2.0)
    assert [event.job for event in run(engine) if event.stage is Stage.FIRST_TOKEN] == jobs


def test_a_job_larger_than_the_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="exceed the KV cache"):
        Engine(OPTIONS).submit(0.0, job(0, 101))


def test_a_cancelled_job_frees_its_slot_in_every_stage() -> None:
    engine = Engine(OPTIONS)
    decoding, prefilling, waiting, last = job(0, 10, output=500), job(100, 20), job(200, 30), job(300, 1)
    engine.submit(0.0, decoding)
    engine.advance(1.0)
    engine.submit(1.0, prefilling)
    engine.submit(1.0, waiting)
    for one in (decoding, prefilling, waiting):
        engine.cancel(1.5, one)
    assert engine.signals().kv_usage == 0.0
    engine.submit(1.5, last)
    assert [event.at for event in run(engine)] == [pytest.approx(1.6), pytest.approx(1.6)]


def test_signals_leave_out_what_could_be_evicted() -> None:
    engine = Engine(OPTIONS)
    engine.submit(0.0, job(0, 10, output=10))
    assert engine.signals().kv_usage == pytest.approx(0.11)
    run(engine)
    assert engine.signals().kv_usage == 0.0
    assert (engine.signals().cache_queries, engine.signals().kv_capacity_tokens) == (100.0, 1000.0)


def test_a_restart_loses_the_cache_the_counters_and_the_jobs() -> None:
    engine = Engine(OPTIONS)
    engine.submit(0.0, job(0, 10))
    run(engine)
    cut_off = job(0, 10)
    engine.submit(5.0, cut_off)
    assert engine.restart(5.0) == [cut_off]
    assert engine.cached_tokens(job(0, 10)) == 0
    assert (engine.signals().cache_queries, engine.signals().started_at) == (0.0, 5.0)
    assert engine.next_event() == float("inf")
