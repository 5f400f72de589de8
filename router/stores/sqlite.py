"""Bindings in a local file: they survive a restart, and the routers of one machine agree.

Law: only this store's own thread touches the file, the loop only its queues. A batch is whatever came while the last
one was written, so a placement is in the file within milliseconds, and a killed process loses no more than those.
"""

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from router.core.placed import Placed
from router.stores.figures import Figures
from router.stores.store import Limits, Listener
from router.stores.table import Table, Write, is_busy, is_damaged

_log = logging.getLogger(__name__)

QUEUE = 20_000  # sessions that wait to be written, about 6 MB: an outage of minutes at 100 placements a second
QUESTIONS = 1000  # that wait for an answer: more are not asked, they would be answered too late
BATCH = 500  # rows in one transaction: 3 ms, so that a question behind it is still in time
PATIENCE = 2.0  # seconds that a stop waits for the file
START_PATIENCE = 5.0  # seconds that a start waits for what was kept: 10 us a row; the rest comes while it runs
PIECE = 2000  # rows handed to the loop at once: 10 ms of its time
PRUNE_EVERY = 600.0  # seconds
RETRY, RETRY_MAX = 0.05, 5.0  # seconds after the first failure, doubling; a lock held for a moment costs no more
BUSY_IS_TROUBLE = 1.0  # seconds that somebody may hold the lock before it is worth a word

_Question = tuple[Sequence[int], "asyncio.Future[Placed | None]"]


