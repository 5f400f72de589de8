"""A scripted replica on a plain socket: it sends exactly the bytes a test wants, in the way and at the moment it wants.

    async with Mock([status(200, length=5), send(b"hel"), reset()]) as mock: ...

A script is one reply per request, in order of arrival over all connections; the last one repeats. A reply is a list of
steps, run when the whole request has been read, or one async callable, run when only its head has been read.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any, Self

Step = Callable[["Peer"], Awaitable[None]]
Reply = Sequence[Step] | Step

PATIENCE_SECONDS = 5.0  # how long `until` believes; never reached in a test that passes


@dataclass
class Seen:
    """One request as it came over the wire."""

    head: bytes
    connection: int  # 1, 2, ... in order of arrival
    body: bytes = b""  # as framed, for chunked ones with the framing taken off

    @property
    def line(self) -> bytes:
        return self.head.split(b"\r\n", 1)[0]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        pairs = (line.partition(b":") for line in self.head.split(b"\r\n")[1:] if line)
        return [(name.lower(), value.strip()) for name, _, value in pairs]

    def header(self, name: bytes) -> bytes | None:
        return next((value for each, value in self.headers if each == name), None)


@dataclass
class Peer:
    """One connection, as the steps see it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int
    seen: Seen = field(default_factory=lambda: Seen(b"", 0))

    async def write(self, data: bytes) -> None:
        if self.writer.is_closing():  # uvloop raises RuntimeError for what asyncio ignores
            raise ConnectionResetError("the peer has gone")
        self.writer.write(data)
        await self.writer.drain()

    async def read_head(self) -> bool:
        """False when the peer has gone instead."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = await self.reader.readline()
            if not line:
                return False
            head += line
        self.seen = Seen(head, self.number)
        return True

    async def read_body(self) -> None:
        if self.seen.header(b"transfer-encoding"):
            while size := int(await self.reader.readuntil(b"\n"), 16):
                self.seen.body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readline()
        elif length := int(self.seen.header(b"content-length") or 0):
            self.seen.body = await self.reader.readexactly(length)


class Mock:
    """`connections`, `requests`, `current`/`peak` (requests being answered), `open` (sockets), `left` (numbers of
    connections whose peer went away in the middle of a reply)."""

    def __init__(self, *script: Reply, host: str = "127.0.0.1", ssl: SSLContext | None = None) -> None:
        self._script = script or ([ok()],)
        self._host = host
        self._ssl = ssl
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: list[Seen] = []
        self.left: list[int] = []
        self.connections = self.current = self.peak = self.open = 0
        self.port = 0

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._ssl else 'http'}://{host}:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self._host, self.port, ssl=self._ssl, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for something that the other side of a socket is about to bring about."""
        for _ in range(int(PATIENCE_SECONDS / 0.002)):
            if true():
                return
            await asyncio.sleep(0.002)
        raise AssertionError(f"never came true: connections={self.connections} open={self.open} left={self.left}")

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.ensure_future(self._serve(Peer(reader, writer, self.connections)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, peer: Peer) -> None:
        self.open += 1
        try:
            while not peer.writer.is_closing() and await peer.read_head():
                await self._answer(peer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            peer.writer.transport.abort()

    async def _answer(self, peer: Peer) -> None:
        reply = self._script[min(len(self.requests), len(self._script) - 1)]
        self.requests.append(peer.seen)
        self.current += 1
        self.peak = max(self.peak, self.current)
        try:
            if callable(reply):
                await reply(peer)
                return
            await peer.read_body()
            for step in reply:
                await step(peer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.append(peer.number)
            raise
        finally:
            self.current -= 1


# Steps.


def send(data: bytes) -> Step:
    return lambda peer: peer.write(data)


def status(code: int, *headers: str, length: int | None = None, reason: str = "Whatever") -> Step:
    """The head alone; `headers` are lines as they stand."""
    lines = [f"HTTP/1.1 {code} {reason}", *headers, *([] if length is None else [f"content-length: {length}"]), "", ""]
    return send("\r\n".join(lines).encode("latin-1"))


def chunk(data: bytes) -> Step:
    """One chunk of a chunked body; `chunk(b"")` is the last."""
    return send(b"%x\r\n%b\r\n" % (len(data), data))


def slowly(data: bytes) -> Step:
    """One byte per write."""

    async def step(peer: Peer) -> None:
        for index in range(len(data)):
            await peer.write(data[index : index + 1])
            await asyncio.sleep(0)

    return step


def wait(seconds: float) -> Step:
    return lambda peer: asyncio.sleep(seconds)


def gate(event: asyncio.Event) -> Step:
    """Go on when the test says so."""

    async def step(peer: Peer) -> None:
        await event.wait()

    return step


def hang() -> Step:
    """Say nothing until the peer goes away, and notice it."""

    async def step(peer: Peer) -> None:
        while await peer.reader.read(65536):
            pass
        raise ConnectionResetError("the peer has gone")

    return step


def reset() -> Step:
    """RST: what a crashed process or a cut connection looks like."""

    async def step(peer: Peer) -> None:
        peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.writer.transport.abort()

    return step


def close() -> Step:
    """FIN after everything written so far."""

    async def step(peer: Peer) -> None:
        peer.writer.close()

    return step


def half_close() -> Step:
    """FIN in one direction, and go on reading."""

    async def step(peer: Peer) -> None:
        peer.writer.write_eof()

    return step


# Whole replies.


def ok(body: bytes = b"ok", *headers: str) -> Step:
    head = "".join(f"{line}\r\n" for line in ("HTTP/1.1 200 OK", *headers, f"content-length: {len(body)}", ""))
    return send(head.encode("latin-1") + body)


def json_reply(value: Any, code: int = 200) -> list[Step]:
    body = json.dumps(value).encode()
    return [status(code, "content-type: application/json", length=len(body)), send(body)]


def sse(*events: Any, delay: float = 0.0, done: bool = True) -> list[Step]:
    """An event per value (strings as they stand, the rest as JSON), each its own chunk; `[DONE]` and the clean end."""
    steps: list[Step] = [status(200, "content-type: text/event-stream", "transfer-encoding: chunked")]
    for event in (*events, "[DONE]") if done else events:
        if delay:
            steps.append(wait(delay))
        steps.append(chunk(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()))
    return [*steps, chunk(b"")] if done else steps
