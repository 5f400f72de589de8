"""One replica, watched: is it well, what does it serve, how busy is it.

Law: whatever a replica does, sends or withholds is trouble of its own, logged when it begins and when it ends.
"""

import asyncio
import logging
import os
import random
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

import httpx

from router.core.fleet import Fleet
from router.core.replica import Load, Replica, Signals
from router.engines import Engine, asleep, by_name, by_owner, capacity, read, recognise
from router.engines.models import Entry, entries, names, served

_log = logging.getLogger(__name__)

RETRY = 0.2  # seconds after the first failed probe; doubles up to the health interval
BODY_MAX = 8 << 20  # bytes: a hundred times a vLLM metrics page; more is not ours to hold
CONNECT_MAX = 2.0  # seconds: a host that is there accepts in milliseconds, however busy its engine is
KEEP_ALIVE = 3.0  # seconds: below the 5 s after which vLLM and llama.cpp close, so that no probe meets the close
_HEADERS = {"accept-encoding": "identity", "user-agent": "prefix-router"}  # no engine shall compress for us each second


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """All times in seconds."""

    scrape_interval: float = 1.0  # younger than a turn is long
    scrape_timeout: float = 3.0  # a busy engine answers late and is still worth hearing; the signal's age tells
    health_interval: float = 5.0  # real traffic tells sooner; probes find the way back
    health_timeout: float = 5.0  # engines deep in prefill answer late
    models_interval: float = 30.0  # adapters come and go at this pace, a restart is noticed sooner
    no_metrics_interval: float = 60.0  # an engine without metrics gets them by a restart
    engine: str = "auto"  # for replicas that name none: auto | vllm | sglang | llamacpp | none
    upstream_api_key: str = field(default="", repr=False)  # for replicas that name no variable of their own


def control_client(verify: ssl.SSLContext | bool = True) -> httpx.AsyncClient:
    """A client for probes and scrapes: no limit that one replica could use up, no proxy, no redirects."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEP_ALIVE)
    return httpx.AsyncClient(limits=limits, verify=verify, trust_env=False, follow_redirects=False)


def api_key(replica: Replica, default: str, environ: Mapping[str, str] = os.environ) -> str:
    """The key to send to a replica: its own variable's value, else the default; empty = none."""
    return environ.get(replica.api_key_env, "").strip() or default


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class _Unusable(Exception):
    """An answer that came in time and is not what was asked for."""


