"""Runs the router: sockets, the server's loop, signals, and an end in good order."""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from collections.abc import Iterator

import uvicorn

from router.app import Router
from router.discovery import SourceError
from router.logs import configure
from router.server import Lane
from router.settings import Settings

_log = logging.getLogger("router")

_FIRST_REPLICA_SECONDS = 1.0  # a healthy one answers its first probe in milliseconds; a dead fleet holds up nobody
_KEEP_ALIVE = 75  # seconds: above the 60 s after which common load balancers drop an idle connection


class _Server(uvicorn.Server):
    """One listening socket. Signals are ours, so that /readyz turns before anything closes."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT. Returns 0 after a clean end, 1 if it could not start, 2 for a wrong setting."""
    configure(settings.log_level, settings.log_format)
    try:
        router = Router(settings)
    except ValueError as error:
        print(f"prefix-router: {error}", file=sys.stderr)
        return 2
    config = _config(router, settings)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        return runner.run(_run(router, settings))


async def _run(router: Router, settings: Settings) -> int:
    apps = [(router, settings.host, settings.port)]
    if router.admin is not None and settings.admin_port is not None:
        apps.append((router.admin, settings.admin_host, settings.admin_port))  # type: ignore[arg-type]
    try:
        sockets = [_listen(host, port) for _, host, port in apps]
        await router.start()
        await _first_replica(router)
    except (OSError, SourceError) as error:
        field = "replicas: " if isinstance(error, SourceError) else ""
        print(f"prefix-router: {field}{error}", file=sys.stderr)
        await router.stop()
        return 1
    _spare_the_collector()
    servers = [_Server(_config(app, settings)) for app, _, _ in apps]
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, stop, hurry)
    running = [asyncio.create_task(server.serve([sock])) for server, sock in zip(servers, sockets, strict=True)]
    for name, sock in zip(("listening", "admin"), sockets, strict=False):
        host, port = sock.getsockname()[:2]
        _log.info("%s on http://%s:%d", name, f"[{host}]" if ":" in host else host, port)
    lag = asyncio.create_task(_measure_lag(router))
    await stop.wait()
    await _drain(router, settings.drain_timeout, hurry)
    for server in servers:
        server.should_exit = True
    await asyncio.gather(*running, return_exceptions=True)
    lag.cancel()
    await router.stop()
    _log.info("stopped")
    return 0


async def _first_replica(router: Router) -> None:
    """Listen once somebody can serve, so that the first request meets no fleet that is still being asked. Bounded."""
    for _ in range(int(_FIRST_REPLICA_SECONDS / 0.02)):
        if any(load.eligible for load in router.fleet.loads.values()):
            return
        await asyncio.sleep(0.02)


def _spare_the_collector() -> None:
    """What exists now lives as long as the process, and requests leave next to no cycles: 5 % of a small request."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _stop(stop: asyncio.Event, hurry: asyncio.Event) -> None:
    if stop.is_set():  # asked twice: whoever waits is impatient
        hurry.set()
    stop.set()


async def _drain(router: Router, grace: float, hurry: asyncio.Event) -> None:
    """/readyz says 503, nothing new is taken, what runs may end within `grace` seconds or until somebody hurries."""
    _log.info("draining, requests in flight: %d", router.proxy.inflight)
    ends = [asyncio.create_task(router.drain()), asyncio.create_task(hurry.wait())]
    await asyncio.wait(ends, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
    for end in ends:
        end.cancel()
    if router.proxy.inflight:
        _log.warning("drain_timeout is over or a second signal came, requests cut off: %d", router.proxy.inflight)
        router.proxy.cut_off()


async def _measure_lag(router: Router) -> None:
    """How late timers run is how long somebody blocks the loop."""
    loop = asyncio.get_running_loop()
    while True:
        before = loop.time()
        await asyncio.sleep(0.5)
        router.ledger.loop_lag.set(max(loop.time() - before - 0.5, 0.0))


def _listen(host: str, port: int) -> socket.socket:
    """Raises OSError that names the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host.strip("[]"), port), family=family, backlog=2048)
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port} (host, port): {error.strerror or error}") from None
    # Inherited by what it accepts. uvloop sets it itself; asyncio does not on such a socket, and then each answer
    # whose head and body are two writes waits 40 ms for a delayed acknowledgement.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _config(app: object, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=Lane,
        ws="none",  # an upgrade is refused by the proxy, in its own words
        lifespan="off",  # the router is started and stopped here, once for both ports
        log_config=None,
        access_log=False,
        proxy_headers=False,  # no decision rests on an address
        server_header=False,  # a replica's own pass; a second one breaks strict clients
        date_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=1,  # what is left after the drain timeout had its chance
    )
