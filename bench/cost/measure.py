"""A run: every peer started, checked and measured in each pass, one after another; the order turns with the passes.

Law: whoever fails to install, start or answer gets a row that says why, and the run goes on.
"""

import asyncio
import gc
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median

import httptools
import uvloop

from bench.cost.load import LoadError, Plan, Sessions, Tally, drive
from bench.cost.mock import Mock, running_replicas
from bench.cost.peers import InstallError, Peer, Site, install
from bench.cost.process import StartError, Watched, cores, running, until
from bench.cost.results import Cell, Latency, Memory, Options, Results, Row
from bench.cost.workloads import Workload, requests_of, workloads

Say = Callable[[str], None]

REPLICAS = 4
_START_SECONDS = 90.0  # litellm imports for half a minute on a busy core
_REPLY_SECONDS = 10.0
_SETTLE_SECONDS = 1.0  # after the first good answer: routers still greet their other replicas
_MEMORY_SECONDS = 60.0  # the slowest peer would take minutes for 2,000 large bodies
_PAUSE_SECONDS = 0.05
_LATENCY = {"SMALL": 400, "STREAM": 100, "AGENT": 150}  # requests one after another; the 99th percentile needs these


def survey(peers: Sequence[Peer], options: Options, cache: Path, say: Say) -> Results:
    """Install, start, check and measure all of them."""
    rows = [Row(peer.name, peer.kind, peer.group) for peer in peers]
    homes: dict[str, Path] = {}
    for peer, row in zip(peers, rows, strict=True):
        say(f"{peer.name}: installing")
        try:
            homes[peer.name] = install(peer, cache)
        except InstallError as error:
            row.failed = str(error)
            say(f"{peer.name}: {error}")
    chosen = {name: workload for name, workload in workloads().items() if name in (options.workloads or workloads())}
    results = Results(Row("direct", "none"), rows, tuple(chosen), options)
    with tempfile.TemporaryDirectory(prefix="bench-cost-") as folder:
        bench = _Bench(peers, homes, chosen, results, Path(folder), say)
        uvloop.run(bench.run())
    return results


