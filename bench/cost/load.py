"""The load generator: keep-alive connections that send the next request as soon as the last reply is whole.

No tasks, no futures per request; every reply's status and length are checked.
"""

import asyncio
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import httptools

from bench.cost.workloads import Workload, requests_of

_MAX_ERRORS = 5  # then the run is over: its figures would mean nothing
_GRACE_SECONDS = 30.0  # for what is under way when the time is up; the slowest peer needs seconds for one


class LoadError(Exception):
    """A reply was not what it had to be, or none came. Says what and how often."""


@dataclass(slots=True)
class Tally:
    """One run. Times in seconds, in the order of completion."""

    started: float = 0.0
    ended: float = 0.0
    first: "array[float]" = field(default_factory=lambda: array("d"))  # from sending to the first byte of the body
    whole: "array[float]" = field(default_factory=lambda: array("d"))  # and to the last
    arrivals: int = 0  # how often something of a body came
    errors: list[str] = field(default_factory=list)

    @property
    def done(self) -> int:
        return len(self.whole)


@dataclass(slots=True)
class Plan:
    """When a run ends, and what counts as a reply. `length` 0: the peer rewrites replies, any length will do."""

    seconds: float = 0.0  # or
    requests: int = 0
    length: int = 0
    connections: int = 0  # 0 = the workload's


class Sessions:
    """Numbers for sessions that no run before had."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        self._last += 1
        # Scattered over all 16 digits: numbers that differ in the last one alone would share a prefix in a tree.
        return (self._last * 0x9E3779B97F4A7C15) & 0xFFFF_FFFF_FFFF_FFFF


async def drive(port: int, workload: Workload, plan: Plan, sessions: Sessions) -> Tally:
    """Raises LoadError if replies are wrong or nothing comes."""
    run = _Run(port, workload, plan, sessions)
    run.lanes = [_Lane(run) for _ in range(plan.connections or workload.connections)]
    try:
        await asyncio.gather(*(lane.connect() for lane in run.lanes))
    except OSError as error:
        raise LoadError(f"no connection: {error}") from error
    run.begin()
    limit = (plan.seconds or 600.0) + _GRACE_SECONDS
    try:
        async with asyncio.timeout(limit):
            await run.over
    except TimeoutError:
        run.tally.errors.append(f"{run.running} requests without an end")
    finally:
        for lane in run.lanes:
            lane.close()
    if run.tally.errors:
        raise LoadError(f"{workload.name}: {len(run.tally.errors)} wrong: {run.tally.errors[0]}")
    return run.tally


class _Run:
    """What the lanes of one run share."""

    def __init__(self, port: int, workload: Workload, plan: Plan, sessions: Sessions) -> None:
        self.port, self.plan, self.sessions = port, plan, sessions
        self.turns = len(workload.bodies)
        self.build: Callable[[int, int], list[bytes]] = requests_of(workload, port)
        self.tally = Tally()
        self.lanes: list[_Lane] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.running = 0
        self._left = plan.requests or (1 << 60)
        self._until = float("inf")

    def begin(self) -> None:
        self.tally.started = time.perf_counter()
        if self.plan.seconds:
            self._until = self.tally.started + self.plan.seconds
        for number, lane in enumerate(self.lanes):
            lane.turn = number * self.turns // len(self.lanes)  # sessions at every age from the start
            lane.next()

    def may_go_on(self, now: float) -> bool:
        if now >= self._until or self._left <= 0 or len(self.tally.errors) >= _MAX_ERRORS:
            return False
        self._left -= 1
        self.running += 1
        return True

    def ended(self) -> None:
        self.running -= 1

    def check_over(self, now: float) -> None:
        if not self.running and not self.over.done():
            self.tally.ended = now
            self.over.set_result(None)


class _Lane(asyncio.Protocol):
    def __init__(self, run: _Run) -> None:
        self._run = run
        self._tally = run.tally
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._session = run.sessions.next()
        self.turn = 0
        self._sent = self._first = 0.0
        self._status = self._length = 0
        self._busy = self._closed = False

    async def connect(self) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", self._run.port)

    def next(self) -> None:
        now = time.perf_counter()
        run = self._run
        if self._transport is None or not run.may_go_on(now):
            run.check_over(now)
            return
        if self.turn >= run.turns:
            self._session, self.turn = run.sessions.next(), 0
        buffers = run.build(self._session, self.turn)
        self.turn += 1
        self._busy, self._first, self._status, self._length = True, 0.0, 0, 0
        self._sent = now
        self._transport.writelines(buffers)

    def close(self) -> None:
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._busy:
            self._fail(f"connection lost: {exc or 'closed'}")

    def data_received(self, data: bytes) -> None:
        before = self._length
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")
            return
        if self._length != before or not self._busy:
            self._tally.arrivals += 1

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if not self._first:
            self._first = time.perf_counter()
        self._length += len(data)

    def on_message_complete(self) -> None:
        if self._status < 200:
            return
        length = self._run.plan.length
        if self._status != 200 or (length and self._length != length):
            self._tally.errors.append(f"status {self._status}, {self._length} bytes of {length or 'some'}")
        now = time.perf_counter()
        self._tally.first.append(self._first - self._sent)
        self._tally.whole.append(now - self._sent)
        self._busy = False
        self._run.ended()
        if self._parser.should_keep_alive():
            self.next()
        else:
            self._again()

    def _again(self) -> None:
        """The proxy closes after this reply: on another connection, and on."""
        self.close()
        lane = _Lane(self._run)
        lane._session, lane.turn = self._session, self.turn
        self._run.lanes.append(lane)
        task = asyncio.get_running_loop().create_task(lane.connect())
        task.add_done_callback(lambda done: lane._fail("no connection") if done.exception() else lane.next())

    def _fail(self, why: str) -> None:
        if self._closed:
            return
        self._tally.errors.append(why)
        if self._busy:
            self._busy = False
            self._run.ended()
        self._run.check_over(time.perf_counter())