class Sqlite:
    def __init__(self, path: str, limits: Limits, figures: Figures, wall: Callable[[], float] = time.time) -> None:
        self._path, self._limits, self._figures, self._wall = path, limits, figures, wall
        self._signal = threading.Condition()  # guards the next three
        self._writes: dict[int, Write] = {}
        self._questions: list[_Question] = []
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._table: Table | None = None
        self._is_loaded = self._is_damaged = False
        self._trouble = ""
        self._failing_since: float | None = None
        self._retry_at, self._pause = 0.0, RETRY
        self._prune_at = 0.0

    @property
    def is_up(self) -> bool:
        return not self._trouble

    # On the loop

    async def start(self, listener: Listener) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._started, self._ended = asyncio.Event(), asyncio.Event()
        self._thread.start()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._started.wait(), START_PATIENCE)

    def lookup(self, keys: Sequence[int]) -> "asyncio.Future[Placed | None]":
        answer: asyncio.Future[Placed | None] = asyncio.get_running_loop().create_future()
        with self._signal:
            if len(self._questions) >= QUESTIONS or self._closing:
                answer.set_result(None)
                return answer
            self._questions.append((keys, answer))
            self._signal.notify()
        return answer

    def publish(self, placed: Placed, before: str) -> None:
        with self._signal:
            self._put(Write(placed, before))
            self._signal.notify()

    def _put(self, write: Write) -> None:
        """The newer word on a session, from where the older one started. Called with the signal held."""
        waiting = self._writes.pop(write.placed.session, None)
        self._writes[write.placed.session] = write if waiting is None else Write(write.placed, waiting.before)
        if len(self._writes) > QUEUE:
            del self._writes[next(iter(self._writes))]
            self._figures.count("write", "dropped")
        self._figures.queue(len(self._writes))

    async def close(self) -> None:
        if self._loop is None:
            return
        with self._signal:
            self._closing, self._deadline = True, time.monotonic() + PATIENCE / 2
            self._signal.notify()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), PATIENCE)

    def _tell(self, call: Callable[..., object], *args: object) -> None:
        """Run something on the loop, if there still is one."""
        assert self._loop is not None
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *args)

    # On the thread

    def _run(self) -> None:
        try:
            while self._step():
                pass
        finally:
            if self._table is not None:
                self._table.close()
            self._tell(self._ended.set)

    def _step(self) -> bool:
        """One round: open if need be, answer, write, prune. False at the end."""
        closing = self._closing
        well = (closing or self._is_due()) and self._try(self._open)
        for keys, answer in self._take_questions():
            self._answer(keys, answer)
        if well and self._try(self._write) and (closing or self._try(self._prune)):
            self._worked()
        if closing:
            return bool(self._writes) and self._table is not None and time.monotonic() < self._deadline
        with self._signal:
            if not (self._closing or self._questions or (self._writes and self._is_due())):
                self._signal.wait(self._rest())
        return True

    def _is_due(self) -> bool:
        return time.monotonic() >= self._retry_at

    def _rest(self) -> float:
        now = time.monotonic()
        return max(0.0, (self._prune_at if self._failing_since is None else self._retry_at) - now)

    def _try(self, act: Callable[[], None]) -> bool:
        """Act on the file; what goes wrong puts it off and is told once."""
        try:
            act()
        except sqlite3.Error as error:
            self._failed(error)
            return False
        return True

    def _failed(self, error: sqlite3.Error) -> None:
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        self._retry_at, self._pause = now + self._pause, min(self._pause * 2, RETRY_MAX)
        if is_busy(error):
            self._pause = RETRY  # the lock is free at any moment
        elif self._table is not None:
            self._is_damaged = is_damaged(error) and self._table.is_here()
            self._table.close()
            self._table = None
        if not is_busy(error) or now - self._failing_since >= BUSY_IS_TROUBLE:
            self._note(str(error) or type(error).__name__)
            self._tell(self._started.set)  # a start does not wait for what is in trouble

    def _worked(self) -> None:
        """A round without a failure."""
        if self._table is not None and self._failing_since is not None:
            self._failing_since, self._pause, self._retry_at = None, RETRY, 0.0
        if self._table is not None:
            self._note("")

    def _note(self, trouble: str) -> None:
        before, self._trouble = self._trouble, trouble
        if bool(before) != bool(trouble):
            self._figures.up(not trouble)
        if trouble and not before:
            _log.warning("store %s: %s; going on from memory", self._path, trouble)
        elif before and not trouble:
            _log.info("store %s is well again", self._path)

    def _since(self) -> float:
        return self._wall() - self._limits.life_seconds

    def _open(self) -> None:
        if self._table is not None:
            if self._table.is_here():
                return
            self._table.close()
            self._table = None
        self._table = Table(self._path, self._wall(), is_damaged_deep=self._is_damaged)
        self._is_damaged = False
        if self._table.moved_aside:
            _log.warning("store %s was damaged or of another schema: begun anew, the old file is %s",
                         self._path, self._table.moved_aside)  # fmt: skip
        if self._table.is_new:
            self._tell(self._listener.emptied)
        if not self._is_loaded:
            self._load(self._table)

    def _load(self, table: Table) -> None:
        with self._figures.timed("load"):
            for some in table.newest(self._since(), self._limits.sessions, PIECE):
                self._tell(self._listener.loaded, some)
        self._is_loaded = True
        self._tell(self._started.set)

    def _take_questions(self) -> list[_Question]:
        with self._signal:
            taken, self._questions = self._questions, []
        return taken

    def _answer(self, keys: Sequence[int], answer: "asyncio.Future[Placed | None]") -> None:
        found: Placed | None = None
        if not answer.done() and self._table is not None:
            try:
                found = self._table.find(keys, self._since())
            except sqlite3.Error as error:
                self._figures.count("lookup", "error")
                self._failed(error)
        self._tell(_give, answer, found)

    def _write(self) -> None:
        with self._signal:
            sessions = list(self._writes)[:BATCH]
            batch = [self._writes.pop(session) for session in sessions]
        if self._table is None or not batch:
            self._put_back(batch)
            return
        try:
            with self._figures.timed("write"):
                refused = self._table.write(batch, self._since())
        except sqlite3.Error:
            self._put_back(batch)
            self._figures.count("write", "error", len(batch))
            raise
        self._figures.count("write", "ok", len(batch) - len(refused))
        self._figures.count("write", "overruled", len(refused))
        self._figures.queue(len(self._writes))
        for _, stands in refused:
            self._tell(self._listener.overruled, stands)

    def _put_back(self, batch: Sequence[Write]) -> None:
        """They come first again, and what was said of them since stays the newer word."""
        with self._signal:
            since, self._writes = self._writes, {write.placed.session: write for write in batch}
            for write in since.values():
                self._put(write)

    def _prune(self) -> None:
        if self._table is None or time.monotonic() < self._prune_at:
            return
        if not self._table.prune(self._since(), self._limits.sessions):
            self._prune_at = time.monotonic() + PRUNE_EVERY


def _give(answer: "asyncio.Future[Placed | None]", found: Placed | None) -> None:
    if not answer.done():
        answer.set_result(found)