class _Bench:
    def __init__(
        self,
        peers: Sequence[Peer],
        homes: Mapping[str, Path],
        chosen: Mapping[str, Workload],
        results: Results,
        folder: Path,
        say: Say,
    ) -> None:
        self._peers, self._homes, self._chosen = peers, homes, chosen
        self._results, self._options = results, results.options
        self._folder, self._say = folder, say
        self._sessions = Sessions()

    async def run(self) -> None:
        self._core, ours = cores()
        with _steady(ours):
            async with running_replicas(REPLICAS) as mock:
                self._mock: Mock = mock
                for number in range(self._options.passes):
                    await self._pass(number)
                    gc.collect()

    async def _pass(self, number: int) -> None:
        await self._bare()
        pairs = list(zip(self._peers, self._results.rows, strict=True))
        turned = pairs[number % len(pairs) :] + pairs[: number % len(pairs)] if pairs else []
        for peer, row in turned:
            if row.failed:
                continue
            self._say(f"pass {number + 1}/{self._options.passes}: {peer.name}")
            try:
                await self._measure(peer, row)
                if number == 0 and self._options.memory_requests:
                    await self._grow(peer, row)
            except (StartError, LoadError) as error:
                row.failed = str(error)
                self._say(f"{peer.name}: {error}")

    async def _bare(self) -> None:
        """The same load without a proxy: what it can do, and the latency that is not a proxy's."""
        direct, port = self._results.direct, self._mock.ports[0]
        for name, workload in self._chosen.items():
            self._mock.reply = workload.reply
            plan = Plan(seconds=min(self._options.seconds, 1.0), length=len(workload.reply.body))
            tally = await drive(port, workload, plan, self._sessions)
            direct.cells.setdefault(name, []).append(Cell(0.0, _rate(tally), tally.arrivals / tally.done))
        await self._latencies(direct, port)

    async def _measure(self, peer: Peer, row: Row) -> None:
        async with self._started(peer, row) as (watched, site):
            before = watched.cpu_seconds()
            await asyncio.sleep(self._options.idle_seconds)
            row.idle_ms.append((watched.cpu_seconds() - before) / self._options.idle_seconds * 1e3)
            for name, workload in self._chosen.items():
                row.cells.setdefault(name, []).append(await self._cell(watched, site.port, workload, row))
            await self._latencies(row, site.port)

    async def _cell(self, watched: Watched, port: int, workload: Workload, row: Row) -> Cell:
        seconds = self._options.seconds
        self._mock.reply = workload.reply
        length = len(workload.reply.body) if row.verbatim else 0
        await drive(port, workload, Plan(seconds=min(seconds / 3, 1.0), length=length), self._sessions)
        await asyncio.sleep(_PAUSE_SECONDS)
        before = watched.cpu_seconds()
        tally = await drive(port, workload, Plan(seconds=seconds, length=length), self._sessions)
        await asyncio.sleep(_PAUSE_SECONDS)  # what is settled after the last byte counts too
        spent = watched.cpu_seconds() - before
        return Cell(spent / tally.done * 1e6, _rate(tally), tally.arrivals / tally.done)

    async def _latencies(self, row: Row, port: int) -> None:
        for name, requests in _LATENCY.items():
            workload = self._chosen.get(name)
            if workload is None:
                continue
            self._mock.reply = workload.reply
            length = len(workload.reply.body) if row.verbatim else 0
            few = requests if row.kind != "python" else requests // 10
            plan = Plan(requests=few, length=length, connections=1)
            await drive(port, workload, Plan(requests=few // 10, length=length, connections=1), self._sessions)
            tally = await drive(port, workload, plan, self._sessions)
            row.latency.setdefault(name, []).append(_latency(tally))

    async def _grow(self, peer: Peer, row: Row) -> None:
        """Memory of a fresh process before and after many distinct large bodies."""
        workload = workloads()["AGENT"]
        async with self._started(peer, row) as (watched, site):
            self._mock.reply = workload.reply
            length = len(workload.reply.body) if row.verbatim else 0
            before, sent, wanted = watched.memory_bytes(), 0, self._options.memory_requests
            deadline = asyncio.get_running_loop().time() + _MEMORY_SECONDS
            while sent < wanted and asyncio.get_running_loop().time() < deadline:
                plan = Plan(requests=min(100, wanted - sent), length=length)
                sent += (await drive(site.port, workload, plan, self._sessions)).done
            row.memory = Memory(before / 1e6, watched.memory_bytes() / 1e6, sent)

    @asynccontextmanager
    async def _started(self, peer: Peer, row: Row) -> AsyncIterator[tuple[Watched, Site]]:
        port, spare = _free_ports(2)
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        site = Site(self._homes[peer.name], port, spare, self._mock.ports, folder)
        start = peer.start(site)
        async with running(start.command, start.environment, folder / "log", self._core) as watched:
            small = workloads()["SMALL"]
            self._mock.reply = small.reply
            await until(_Answers(port, small), watched, _START_SECONDS)
            await asyncio.sleep(_SETTLE_SECONDS)
            row.verbatim = await self._forwards(port)
            yield watched, site

    async def _forwards(self, port: int) -> bool:
        """Whether replies of every kind come back byte for byte. Raises LoadError if they do not come at all."""
        verbatim = True
        for name, workload in self._chosen.items():
            self._mock.reply = workload.reply
            asked = sum(self._mock.served.values())
            status, body = await _ask(port, workload)
            if status != 200 or sum(self._mock.served.values()) == asked:
                raise LoadError(f"{name}: status {status}: {body[:120].decode(errors='replace')!r}")
            verbatim &= body == workload.reply.body
        return verbatim


@contextmanager
def _steady(core: set[int]) -> Iterator[None]:
    """On one core, without pauses for garbage: ours would be taken for the proxy's latency."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, core)
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
        os.sched_setaffinity(0, before)


class _Answers:
    """Whether the peer forwards by now."""

    def __init__(self, port: int, workload: Workload) -> None:
        self._port, self._workload = port, workload

    async def __call__(self) -> bool:
        try:
            return (await _ask(self._port, self._workload))[0] == 200
        except LoadError:
            return False


async def _ask(port: int, workload: Workload) -> tuple[int, bytes]:
    """One request, the whole reply. Raises LoadError."""
    reply = _Whole()
    try:
        async with asyncio.timeout(_REPLY_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.writelines(requests_of(workload, port)(1, 0))
            parser = httptools.HttpResponseParser(reply)
            while not reply.complete and (data := await reader.read(1 << 16)):
                parser.feed_data(data)
            writer.close()
    except (OSError, TimeoutError, httptools.HttpParserError) as error:
        raise LoadError(f"{type(error).__name__}: {error}") from error
    if not reply.complete:
        raise LoadError("the reply broke off")
    return parser.get_status_code(), b"".join(reply.parts)


class _Whole:
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.complete = False

    def on_body(self, data: bytes) -> None:
        self.parts.append(data)

    def on_message_complete(self) -> None:
        self.complete = True


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _rate(tally: Tally) -> float:
    return tally.done / (tally.ended - tally.started)


def _latency(tally: Tally) -> Latency:
    whole, first = sorted(tally.whole), sorted(tally.first)
    p99 = whole[min(len(whole) - 1, round(0.99 * (len(whole) - 1)))]
    return Latency(median(whole) * 1e6, p99 * 1e6, median(first) * 1e6)
