"""The composition root: the only place that constructs objects."""

import asyncio
import logging
import ssl
import sys
import time
from dataclasses import fields
from importlib.metadata import version

from fastapi import FastAPI

from router.control import Control, build_admin, build_control, is_own
from router.core.admission import AdmissionOptions
from router.core.fleet import Fleet, FleetOptions
from router.core.keys import Sources
from router.core.replica import Load, State
from router.discovery import SourceError, parse_source
from router.explain import Explainer
from router.logs import AccessLog
from router.metrics import Ledger
from router.policies import in_range
from router.policies import load as load_policy
from router.proxy import Proxy, ProxyOptions, Receive, Scope, Send
from router.settings import Settings
from router.stores import Figures, Limits, Sharing, kind_of, open_store
from router.upstream import Pool, Timeouts
from router.watch import Watch, WatchOptions, api_key, control_client

_log = logging.getLogger("router")


class Router:
    """The public ASGI app: our own paths to `control`, the rest to `proxy`. Lifespan starts and ends the watch."""

    def __init__(self, settings: Settings) -> None:
        """Raises ValueError where a setting cannot be obeyed."""
        self.settings = settings
        self.draining = False
        self.fleet = Fleet(time.monotonic, _fleet_options(settings))
        self.fleet.on_standing = _log_standing
        self.ledger = Ledger(self.fleet)
        policy = load_policy(settings.policy, _policy_options(settings))
        sources = Sources(tuple(settings.session_sources), tuple(settings.session_hints))
        tls = _ssl_context(settings)  # one for all: reading the system's authorities takes 70 ms
        self.upstreams = _Upstreams(settings, tls)
        self._log = AccessLog(settings.log_level, settings.log_format, sys.stderr.write)
        self._sharing = _sharing(settings, self.fleet, self.ledger)
        self.proxy = Proxy(
            self.fleet,
            policy,
            self.ledger,
            self.upstreams,
            sources,
            _proxy_options(settings),
            self._log,
            self._sharing.recall if self._sharing is not None else None,
        )
        self._client = control_client(tls)
        self.watch = Watch(
            self.fleet,
            [parse_source(text) for text in settings.replicas],
            self._client,
            _watch_options(settings),
            added=self.upstreams.add,
            removed=self._removed,
        )
        control = self._control(Explainer(self.fleet, policy, sources))
        self._own = build_control(control)
        self.admin: FastAPI | None = build_admin(control) if settings.admin_port is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            app = self._own if is_own(scope["path"], scope["method"]) else self.proxy
            await app(scope, receive, send)
        elif kind == "lifespan":
            await self._lifespan(receive, send)
        else:  # a server that speaks WebSocket by itself: refused before the handshake
            await receive()
            await send({"type": "websocket.close", "code": 1011})

    async def drain(self) -> None:
        """Take nothing new; return when what runs has ended."""
        self.draining = True
        await self.proxy.drain()

    async def start(self) -> None:
        """Raises SourceError if a source of replicas needs the operator."""
        if self._sharing is not None:  # before the first replica is up, so that nobody is placed anew
            await self._sharing.start()
        await self.watch.start()

    async def stop(self) -> None:
        await self.watch.aclose()
        await self._client.aclose()
        await self.upstreams.aclose()
        if self._sharing is not None:
            await self._sharing.close()
        self._log.flush()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.start()
        except SourceError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    def _removed(self, load: Load) -> None:
        self.upstreams.remove(load)
        self.ledger.removed(load.id)

    def _control(self, explain: Explainer) -> Control:
        settings = self.settings
        return Control(
            fleet=self.fleet,
            explain=explain,
            render_metrics=self.ledger.render,
            models=self.watch.models,
            draining=lambda: self.draining,
            max_body_bytes=int(settings.max_body_bytes),
            admin_token=settings.admin_token.get_secret_value() if settings.admin_token else None,
            own_admin_port=settings.admin_port is not None,
            version=version("prefix-router"),
        )


