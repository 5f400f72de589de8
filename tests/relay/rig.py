"""The whole router on a real socket, in the test's own loop, before scripted replicas; and a client that sees bytes.

Law: a test that ends with something still held (a lease, a token, an exchange, a task) fails, whatever it tested.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from router.app import Router
from router.control import is_own
from router.core.replica import Load, State
from router.server import Lane
from router.serving import _config
from router.serving import _listen as listen
from router.settings import Settings
from router.upstream import Pool
from tests.mock import PATIENCE_SECONDS, Mock, Peer, Reply

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
JSON = ("content-type", "application/json")
HELLO = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
HELLO_STREAM = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}'
TOKEN = {"choices": [{"index": 0, "delta": {"content": "a"}}]}

# The fast lane is what `serve` runs; the standard one stands for every other ASGI server.
LANES: Mapping[str, Any] = MappingProxyType({"fast": Lane, "standard": HttpToolsProtocol})
_lane: ContextVar[str] = ContextVar("lane", default="fast")

_AUTHORITY = Path(__file__).with_name("authority.pem")  # of nobody; the system's take 70 ms to read, for each test
_PROBED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 27\r\n\r\n"
_PROBED += b'{"object":"list","data":[]}'


@contextmanager
def on_lane(name: str) -> Iterator[None]:
    """Every rig built in this context is on that lane."""
    token = _lane.set(name)
    try:
        yield
    finally:
        _lane.reset(token)


def run(transcript: Callable[[], Awaitable[None]]) -> None:
    """One transcript on a loop of its own, bounded, with nothing thrown behind its back."""
    thrown: list[str] = []

    async def watched() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: thrown.append(str(context)))
        async with asyncio.timeout(30):  # never reached in a test that passes
            await transcript()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(watched())
    assert not thrown


async def until(true: Callable[[], bool], why: Callable[[], object] = lambda: "") -> None:
    """Wait for what another side is about to bring about."""
    for _ in range(int(PATIENCE_SECONDS / 0.002)):
        if true():
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"never came true: {why()}")


class Engine(Mock):
    """A mock whose script is for clients alone: the router's own probes get a plain yes and are not recorded."""

    async def _answer(self, peer: Peer) -> None:
        if peer.seen.header(b"user-agent") == b"prefix-router":
            await peer.write(_PROBED)
            return
        await super()._answer(peer)

    def play(self, *script: Reply) -> None:
        self._script = script

    async def die(self) -> None:
        """As a process that is killed: nobody listens, every connection is reset."""
        await self.__aexit__()


@dataclass
class Answer:
    """What came back, byte for byte. `clean` is false where it broke off before the end that it had announced."""

    status: int = 0
    line: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    clean: bool = False
    interim: list[bytes] = field(default_factory=list)

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name]

    def one(self, name: bytes) -> bytes:
        (value,) = self.all(name)
        return value


