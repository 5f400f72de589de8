"""One run: replicas and clients here, the router in its own process; a storm, then quiet, then the questions."""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random

import httpx

from bench.chaos.book import ACCESS, Book
from bench.chaos.client import Ending, Lane, Session, new_session
from bench.chaos.options import Options
from bench.chaos.process import RouterProcess, running
from bench.chaos.replica import Replica
from bench.chaos.storm import Storm

STALL_SECONDS = 6.0  # of a replica; the router's timeouts are half of it, so that both sides give up first at times
QUIET_SECONDS = 20.0  # idle connections expire after 4 s, ejections after up to 30 s but for a good probe
FLAGS = (
    *("--first-byte-timeout", "3", "--idle-timeout", "3", "--connect-timeout", "2", "--max-wait", "3"),
    *("--health-interval", "0.5", "--health-timeout", "2", "--scrape-interval", "0.5", "--drain-timeout", "3"),
    *("--max-body-bytes", "4MiB", "--max-requests", "500"),
)
_WRONG_WORDS = ("Traceback", '"exception"', '"level": "error"', "never retrieved", "never awaited")


@dataclass(slots=True)
class Report:
    """What a run found. `violations` empty is a pass."""

    book: Book
    figures: list[tuple[str, str]] = field(default_factory=list)

    def add(self, name: str, value: object) -> None:
        self.figures.append((name, str(value)))


