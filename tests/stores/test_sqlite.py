"""The local file: what it keeps, who wins, and that no trouble with it reaches a request."""

import asyncio
import logging
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from router.core.decision import Decision, Reason
from router.core.fleet import Fleet, FleetOptions
from router.core.placed import Placed
from router.core.replica import Replica
from router.core.request import Request
from router.stores import Figures, Limits, Sharing, Sqlite, open_store, sqlite_path
from router.stores.table import Table

PATIENCE_SECONDS = 10.0  # never reached in a test that passes


async def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def size_of(path: Path) -> int:
    return path.stat().st_size


def spoil(path: Path) -> None:
    """All but the first page is garbage."""
    raw = path.read_bytes()
    path.write_bytes(raw[:4096] + b"\xee" * (len(raw) - 4096))


def rows_in(path: Path) -> int:
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(path)) as db:
        return int(db.execute("SELECT count(*) FROM placed").fetchone()[0])
    return 0


def take_away(path: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        Path(f"{path}{ending}").unlink()


class Opened:
    """A store that runs, and what it has said."""

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        self.registry = CollectorRegistry()
        self.store = Sqlite(str(path), limits or Limits(), Figures(self.registry, "sqlite"))
        self.rows: list[Placed] = []
        self.stands: list[Placed] = []

    def loaded(self, those: Sequence[Placed]) -> None:
        self.rows += those

    def overruled(self, stands: Placed) -> None:
        self.stands.append(stands)

    def emptied(self) -> None: ...

    def count(self, operation: str, outcome: str) -> float:
        labels = {"store": "sqlite", "operation": operation, "outcome": outcome}
        return self.registry.get_sample_value("router_store_operations_total", labels) or 0.0

    async def written(self, rows: int) -> None:
        await until(lambda: self.count("write", "ok") + self.count("write", "overruled") >= rows)


@asynccontextmanager
async def opened(path: Path, limits: Limits | None = None) -> AsyncIterator[Opened]:
    one = Opened(path, limits)
    await one.store.start(one)
    try:
        yield one
    finally:
        await one.store.close()


def placed(session: int, replica: str = "a:1", *, seen: float | None = None, tail: int = 0) -> Placed:
    return Placed(session, replica, 100, 1 << 127, tail, seen or time.time(), 1234.5, "tool")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Somebody else holds the file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        yield
        db.execute("ROLLBACK")


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file of this process grows beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def test_what_was_written_is_there_at_the_next_start(path: Path) -> None:
    rows = [placed(1, seen=time.time() - 60), placed((1 << 128) - 1, "b:1", tail=77)]

    async def main() -> None:
        async with opened(path) as one:
            for row in rows:
                one.store.publish(row, "")
        async with opened(path) as two:
            assert two.rows == rows

    run(main)


def test_a_row_is_found_by_its_session_or_by_its_last_link(path: Path) -> None:
    async def main() -> None:
        async with opened(path) as one:
            one.store.publish(placed(1, tail=11), "")
            one.store.publish(placed(2, tail=12), "")
            await one.written(2)
            for keys, session in [((1,), 1), ((12,), 2), ((99, 12, 1), 2), ((99,), 0), ((), 0)]:
                found = await one.store.lookup(keys)
                assert (found.session if found else 0) == session
            deep = await one.store.lookup([*range(1000, 5000), 11])
            assert deep is not None
            assert deep.session == 1

    run(main)


def test_the_first_writer_wins_and_the_second_is_told(path: Path) -> None:
    """F92"""

    async def main() -> None:
        async with opened(path) as one, opened(path) as two:
            one.store.publish(placed(1, "a:1"), "")
            await one.written(1)
            two.store.publish(placed(1, "b:1"), "")
            await until(lambda: two.stands)
            assert two.stands[0].replica == "a:1"
            found = await two.store.lookup((1,))
            assert found is not None
            assert found.replica == "a:1"

    run(main)


def test_a_move_is_written_only_from_where_the_session_was(path: Path) -> None:
    """F146"""

    async def main() -> None:
        async with opened(path) as one, opened(path) as two:
            one.store.publish(placed(1, "a:1"), "")
            await one.written(1)
            one.store.publish(placed(1, "b:1"), "a:1")
            await one.written(2)
            two.store.publish(placed(1, "c:1"), "a:1")
            await until(lambda: two.stands)
            assert two.stands[0].replica == "b:1"
            two.store.publish(placed(1, "c:1"), "b:1")
            await two.written(2)
            found = await one.store.lookup((1,))
            assert found is not None
            assert found.replica == "c:1"

    run(main)


def test_words_that_wait_are_one_word_from_where_the_first_began(path: Path) -> None:
    async def main() -> None:
        one = Opened(path)
        one.store.publish(placed(1, "a:1"), "")
        one.store.publish(placed(1, "b:1"), "a:1")
        await one.store.start(one)
        await one.written(1)
        found = await one.store.lookup((1,))
        assert found is not None
        assert (found.replica, one.stands) == ("b:1", [])
        await one.store.close()

    run(main)


def test_what_has_outlived_itself_is_neither_found_nor_loaded_nor_in_the_way(path: Path) -> None:
    old = placed(1, "a:1", seen=time.time() - 100)

    async def main() -> None:
        async with opened(path) as one:
            one.store.publish(old, "")
            one.store.publish(placed(2, "a:1", seen=time.time() - 100), "")
        async with opened(path, Limits(life_seconds=50)) as two:
            assert two.rows == []
            assert await two.store.lookup((1,)) is None
            two.store.publish(placed(1, "b:1"), "")
            await two.written(1)
            assert two.stands == []
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("SELECT replica FROM placed").fetchall() == [("b:1",)]

    run(main)


def test_only_the_newest_sessions_are_kept(path: Path) -> None:
    async def main() -> None:
        async with opened(path) as one:
            for session in range(1, 31):
                one.store.publish(placed(session, seen=time.time() - 100 + session), "")
        async with opened(path, Limits(sessions=10)) as two:
            assert [row.session for row in two.rows] == list(range(21, 31))
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("SELECT count(*) FROM placed").fetchone() == (10,)

    run(main)


def test_a_locked_file_delays_no_question_and_loses_no_word(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "router")

    async def main() -> None:
        async with opened(path) as one:
            one.store.publish(placed(1), "")
            await one.written(1)
            with locked(path):
                one.store.publish(placed(2), "")
                await until(lambda: one.count("write", "error"))
                async with asyncio.timeout(PATIENCE_SECONDS):  # readers of a WAL do not wait for its writer
                    assert await one.store.lookup((1,)) is not None
                await until(lambda: not one.store.is_up)
            await until(lambda: one.store.is_up)
            assert await one.store.lookup((2,)) is not None

    run(main)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "locked" in caplog.text


def test_a_full_disk_is_told_once_and_recovered_from(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with opened(path) as one:
            one.store.publish(placed(1), "")
            await one.written(1)
            with full_disk(size_of(Path(f"{path}-wal"))):
                for session in range(2, 400):
                    one.store.publish(placed(session), "")
                await until(lambda: not one.store.is_up)
                assert await one.store.lookup((1,)) is not None or not one.store.is_up
            await until(lambda: one.store.is_up)
            assert await one.store.lookup((399,)) is not None

    run(main)
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_a_place_that_cannot_be_opened_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """F143, for a file"""
    folder = tmp_path / "later"

    async def main() -> None:
        one = Opened(folder / "store.db")
        starting = asyncio.create_task(one.store.start(one))
        one.store.publish(placed(1), "")
        assert await one.store.lookup((1,)) is None
        await until(lambda: not one.store.is_up)
        folder.mkdir()
        await starting
        await one.written(1)
        assert one.store.is_up
        await one.store.close()

    run(main)
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write what is read-only")
def test_a_read_only_file_is_still_read(path: Path) -> None:
    async def main() -> None:
        async with opened(path) as one:
            one.store.publish(placed(1), "")
        os.chmod(path, 0o444)
        async with opened(path) as two:
            two.store.publish(placed(2), "")
            await until(lambda: not two.store.is_up)

    run(main)


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_corrupt_file_is_moved_aside_and_a_new_one_begun(
    path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(content)

    async def main() -> None:
        async with opened(path) as one:
            one.store.publish(placed(1), "")
            await one.written(1)

    run(main)
    (aside,) = path.parent.glob("store.db.broken-*")
    assert aside.read_bytes() == content
    assert str(aside) in caplog.text


def test_a_file_that_opens_and_is_broken_inside_is_moved_aside_too(path: Path) -> None:
    async def main() -> None:
        async with opened(path) as one:
            for session in range(2000):
                one.store.publish(placed(session, tail=session), "")
        spoil(path)
        async with opened(path) as two:
            two.store.publish(placed(5), "")
            await two.written(1)

    run(main)
    assert list(path.parent.glob("store.db.broken-*"))


def test_another_schema_is_set_aside(path: Path) -> None:
    async def main() -> None:
        async with opened(path) as one:
            one.store.publish(placed(1), "")
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA user_version = 99")
        async with opened(path) as two:
            assert two.rows == []

    run(main)
    assert list(path.parent.glob("store.db.broken-*"))


def test_somebody_elses_database_is_left_alone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE accounts (id)")
    before = path.read_bytes()

    async def main() -> None:
        one = Opened(path)
        starting = asyncio.create_task(one.store.start(one))
        await until(lambda: not one.store.is_up)
        starting.cancel()
        await one.store.close()

    run(main)
    assert path.read_bytes() == before
    assert "something else" in caplog.text


def test_a_file_that_was_taken_away_is_begun_anew(path: Path) -> None:
    async def main() -> None:
        async with opened(path) as one:
            one.store.publish(placed(1), "")
            await one.written(1)
            take_away(path)
            one.store.publish(placed(2), "")
            await one.written(2)
            async with opened(path) as two:
                assert [row.session for row in two.rows] == [2]

    run(main)


def test_the_queue_is_bounded_and_the_oldest_word_goes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.stores.sqlite.QUEUE", 3)

    async def main() -> None:
        one = Opened(path)
        for session in range(1, 6):
            one.store.publish(placed(session), "")
        assert one.count("write", "dropped") == 2
        await one.store.start(one)
        await one.written(3)
        assert await one.store.lookup((2,)) is None
        assert await one.store.lookup((3,)) is not None
        await one.store.close()

    run(main)


def test_abandoned_questions_do_not_mix_up_answers(path: Path) -> None:
    """F145"""

    async def main() -> None:
        async with opened(path) as one:
            for session in range(1, 201):
                one.store.publish(placed(session, f"r{session}:1"), "")
            await one.written(200)

            async def ask(session: int) -> None:
                found = await one.store.lookup((session,))
                assert found is not None
                assert found.replica == f"r{session}:1"

            asked = [asyncio.create_task(ask(1 + index % 200)) for index in range(900)]
            await asyncio.sleep(0)
            for index in range(0, 900, 3):
                asked[index].cancel()
            ended = await asyncio.gather(*asked, return_exceptions=True)
            assert {type(each) for each in ended} == {type(None), asyncio.CancelledError}

    run(main)


_WRITER = """
import asyncio, sys, time
from router.core.placed import Placed
from router.stores import open_store
class Nobody:
    loaded = overruled = lambda self, word: None
    emptied = lambda self: None
async def main():
    store = open_store("sqlite://" + sys.argv[1])
    await store.start(Nobody())
    session = 0
    while True:
        session += 1
        store.publish(Placed(session, "a:1", seen=time.time()), "")
        print(session, time.time(), flush=True)
        await asyncio.sleep(0.001)
asyncio.run(main())
"""


def test_a_killed_process_loses_at_most_its_last_batch(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(500)]
        process.send_signal(signal.SIGKILL)
        said += process.stdout.readlines()
    words = {int(line.split()[0]): float(line.split()[1]) for line in said if line.endswith("\n")}

    async def main() -> None:
        async with opened(path) as one:
            kept = {row.session for row in one.rows}
            lost = sorted(set(words) - kept)
            assert kept >= set(range(1, max(kept) + 1)), "only the end may be missing"
            span = (words[max(words)] - words[lost[0]]) * 1000 if lost else 0.0
            with capsys.disabled():
                print(f"\nkilled: {len(lost)} of {len(words)} placements lost, the last {span:.1f} ms")

    run(main)


# Sharing: between a fleet and a store


def fleet_of(*ids: str) -> Fleet:
    fleet = Fleet(time.monotonic, FleetOptions())
    fleet.update([Replica(name, f"http://{name}") for name in ids])
    for load in fleet.loads.values():
        fleet.probed(load, True)
    return fleet


class Stuck:
    """A store that never answers. Its place is that of a frozen disk or server."""

    is_up = True

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[Placed | None]] = []

    async def start(self, listener: object) -> None: ...
    async def close(self) -> None: ...
    def publish(self, placed: Placed, before: str) -> None: ...
    def lookup(self, keys: object) -> "asyncio.Future[Placed | None]":
        self.asked.append(asyncio.get_running_loop().create_future())
        return self.asked[-1]


def test_a_file_begun_anew_is_filled_from_memory(path: Path) -> None:
    async def main() -> None:
        fleet, registry = fleet_of("a:1"), CollectorRegistry()
        sharing = Sharing(
            fleet, Sqlite(str(path), Limits(), Figures(registry, "sqlite")), Figures(CollectorRegistry(), "x")
        )
        await sharing.start()
        for session in (1, 2):
            with fleet.lease(Request("chat", session=session), Decision("a:1", Reason.RING)) as lease:
                lease.first_byte()
        await until(lambda: rows_in(path) == 2)
        take_away(path)
        await sharing.recall(Request("chat", session=3))
        await until(lambda: rows_in(path) == 2)
        await sharing.close()

    run(main)


def test_nobody_waits_while_an_earlier_question_is_overdue() -> None:
    """F142, for whatever store is frozen"""

    async def main() -> None:
        store, registry = Stuck(), CollectorRegistry()
        sharing = Sharing(fleet_of("a:1"), store, Figures(registry, "x"))
        await sharing.recall(Request("chat", session=1))
        for session in range(2, 100):
            await sharing.recall(Request("chat", session=session))
        assert len(store.asked) == 1
        store.asked[0].set_result(None)
        asking = asyncio.create_task(sharing.recall(Request("chat", session=2)))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert not store.asked[1].cancelled()

    run(main)


def test_sessions_known_to_others_are_found_before_they_are_placed(path: Path) -> None:
    async def main() -> None:
        async with opened(path) as other:
            sharing = Sharing(
                fleet := fleet_of("a:1", "b:1"), open_store(f"sqlite://{path}"), Figures(CollectorRegistry(), "x")
            )
            await sharing.start()
            other.store.publish(placed(5, "b:1"), "")
            other.store.publish(placed(6, "gone:1"), "")
            await other.written(2)
            for session, home in [(5, "b:1"), (6, "gone:1")]:
                await sharing.recall(Request("chat", session=session))
                binding = fleet.affinity.binding(session)
                assert binding is not None
                assert binding.replica == home
            await sharing.recall(Request("chat", session=5))
            await sharing.recall(Request("chat", session=7))
            await sharing.close()

    run(main)


def test_a_hundred_thousand_rows_are_loaded_at_a_start(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, now = 100_000, time.time()
    blob = [(index * 0x9E3779B97F4A7C15 % (1 << 64)).to_bytes(16, "big") for index in range(rows)]
    table = Table(str(path), now)
    table.close()
    with closing(sqlite3.connect(path)) as db, db:
        values = ((key, f"r{key[-1] % 8}:1", 9, key, key, now - key[-2], None, "tool") for key in blob)
        db.executemany("INSERT INTO placed VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)

    async def main() -> None:
        fleet, store = fleet_of("r1:1"), Sqlite(str(path), Limits(), Figures(CollectorRegistry(), "sqlite"))
        sharing = Sharing(fleet, store, Figures(CollectorRegistry(), "sharing"))
        begun = time.perf_counter()
        await sharing.start()
        seconds = time.perf_counter() - begun
        await until(lambda: fleet.sessions == rows)
        with capsys.disabled():
            print(f"\n{rows} rows loaded and bound in {seconds:.2f} s, {size_of(path) / 1e6:.0f} MB")
        await sharing.close()

    run(main)


@pytest.mark.parametrize(
    "url", ["sqlite://a.db", "sqlite:///", "sqlite:///var/", "sqlite:///:memory:", "redis://h", "disk"]
)
def test_words_that_name_no_store_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="sqlite"):
        open_store(url)


def test_paths_are_absolute_with_three_or_four_slashes() -> None:
    assert sqlite_path("sqlite:///var/a%20b.db") == sqlite_path("sqlite:////var/a b.db") == "/var/a b.db"


def test_the_memory_store_keeps_nothing() -> None:
    async def main() -> None:
        store = open_store("memory")
        await store.start(Opened(Path("unused")))
        store.publish(placed(1), "")
        assert await store.lookup((1,)) is None
        assert store.is_up
        await store.close()

    run(main)