def _log_standing(load: Load, before: str) -> None:
    level = logging.WARNING if load.standing == State.EJECTED else logging.INFO
    why = f", faults in a row: {load.failures}" if load.standing == State.EJECTED and load.failures else ""
    _log.log(level, "replica %s is %s (was %s%s)", load.id, load.standing, before, why)


class _Upstreams:
    """One pool per replica, opened and closed as replicas come and go."""

    def __init__(self, settings: Settings, tls: ssl.SSLContext) -> None:
        self._timeouts = Timeouts(settings.connect_timeout, settings.first_byte_timeout, settings.idle_timeout)
        self._ssl = tls
        self._default_key = settings.upstream_api_key.get_secret_value() if settings.upstream_api_key else ""
        self._pools: dict[Load, tuple[Pool, bytes]] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def add(self, load: Load) -> None:
        key = api_key(load.replica, self._default_key)
        credential = f"Bearer {key}".encode() if key else b""
        self._pools[load] = Pool(load.replica.url, self._timeouts, ssl_context=self._ssl), credential

    def remove(self, load: Load) -> None:
        """Open exchanges go on to their end; nothing new is sent."""
        pool, _ = self._pools.pop(load)
        task = asyncio.create_task(pool.retire())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def pool(self, load: Load) -> Pool:
        return self._pools[load][0]

    def credential(self, load: Load) -> bytes:
        return self._pools[load][1]

    async def aclose(self) -> None:
        for task in tuple(self._leaving):
            task.cancel()
        pools = (pool.aclose() for pool, _ in self._pools.values())
        await asyncio.gather(*pools, *self._leaving, return_exceptions=True)


def _sharing(settings: Settings, fleet: Fleet, ledger: Ledger) -> Sharing | None:
    """None where nothing outlives this process: then nobody is told, and no request asks."""
    kind = kind_of(settings.store)
    if kind == "memory":
        return None
    figures = Figures(ledger.registry, kind)
    store = open_store(settings.store, Limits(settings.binding_life, settings.max_sessions), figures)
    return Sharing(fleet, store, figures)


def _fleet_options(settings: Settings) -> FleetOptions:
    return FleetOptions(
        idle_window=settings.idle_window,
        tell_seconds=settings.binding_life / 4,
        max_sessions=settings.max_sessions,
        max_prefixes=settings.max_prefixes,
        bytes_per_token=settings.bytes_per_token,
        prefill_rate=settings.prefill_tokens_per_second,
        kv_capacity_tokens=settings.kv_capacity_tokens,
        admission=_admission_options(settings),
        max_inflight=settings.max_inflight,
    )


def _admission_options(settings: Settings) -> AdmissionOptions | None:
    """Raises ValueError that names the option."""
    if settings.admission == "off":
        return None
    known = {field.name for field in fields(AdmissionOptions)}
    for name, value in settings.admission_options.items():
        if name not in known:
            raise ValueError(f"admission_options: there is no {name!r}; known: {', '.join(sorted(known))}")
        in_range(f"admission_options: {name}", value, 0)
    return AdmissionOptions(**settings.admission_options)


def _policy_options(settings: Settings) -> dict[str, object]:
    """Placement belongs to `locality`; options given by name win."""
    options = dict(settings.policy_options)
    if settings.policy == "locality":
        options = {"placement": settings.placement, "margin": settings.placement_margin, **options}
    return options


def _proxy_options(settings: Settings) -> ProxyOptions:
    return ProxyOptions(
        max_body_bytes=int(settings.max_body_bytes),
        max_requests=settings.max_requests,
        retries=settings.retries,
        retry_budget=settings.retry_budget,
        total_timeout=settings.total_timeout,
        response_headers=settings.response_headers,
        max_wait=settings.max_wait,
    )


def _watch_options(settings: Settings) -> WatchOptions:
    return WatchOptions(
        scrape_interval=settings.scrape_interval,
        health_interval=settings.health_interval,
        health_timeout=settings.health_timeout,
        engine=settings.engine,
        upstream_api_key=settings.upstream_api_key.get_secret_value() if settings.upstream_api_key else "",
    )


def _ssl_context(settings: Settings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(settings.upstream_ca_file) if settings.upstream_ca_file else None)
    if not settings.upstream_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