class Run:
    """The state of one run; `play()` is the run."""

    def __init__(self, options: Options, folder: Path) -> None:
        self.options = options
        self.chance = Random(options.seed)
        self.book = Book()
        self.report = Report(self.book)
        self._file = folder / "replicas.yaml"
        self._log = Path(options.log) if options.log else folder / "router.log"
        self._replicas = [
            Replica(Random(self.chance.random()), options.kv_tokens, STALL_SECONDS) for _ in range(options.replicas)
        ]
        self._kind = self._replicas[: options.kind_ones]
        self._storm = Storm(self._replicas, self._replicas[options.kind_ones :], self._file, self._random())
        self._sessions: list[Session] = []
        self._named = 0
        self._counted: dict[object, float] = {}
        self._enough = asyncio.Event()
        self._stopping_at = inf

    def _random(self) -> Random:
        return Random(self.chance.random())

    async def play(self) -> Report:
        for replica in self._replicas:
            await replica.start()
        self._storm.write()
        async with running(f"file://{self._file}", self._log, *FLAGS, *self.options.router_flags) as router:
            try:
                await self._play(router)
            finally:
                for replica in self._replicas:
                    await replica.die()
        return self.report

    async def _play(self, router: RouterProcess) -> None:
        if not await until(lambda: self._all_up(router), QUIET_SECONDS):
            self.book.violate("not up at the start", str(await router.fleet()))
            return
        await asyncio.sleep(1.0)  # probes and scrapes have their connections
        base, rss_base = router.sockets(), router.rss_mib()
        rss_warm = await self._rage(router)
        await self._storm.calm()
        await self._ask_when_quiet(router, base)
        self._ask_memory(rss_base, rss_warm, router.rss_mib())
        await self._ask_counters(router)
        if self.options.blackout:
            await self._ask_blackout(router)
        await self._ask_to_stop(router)
        self._ask_log(router)

    # The storm

    async def _rage(self, router: RouterProcess) -> float:
        """Returns the memory after the first quarter."""
        options = self.options
        end = asyncio.get_running_loop().time() + options.seconds
        storm = asyncio.create_task(self._storm.rage())
        watch = asyncio.create_task(self._watch(router))
        lanes = [asyncio.create_task(self._lane(router.port, end)) for _ in range(options.lanes)]
        await asyncio.sleep(options.seconds / 4)
        warm = router.rss_mib()
        await asyncio.gather(*lanes)
        for task in (storm, watch):
            task.cancel()
        for each in await asyncio.gather(storm, watch, return_exceptions=True):
            if isinstance(each, Exception):
                raise each
        return warm

    async def _lane(self, port: int, end: float) -> None:
        chance = self._random()
        lane = Lane(port, chance)
        loop = asyncio.get_running_loop()
        pause = self.options.lanes / self.options.rate
        while loop.time() < end and not self._enough.is_set():
            session = self._session(chance)
            session.busy = True
            session.turns -= 1
            ending = await lane.turn(session, f"{session.id}.{session.turns}")
            session.busy = False
            if ending.at > self._stopping_at and not ending.status:  # too late: nobody promised to take it
                ending.wrong, ending.reached = "", None
            self.book.enter(ending)
            self._follow(session, ending)
            await asyncio.sleep(chance.expovariate(1 / pause))
        lane.close()

    def _session(self, chance: Random) -> Session:
        if len(self._sessions) < self.options.sessions and (len(self._sessions) < 8 or chance.random() < 0.2):
            return self._new(len(self._sessions), chance)
        for _ in range(100):
            index = chance.randrange(len(self._sessions))
            if not self._sessions[index].busy:
                break
        session = self._sessions[index]
        if session.busy or session.turns <= 0:
            return self._new(index, chance)
        return session

    def _new(self, index: int, chance: Random) -> Session:
        self._named += 1
        session = new_session(f"s{self._named}", chance)
        if index == len(self._sessions):
            self._sessions.append(session)
        else:
            self._sessions[index] = session
        return session

    def _follow(self, session: Session, ending: Ending) -> None:
        """A session at home on a replica that never did wrong stays there."""
        kind = {replica.id for replica in self._kind}
        if session.home in kind:
            if self.options.homes_last and ending.replica and ending.replica != session.home:
                detail = (
                    f"{ending.nonce} from {session.home} to {ending.replica}: {ending.reason}, HTTP {ending.status}"
                )
                self.book.violate("moved away from an untouched replica", f"{detail}, at {ending.at:.3f}")
                session.home = ending.replica
        elif ending.what.startswith("left"):
            session.home = ""
        elif 200 <= ending.status < 300:
            session.home = ending.replica

    async def _watch(self, router: RouterProcess) -> None:
        """Ready all the time, for somebody always is; counters never go back."""
        while router.alive:
            ready = await router.get("/readyz")
            if ready.status_code != 200:
                self.book.violate("not ready while replicas are up", ready.text)
            await self._counters_grow(router)
            await asyncio.sleep(0.5)

    async def _counters_grow(self, router: RouterProcess) -> None:
        for (name, labels), value in (await router.samples()).items():
            if not name.endswith(("_total", "_count", "_bucket")) or "replica" in dict(labels):
                continue  # those of a replica end with it
            before = self._counted.get((name, labels), 0.0)
            if value < before:
                self.book.violate("a counter went back", f"{name}{dict(labels)} {before} → {value}")
            self._counted[name, labels] = value

    # The questions

    async def _all_up(self, router: RouterProcess) -> bool:
        replicas = (await router.fleet())["replicas"]
        return len(replicas) == len(self._replicas) and all(each["state"] == "up" for each in replicas)

    async def _ask_when_quiet(self, router: RouterProcess, base: dict[str, int]) -> None:
        asking = asyncio.create_task(self._lane(router.port, inf))  # some clients go on: what cools, cools for traffic
        all_up = await until(lambda: self._all_up(router), 2 * QUIET_SECONDS)  # an ejection lasts up to 30 s
        self._enough.set()
        await asking
        if not all_up:
            self.book.violate("not up in the end", str(await router.fleet()))
        if not await until(lambda: self._nothing_held(router), QUIET_SECONDS):
            self.book.violate("held in the end", str(await self._held(router)))
        # Probes and scrapes keep one connection or two per replica, as it happens.
        bound = base.get("established", 0) + len(self._replicas)

        async def back() -> bool:
            return router.sockets().get("established", 0) <= bound and not router.sockets().get("close_wait", 0)

        if not await until(back, QUIET_SECONDS):
            self.book.violate("sockets", f"{base} at the start, {router.sockets()} in the end")
        self.report.add("sockets", f"{base} → {router.sockets()}")

    async def _held(self, router: RouterProcess) -> dict[str, float]:
        names = ("router_inflight_requests", "router_inflight_uncached_tokens", "router_waiting_requests")
        held: dict[str, float] = dict.fromkeys(names, 0.0)
        for (name, _), value in (await router.samples()).items():
            if name in held:
                held[name] += value
        return held

    async def _nothing_held(self, router: RouterProcess) -> bool:
        return not any((await self._held(router)).values())

    def _ask_memory(self, base: float, warm: float, end: float) -> None:
        self.report.add("memory, MiB", f"{base:.0f} at the start, {warm:.0f} after a quarter, {end:.0f} in the end")
        if end - warm > self.options.rss_bound_mib:
            self.book.violate("memory", f"{warm:.0f} → {end:.0f} MiB")

    async def _ask_counters(self, router: RouterProcess) -> None:
        """Read when everything has ended: the metrics and the log show the same number of requests."""
        await self._counters_grow(router)
        await asyncio.sleep(0.2)  # the log is at most 0.05 s late
        counted = int(self._counted.get(("router_request_duration_seconds_count", ()), 0.0))
        logged = sum(ACCESS in line for line in router.log())
        if counted != logged:
            self.book.violate("sum", f"{counted} in the metrics, {logged} in the log")

    async def _ask_blackout(self, router: RouterProcess) -> None:
        for replica in self._replicas:
            await replica.die()
        if not await until(lambda: self._is_ready(router, 503), 2 * QUIET_SECONDS):
            self.book.violate("ready with nobody left", str(await router.fleet()))
        for replica in self._replicas:
            await replica.start()
        for session in self._sessions:
            session.home = ""  # lost with all the rest
        if not await until(lambda: self._is_ready(router, 200), 2 * QUIET_SECONDS):
            self.book.violate("not ready after everybody came back", str(await router.fleet()))

    async def _ask_to_stop(self, router: RouterProcess) -> None:
        """SIGTERM under load: what runs ends well, what comes is refused in words or by a closed door."""
        for replica in self._replicas:
            replica.mood = "slow_but_sure"
        self._enough.clear()
        lanes = [asyncio.create_task(self._lane(router.port, inf)) for _ in range(self.options.lanes)]
        await asyncio.sleep(1.5)
        self._stopping_at = time.time()
        code = await router.stop()
        self._enough.set()
        await asyncio.gather(*lanes)
        if code:
            self.book.violate("exit code", str(code))

    async def _is_ready(self, router: RouterProcess, status: int) -> bool:
        return (await router.get("/readyz")).status_code == status

    def _ask_log(self, router: RouterProcess) -> None:
        lines = router.log()
        outcomes = self.book.compare(lines)
        for line in lines:
            if any(word in line for word in _WRONG_WORDS):
                self.book.violate("logged", line[:2000])
        total = sum(outcomes.values())
        endings = self.book.endings.values()
        never = sum(each.reached is False for each in endings)
        perhaps = sum(each.reached is None for each in endings)
        self.report.add("sent", f"{len(endings) - never} whole requests, {never} that were never finished")
        self.report.add("entered", f"{total} = " + " + ".join(f"{n} {name}" for name, n in sorted(outcomes.items())))
        self.report.add("hung up by reset", f"{perhaps}, of which {len(endings) - never - total} were never read")
        self.report.add("seen by clients", ", ".join(f"{n} {what}" for what, n in self.book.seen.most_common()))
        self.report.add("sessions", self._named)
        self.report.add("storm", self._storm.events)


async def until(true: Callable[[], Awaitable[bool]], seconds: float) -> bool:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        with contextlib.suppress(httpx.HTTPError):
            if await true():
                return True
        await asyncio.sleep(0.1)
    return False


async def play(options: Options) -> Report:
    """One run. RuntimeError if the router does not start."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        return await Run(options, Path(folder)).play()