class Client:
    """One connection to the router. Writes raw bytes; reads responses with their framing checked."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> Answer:
        """The head of the next final response."""
        answer = Answer()
        while True:
            raw = await self.reader.readuntil(b"\r\n\r\n")
            answer.line, *lines = raw[:-4].split(b"\r\n")
            answer.status = int(answer.line.split(b" ", 2)[1])
            if answer.status >= 200:
                break
            answer.interim.append(answer.line)
        pairs = (line.partition(b":") for line in lines)
        answer.headers = [(name, value.strip()) for name, _, value in pairs]
        return answer

    async def chunk(self) -> bytes:
        """The next chunk of a chunked body; b"" is the clean end. Raises IncompleteReadError at an unclean one."""
        size = int((await self.reader.readuntil(b"\r\n"))[:-2], 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def take(self, answer: Answer, size: int) -> None:
        """That much of the body, at least."""
        while len(answer.body) < size:
            chunked = answer.all(b"transfer-encoding")
            answer.body += await self.chunk() if chunked else await self.reader.read(size - len(answer.body))

    async def rest(self, answer: Answer, method: str = "GET") -> Answer:
        try:
            if method == "HEAD" or answer.status in (204, 304):
                pass
            elif answer.all(b"transfer-encoding"):
                while data := await self.chunk():
                    answer.body += data
            else:
                left = int(answer.one(b"content-length")) - len(answer.body)
                while left and (data := await self.reader.read(min(left, 1 << 20))):
                    answer.body += data
                    left -= len(data)
                answer.clean = not left
                return answer
            answer.clean = True
        except (asyncio.IncompleteReadError, ConnectionError):
            answer.clean = False
        return answer

    async def answer(self, method: str = "GET") -> Answer:
        return await self.rest(await self.head(), method)

    async def at_end(self) -> bool:
        """The router has closed the connection, and nothing came before."""
        try:
            return not await self.reader.read(1)
        except ConnectionError:
            return True

    def hang_up(self) -> None:
        self.writer.transport.abort()


def request(method: str, target: str, headers: Iterable[tuple[str, str]] = (), body: bytes | None = None) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "host: router", *(f"{name}: {value}" for name, value in headers)]
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join((*lines, "", "")).encode("latin-1") + (body or b"")


def post(body: bytes = HELLO, path: str = CHAT, *headers: tuple[str, str]) -> bytes:
    return request("POST", path, (JSON, *headers), body)


@dataclass
class Rig:
    router: Router
    port: int
    sent: int = 0  # requests that reached the proxy
    clients: list[Client] = field(default_factory=list)

    async def connect(self, limit: int = 2**16) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, limit=limit))
        self.clients.append(client)
        return client

    async def ask(self, raw: bytes | None = None) -> Answer:
        """One request on a connection of its own."""
        raw = post() if raw is None else raw
        client = await self.connect()
        await client.send(raw)
        answer = await client.answer(raw.split(b" ", 1)[0].decode())
        client.writer.close()
        return answer

    async def ask_and_break(self, raw: bytes, size: int, broken: asyncio.Event) -> Answer:
        """One request whose replica breaks off once `size` bytes of its answer have been seen."""
        client = await self.connect()
        await client.send(raw)
        answer = await client.head()
        await client.take(answer, size)
        broken.set()
        return await client.rest(answer)

    @property
    def loads(self) -> list[Load]:
        return list(self.router.fleet.loads.values())

    @property
    def pools(self) -> list[Pool]:
        return [self.router.upstreams.pool(load) for load in self.loads]

    def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        families = self.router.ledger.registry.collect()
        return [(s.labels, s.value) for family in families for s in family.samples if s.name == name]

    def outcomes(self) -> dict[str, int]:
        found = Counter[str]()
        for labels, value in self.samples("router_requests_total"):
            found[labels["outcome"]] += int(value)
        return dict(found)

    async def ended(self, requests: int = 1) -> dict[str, int]:
        """The outcomes once that many requests have ended."""
        await until(lambda: sum(self.outcomes().values()) >= requests, self.outcomes)
        return self.outcomes()

    def held(self) -> dict[str, Any]:
        """Everything that must be nothing when no request runs."""
        proxy, fleet = self.router.proxy, self.router.fleet
        held: dict[str, Any] = {
            "inflight": proxy.inflight,
            "leases": sum(load.inflight for load in fleet.loads.values()),
            "queued": sum(load.queued_tokens for load in fleet.loads.values()),
            "pending": len(fleet.pending),
            "exchanges": sum(pool.open_exchanges for pool in self.pools),
            "unrecorded": self.sent - sum(self.outcomes().values()),
        }
        return {name: value for name, value in held.items() if value}


@asynccontextmanager
async def rig(*replicas: Mock | str, ready: bool = True, **settings: Any) -> AsyncIterator[Rig]:
    """The router in front of `replicas`, probes done. `ready=False`: those that will never answer one are there too."""
    urls = [each if isinstance(each, str) else each.url for each in replicas]
    values = {"policy": "round_robin", "engine": "none", "health_interval": 3600.0, "replicas": urls} | settings
    values["upstream_ca_file"] = _AUTHORITY
    router = Router(Settings(**values))
    before = asyncio.all_tasks()
    await router.start()
    if ready:
        await until(lambda: all(load.state is State.UP for load in router.fleet.loads.values()))
    listener = listen("127.0.0.1", 0)
    rig = Rig(router, listener.getsockname()[1])
    errors = _Errors()
    logging.getLogger("uvicorn.error").addHandler(errors)
    state = ServerState()
    server = await _listen(rig, state, listener, _lane.get())
    try:
        yield rig
        for client in rig.clients:
            client.writer.close()
        await until(lambda: not rig.held(), rig.held)
    finally:
        logging.getLogger("uvicorn.error").removeHandler(errors)
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()  # type: ignore[union-attr]
        for client in rig.clients:
            client.hang_up()
        await router.stop()
    assert not errors.seen
    await until(lambda: not _stray(before), lambda: _stray(before))


async def _listen(rig: Rig, state: ServerState, listener: socket.socket, lane: str) -> asyncio.Server:
    """As `serve` does it, with its own configuration of the server but for the lane under test."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        rig.sent += not is_own(scope["path"], scope["method"])
        await rig.router(scope, receive, send)

    config = _config(app, rig.router.settings)
    config.load()
    return await asyncio.get_running_loop().create_server(
        lambda: LANES[lane](config=config, server_state=state, app_state={}), sock=listener
    )


def _stray(before: "set[asyncio.Task[Any]]") -> list[str]:
    new = asyncio.all_tasks() - before
    return [repr(task) for task in new if "Mock." not in repr(task.get_coro())]


class _Errors(logging.Handler):
    """Exceptions that escaped from the app into the server."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.seen.append(str(record.exc_info[1]))


@asynccontextmanager
async def fleet(*scripts: Iterable[Any], **settings: Any) -> AsyncIterator[tuple[Any, ...]]:
    """A rig and an engine for each script (a list of replies): `async with fleet([[ok()]], [[hang()]]) as (rig, a, b)`.

    In the order of their ids, so that the first turn of round robin is the first script's.
    """
    engines = sorted([await Engine().__aenter__() for _ in scripts], key=lambda engine: engine.url)
    for engine, script in zip(engines, scripts, strict=True):
        engine.play(*script)
    try:
        async with rig(*engines, **settings) as built:
            yield (built, *engines)
    finally:
        for engine in engines:
            await engine.__aexit__()


def empty_source(folder: Path) -> str:
    """A file source that names nobody."""
    path = folder / "replicas.yaml"
    path.write_text("[]\n")
    return f"file://{path}"
