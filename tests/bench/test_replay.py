"""Replaying against simulated replicas: every turn is counted once, and hits are those of the content."""

import asyncio

from bench.fake_engine import Replica, ReplicaOptions
from bench.replay import ReplayOptions, Run, replay


def played(options: ReplicaOptions, **rest: object) -> Run:
    async def main() -> Run:
        replica = Replica(options)
        await replica.start()
        run = Run()
        try:
            await replay(ReplayOptions(url=replica.url, time_scale=2000.0, scale_tokens=0.05, **rest), run)  # type: ignore[arg-type]
        finally:
            await replica.stop()
        return run

    return asyncio.run(main())


FAST = ReplicaOptions(time_scale=2000.0, tokens_per_event=64)


def test_sessions_are_played_to_their_last_turn_and_counted_once() -> None:
    run = played(FAST, sessions=4, concurrency=2, max_turns=5)
    assert (run.played, run.errors) == (4, 0)
    assert len(run.samples) == run.answered <= 20
    assert run.figures().hit_rate > 0.5


def test_what_the_engine_refuses_is_an_error_and_no_sample() -> None:
    run = played(ReplicaOptions(time_scale=2000.0, max_model_len=10), sessions=1, concurrency=1, max_turns=2)
    assert (len(run.samples), run.errors) == (0, 2)
    assert "maximum context length" in run.first_error


def test_a_replay_ends_when_its_time_is_over() -> None:
    run = played(FAST, sessions=100, concurrency=2, duration=0.3)
    assert run.stop.is_set()
    assert run.played < 100


def test_nobody_there_is_an_error_of_the_connection() -> None:
    async def main() -> str:
        try:
            await replay(ReplayOptions(url="http://127.0.0.1:1", sessions=1), Run())
        except OSError as error:
            return str(error)
        return ""

    assert "/v1/models" in asyncio.run(main())