@dataclass(slots=True, eq=False)
class Watcher:
    """Probes and scrapes one replica for as long as it is in the fleet."""

    load: Load
    fleet: Fleet
    client: httpx.AsyncClient
    options: WatchOptions
    listed: tuple[Entry, ...] = ()  # its models as it describes them
    capacity: float | None = None  # tokens, where a page of its own says so
    sleeping: bool = False
    introduced: asyncio.Event = field(default_factory=asyncio.Event)
    retry: float = RETRY
    learned_at: float | None = None
    learned_incarnation: int = 0
    troubles: dict[str, str] = field(default_factory=dict)  # what is wrong now, by activity

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._forever("probe", self._probe), name=f"probe {self.load.id}")
            group.create_task(self._scrape_forever(), name=f"scrape {self.load.id}")

    async def _forever(self, what: str, step: Callable[[], Awaitable[float]]) -> None:
        """Run a step again and again; it returns the seconds until the next. Nothing it raises ends the loop."""
        while True:
            try:
                pause = await step()
            except Exception as exc:
                self._note(f"{what} loop", exc)
                pause = self.options.health_interval
            await asyncio.sleep(pause)

    # Probes

    async def _probe(self) -> float:
        ok = await self._health()
        if ok and not self.introduced.is_set():
            # Models, signals and sleep are known before the first request can come.
            await self._learn()
            await self._scrape()
            self.introduced.set()
        verdict = False if ok and self.sleeping else ok
        self.fleet.probed(self.load, verdict)
        if ok and self._is_stale():
            await self._learn()
        return self._next_probe(verdict)

    def _next_probe(self, verdict: bool | None) -> float:
        if verdict:
            self.retry = RETRY
            return self.options.health_interval * random.uniform(0.9, 1.1)  # replicas are not probed in step
        pause, self.retry = self.retry, self.retry * 2
        return min(pause, self.options.health_interval)

    async def _health(self) -> bool | None:
        """True: answers; False: badly, or cannot be reached; None: not in time."""
        verdict: bool | None
        try:
            status = (await self._get("/health", self.options.health_timeout)).status
            if status == 501 or 300 <= status < 500:  # not every server has /health; any sign of life will do
                status = (await self._get("/v1/models", self.options.health_timeout)).status
            verdict, trouble = status < 500, "" if status < 500 else f"HTTP {status}"
        except httpx.ConnectTimeout as exc:
            verdict, trouble = False, _why(exc)
        except (TimeoutError, httpx.TimeoutException):
            verdict, trouble = None, f"no answer in {self.options.health_timeout:g} s"
        except Exception as exc:
            verdict, trouble = False, _why(exc)
        self._note("health", trouble)
        return verdict

    # Models

    def _is_stale(self) -> bool:
        if self.learned_at is None or self.learned_incarnation != self.load.incarnation:
            return True
        return self.fleet.now() - self.learned_at >= self.options.models_interval

    async def _learn(self) -> None:
        """Ask for models and capacity. What was known stands where the answer is no good."""
        self.learned_at, self.learned_incarnation = self.fleet.now(), self.load.incarnation
        try:
            answer = await self._get("/v1/models", self.options.health_timeout)
            listed = entries(answer.body) if answer.status == 200 else None
            if listed is None:
                raise _Unusable(f"HTTP {answer.status}, no list of models")
            self.listed = served(listed, self.load.replica.model)
            self.fleet.learn(self.load, models=names(self.listed))
            if self._wanted_engine() != "none":
                self._found(self._engine() or by_owner(listed))
                await self._learn_capacity(self._engine())
        except Exception as exc:
            self._note("models", exc)
        else:
            self._note("models")

    async def _learn_capacity(self, engine: Engine | None) -> None:
        if engine is None or not engine.capacity_path:
            return
        answer = await self._get(engine.capacity_path, self.options.health_timeout)
        self.capacity = capacity(engine, answer.body) if answer.status == 200 else None

    # Scrapes

    async def _scrape_forever(self) -> None:
        await self.introduced.wait()
        await asyncio.sleep(random.random() * self.options.scrape_interval)  # replicas are not scraped in step
        await self._forever("scrape", self._scrape_on_time)

    async def _scrape_on_time(self) -> float:
        loop = asyncio.get_running_loop()
        started = loop.time()
        if not await self._scrape():
            return self.options.no_metrics_interval
        return max(0.0, started + self.options.scrape_interval - loop.time())

    async def _scrape(self) -> bool:
        """One scrape; False if there is nothing here to scrape."""
        if self._wanted_engine() == "none":
            return False
        try:
            answer = await self._get("/metrics", self.options.scrape_timeout)
            if answer.status == 501 or 300 <= answer.status < 500:
                self._note("metrics", f"none (HTTP {answer.status}), own counts must do")
                return self._was_scraped()
            if answer.status != 200:
                raise _Unusable(f"HTTP {answer.status}")
            understood = self._take(answer)
        except Exception as exc:
            self._note("metrics", exc)
            return True
        self._note("metrics", "" if understood else "of no engine that is known, own counts must do")
        return understood or self._was_scraped()

    def _was_scraped(self) -> bool:
        """What once had metrics has them again soon: it restarts, or something before it does."""
        return self.load.signals_at is not None

    def _take(self, answer: _Answer) -> bool:
        engine, signals = self._read(self._engine(), answer)
        if signals is None:
            engine, signals = self._read(recognise(answer.body), answer)
        if engine is None or signals is None:
            return False
        self._found(engine)
        if signals.kv_capacity_tokens is None:
            signals = replace(signals, kv_capacity_tokens=self.capacity)
        self.fleet.observe(self.load, signals)
        self._notice_sleep(asleep(engine, answer.body))
        return True

    @staticmethod
    def _read(engine: Engine | None, answer: _Answer) -> tuple[Engine | None, Signals | None]:
        if engine is None:
            return None, None
        signals = read(engine, answer.body, answer.headers)
        says_nothing = replace(signals, started_at=None) == Signals()
        return engine, None if says_nothing else signals

    def _notice_sleep(self, sleeping: bool) -> None:
        """A sleeping engine answers /health with 200 and requests with failures: its probes count as bad."""
        if self.introduced.is_set() and sleeping:
            self.fleet.probed(self.load, False)
        self.sleeping = sleeping
        self._note("sleep", "asleep, gets nothing" if sleeping else "")

    # What all of them need

    def _wanted_engine(self) -> str:
        own = self.load.replica.engine
        return self.options.engine if own in ("", "auto") else own

    def _engine(self) -> Engine | None:
        return by_name(self._wanted_engine()) or by_name(self.load.engine)

    def _found(self, engine: Engine | None) -> None:
        if engine is not None and engine.name != self.load.engine:
            self.fleet.learn(self.load, engine=engine.name)

    async def _get(self, path: str, seconds: float) -> _Answer:
        """One page within `seconds`, all of it. Raises what httpx raises, TimeoutError, _Unusable."""
        key = api_key(self.load.replica, self.options.upstream_api_key)
        headers = {**_HEADERS, "authorization": f"Bearer {key}"} if key else _HEADERS
        limit = httpx.Timeout(seconds, connect=min(seconds / 2, CONNECT_MAX))
        async with (
            asyncio.timeout(seconds),  # httpx's own limits are per read: a trickle would last for ever
            self.client.stream("GET", self.load.replica.url + path, headers=headers, timeout=limit) as response,
        ):
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > BODY_MAX:
                    raise _Unusable(f"{path} is larger than {BODY_MAX} bytes")
            return _Answer(response.status_code, response.headers, bytes(body))

    def _note(self, what: str, trouble: str | Exception = "") -> None:
        """Log an activity's trouble when it begins and when it ends, not while it lasts."""
        text = _why(trouble) if isinstance(trouble, Exception) else trouble
        before, self.troubles[what] = self.troubles.get(what, ""), text
        if text and not before:
            bug = trouble if isinstance(trouble, Exception) and not isinstance(trouble, _EXPECTED) else None
            _log.warning("replica %s: %s: %s", self.load.id, what, text, exc_info=bug)
        elif before and not text:
            _log.info("replica %s: %s: answers well again", self.load.id, what)


_EXPECTED = (_Unusable, httpx.HTTPError, OSError, TimeoutError)


def _why(exc: Exception) -> str:
    # What we sent ourselves may be in the text of a LocalProtocolError: the key.
    text = "" if isinstance(exc, httpx.LocalProtocolError) else str(exc)
    if isinstance(exc, _Unusable):
        return text
    return f"{type(exc).__name__}{': ' if text else ''}{text}"
