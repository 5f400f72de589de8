"""Real router processes on one file: what survives a restart, and that two of them agree."""

import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.fleet import running_fleet
from tests.running import RunningRouter, running_router, until

FLEET = ("--replicas", "4", "--time-scale", "200")
TEXT = "some words that make a context " * 40


@pytest.fixture(scope="module")
def engines() -> Iterator[list[str]]:
    with running_fleet(FLEET) as urls:
        yield urls


def body(name: str, turns: int) -> dict[str, Any]:
    messages = [{"role": "system", "content": "be good"}, {"role": "user", "content": f"{name} {TEXT}"}]
    for turn in range(turns - 1):
        messages.append({"role": "assistant", "content": f"answer {turn} {TEXT}"})
        messages.append({"role": "user", "content": f"question {turn} {TEXT}"})
    return {"model": "sim", "max_tokens": 2, "messages": messages}


def named(name: str) -> dict[str, str]:
    return {"x-session-id": name} if name.startswith("n") else {}


def turn(router: RunningRouter, name: str, turns: int) -> tuple[str, str]:
    """(replica, reason)"""
    answer = router.http.post("/v1/chat/completions", json=body(name, turns), headers=named(name))
    assert answer.status_code == 200, answer.text
    return answer.headers["x-router-replica"], answer.headers["x-router-reason"]


def is_written(router: RunningRouter) -> bool:
    return router.metric("router_store_queue") == 0


def flags(path: Path) -> tuple[str, ...]:
    return "--store", f"sqlite://{path}", "--admission", "off"


NAMES = [*(f"n{index}" for index in range(6)), *(f"c{index}" for index in range(6))]
REASONS = {name: "session" if name.startswith("n") else "prefix" for name in NAMES}


def scatter(router: RunningRouter) -> Mapping[str, str]:
    """Three turns of every session; half of them have left their ring home since."""
    for name in NAMES:
        turn(router, name, 1)
        home, _ = turn(router, name, 2)
        if name[-1] in "135":
            router.drain(home)
            assert turn(router, name, 3)[0] != home
            router.undrain(home)
    return {name: turn(router, name, 3)[0] for name in NAMES}


def live_and_be_killed(engines: list[str], path: Path, homes: dict[str, str]) -> None:
    with running_router(engines, *flags(path), token="t") as router:
        homes |= scatter(router)
        until(partial(is_written, router))
        os.kill(router.pid, signal.SIGKILL)


def test_sessions_come_home_after_a_restart(engines: list[str], tmp_path: Path) -> None:
    with running_router(engines, *flags(tmp_path / "store.db"), token="t") as router:
        homes = scatter(router)
    with running_router(engines, *flags(tmp_path / "store.db")) as router:
        assert {name: turn(router, name, 4) for name in NAMES} == {name: (homes[name], REASONS[name]) for name in NAMES}


def test_sessions_come_home_after_a_crash(engines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    homes: dict[str, str] = {}
    with pytest.raises(AssertionError, match="exit -9"):
        live_and_be_killed(engines, path, homes)
    with running_router(engines, *flags(path)) as router:
        assert {name: turn(router, name, 4) for name in NAMES} == {name: (homes[name], REASONS[name]) for name in NAMES}


def test_without_a_store_the_ring_decides_after_a_restart(engines: list[str]) -> None:
    with running_router(engines, "--admission", "off", token="t") as router:
        homes = scatter(router)
    with running_router(engines, "--admission", "off") as router:
        after = {name: turn(router, name, 4) for name in NAMES}
    assert {reason for _, reason in after.values()} == {"ring"}
    assert any(after[name][0] != homes[name] for name in NAMES)


def test_an_engine_that_restarted_meanwhile_is_not_believed_warm(tmp_path: Path) -> None:
    with running_fleet(FLEET) as urls:
        with running_router(urls, *flags(tmp_path / "store.db")) as router:
            home, _ = turn(router, "n1", 1)
        time.sleep(1.1)  # start times nearer than that are the same
        httpx.post(f"http://{home}/reset_prefix_cache").raise_for_status()
        with running_router(urls, *flags(tmp_path / "store.db")) as router:
            verdict = router.explain("/v1/chat/completions", body("n1", 2), named("n1"))
            assert (verdict["home"], verdict["home_lost"]) == (home, True)


def test_two_routers_agree_on_sessions_whose_first_turns_came_at_once(
    engines: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F92, F146, F149: 200 sessions, cost placement without any preference of the ring, so that views differ."""
    setup = (*flags(tmp_path / "store.db"), "--placement-margin", "0")
    with running_router(engines, *setup) as one, running_router(engines, *setup) as two:

        async def both(client: httpx.AsyncClient, name: str, turns: int) -> tuple[str, str]:
            answers = await asyncio.gather(
                *(
                    client.post(f"{router.url}/v1/chat/completions", json=body(name, turns), headers=named(name))
                    for router in (one, two)
                )
            )
            first, second = (answer.raise_for_status().headers["x-router-replica"] for answer in answers)
            return first, second

        async def round_of(turns: int) -> list[tuple[str, str]]:
            slots = asyncio.Semaphore(20)

            async def one_of(name: str) -> tuple[str, str]:
                async with slots:
                    return await both(client, name, turns)

            async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
                return await asyncio.gather(*(one_of(f"{kind}{index}") for index in range(100) for kind in "nc"))

        apart = sum(first != second for first, second in asyncio.run(round_of(1)))
        for router in (one, two):
            until(partial(is_written, router))
        assert [pair for pair in asyncio.run(round_of(2)) if pair[0] != pair[1]] == []
        with capsys.disabled():
            print(f"\n{apart} of 200 pairs of simultaneous first turns went apart, none of the second turns")


def test_turns_spread_over_two_routers_stay_on_one_replica(engines: list[str], tmp_path: Path) -> None:
    """F149"""
    setup = (*flags(tmp_path / "store.db"), "--placement-margin", "0")
    with running_router(engines, *setup) as one, running_router(engines, *setup) as two:
        for name in NAMES:
            homes = set()
            for turns in range(1, 7):
                router, other = (one, two) if turns % 2 else (two, one)
                homes.add(turn(router, name, turns)[0])
                until(partial(is_written, other))
            assert len(homes) == 1, name


def test_a_locked_file_makes_no_request_wait_or_fail(
    engines: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F142: held for two seconds, from before the first write, so that not even a look-up can be answered."""
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        started = time.monotonic()
        with running_router(engines, *flags(path)) as router:
            until(lambda: "going on from memory" in router.log())
            times = []
            with ThreadPoolExecutor(4) as pool:

                def timed(index: int) -> float:
                    begun = time.perf_counter()
                    turn(router, f"n{index % 40}", 1)
                    return time.perf_counter() - begun

                times = list(pool.map(timed, range(120)))
            assert router.metric("router_store_up") == 0
            time.sleep(max(0.0, started + 2 - time.monotonic()))
            db.execute("ROLLBACK")
            until(lambda: "is well again" in router.log() and router.metric("router_store_queue") == 0)
            assert router.log().count("going on from memory") == 1
            rows = db.execute("SELECT count(*) FROM placed").fetchone()[0]
            overhead = {le: router.metric("router_overhead_seconds_bucket", le=le) for le in ("0.01", "0.05", "0.25")}
    assert rows == 40
    assert max(times) < 1.0, "the lock was held for longer"
    with capsys.disabled():
        print(f"\nlocked: slowest of 120 requests {max(times) * 1000:.0f} ms, own time before dispatch {overhead}")
