"""A small HTTP/1.1 server on asyncio.Protocol and httptools: one request at a time per connection.

Kept apart from what it serves, and light, because a demo runs a dozen of these beside a router on two cores.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import unquote

import httptools

REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


@dataclass(slots=True)
class Call:
    """One request as received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # the client hung up


class Reply:
    """The way back to one caller. Writing to a caller that is gone does nothing."""

    def __init__(self, transport: asyncio.Transport, request_id: str) -> None:
        self._transport = transport
        self._request_id = request_id
        self.started = False
        self.chunked = False

    def whole(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        self._head(status, content_type, f"content-length: {len(body)}\r\n", body)

    def start(self, content_type: str = "text/event-stream; charset=utf-8") -> None:
        self.chunked = True
        self._head(200, content_type, "transfer-encoding: chunked\r\n", b"")

    def chunk(self, data: bytes) -> None:
        if data and not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        if self.chunked and not self._transport.is_closing():
            self._transport.write(b"0\r\n\r\n")

    def break_off(self) -> None:
        """End without an end, as a dying engine does."""
        self._transport.abort()

    def _head(self, status: int, content_type: str, framing: str, body: bytes) -> None:
        self.started = True
        if self._transport.is_closing():
            return
        head = (
            f"HTTP/1.1 {status} {REASONS.get(status, 'Error')}\r\nserver: simulated\r\n"
            f"content-type: {content_type}\r\n{framing}x-request-id: {self._request_id}\r\n\r\n"
        )
        self._transport.write(head.encode() + body)


Answer = Callable[[Call, Reply], Awaitable[None]]


class ServerProtocol(asyncio.Protocol):
    """Parses requests and runs `answer` for each; a caller that hangs up is told to the answer by `Call.gone`."""

    def __init__(self, answer: Answer, connections: set["ServerProtocol"]) -> None:
        self._answer = answer
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._tasks: set[asyncio.Task[None]] = set()
        self._queue: asyncio.Queue[Call] = asyncio.Queue()
        self._current: Call | None = None
        self._keep_alive = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._connections.add(self)
        task = asyncio.get_running_loop().create_task(self._serve())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        if self._current is not None:
            self._current.gone.set()
            return
        for task in self._tasks:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.transport.close()
        except httptools.HttpParserError:
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = unquote(self._url.split(b"?", 1)[0].decode("latin-1"))
        method = self._parser.get_method().decode("latin-1")
        self._keep_alive = self._parser.should_keep_alive()
        self._queue.put_nowait(Call(method, path, self._headers, b"".join(self._body)))

    async def _serve(self) -> None:
        served = 0
        while not self.transport.is_closing():
            call = self._current = await self._queue.get()
            served += 1
            request_id = call.headers.get("x-request-id") or f"{id(self):x}-{served}"
            await self._answer(call, Reply(self.transport, request_id))
            self._current = None
            if not self._keep_alive:
                self.transport.close()
