"""One request and its answer on a connection of the lane."""

import asyncio
from collections.abc import AsyncIterator, Callable
from math import inf
from typing import TYPE_CHECKING, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from router.headers import Header
from router.receipt import LANE, Message, Piped, TooLarge
from router.server.wire import Place, refusal
from router.turn import Gone

if TYPE_CHECKING:
    from router.server.lane import Lane

_SMALL_PIECE = 512  # bytes: smaller ones are joined as they come
_JOINED = 64 * 1024


class Passage:
    """One request and its answer on a connection: plain ASGI for whoever asks, and the proxy's side of the lane."""

    __slots__ = (
        "_continue", "_exchange", "_head", "_lane", "_limit", "_on_gone", "_parts", "_raw", "_silent",
        "_told", "_waiter", "chunks", "ended", "endless", "gone", "headers", "keep_alive", "method", "place", "size",
        "started", "target", "task", "waits_for_room", "whole",
    )  # fmt: skip

    def __init__(self, lane: "Lane", method: bytes, place: Place, headers: list[Header], chunks: bool) -> None:
        self._lane = lane
        self.method, self.target, self.headers = method, place[3], headers
        self.chunks = chunks  # the client knows chunked bodies
        self.keep_alive = True
        self.place = place
        self.task: asyncio.Task[None] | None = None
        # The request's body.
        self._parts: list[bytes | bytearray] = []
        self.size = 0
        self.whole = False
        self._limit = inf
        self._told = False  # plain ASGI has heard of its end
        self.waits_for_room = False  # an upload that is passed on: read only as fast as it is taken
        self._continue = any(name == b"expect" and value.strip().lower() == b"100-continue" for name, value in headers)
        self._waiter: asyncio.Future[None] | None = None
        # Its answer.
        self._head = b""  # not yet written: it leaves with the first bytes of the body
        self._raw = False  # no chunk framing
        self._silent = False  # no body at all
        self.endless = False  # nothing but the connection's end delimits it
        self._exchange: Piped | None = None
        self._on_gone: Callable[[], None] | None = None
        self.started = self.ended = self.gone = False

    def scope(self, scheme: str | None, client: object, server: object) -> dict[str, object]:
        """Of ASGI, with the passage itself as the extension that the proxy knows."""
        path, raw_path, query, _ = self.place
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1" if self.chunks else "1.0",
            "method": self.method.decode("ascii"),
            "scheme": scheme,
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": self.headers,
            "client": client,
            "server": server,
            "extensions": {LANE: self},
        }

    # The connection's side

    def arrived(self, data: bytes) -> None:
        last = self._parts[-1] if self._parts else b""
        if len(data) < _SMALL_PIECE and isinstance(last, bytearray) and len(last) < _JOINED:
            last += data
        else:  # a body of a million one-byte chunks is no million buffers
            self._parts.append(bytearray(data) if len(data) < _SMALL_PIECE else data)
        self.size += len(data)
        if self.waits_for_room or self.size > self._limit:
            self.wake()

    def lost(self) -> None:
        """The client has gone. Whoever reads or writes for it is told, in whichever phase."""
        if self.ended:
            return
        self.gone = True
        self.wake()
        if self._on_gone is not None:
            self._on_gone()

    def hold(self) -> None:
        if self._exchange is not None:
            self._exchange.hold()

    def go_on(self) -> None:
        if self._exchange is not None:
            self._exchange.go_on()

    def wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _wait(self) -> "asyncio.Future[None]":
        if self._continue:
            self._continue = False
            if not self.size and not self.started:
                self._lane.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._waiter = waiter = self._lane.loop.create_future()
        return waiter

    # The proxy's side: see `router.receipt.Client`

    def watch(self, gone: Callable[[], None] | None) -> None:
        self._on_gone = gone
        if gone is not None and self.gone:
            raise Gone

    async def body(self, limit: int) -> tuple[bytes, ...]:
        self._limit = limit
        while not self.whole:
            if self.size > limit:
                raise TooLarge
            if self.gone:
                raise Gone
            await self._wait()
        if self.size > limit:
            raise TooLarge
        return cast("tuple[bytes, ...]", tuple(self._parts))  # a joined one is not changed any more

    async def pieces(self, limit: int) -> AsyncIterator[bytes]:
        self._limit, self.waits_for_room = limit, True
        while True:
            if self.size > limit:
                raise TooLarge
            parts, self._parts = self._parts, []
            for part in parts:
                yield bytes(part)
            if self._parts:
                continue
            if self.whole:
                return
            if self.gone:
                raise Gone
            self._lane.flow.resume_reading()
            await self._wait()

    def start(self, status: int, headers: list[Header]) -> None:
        lines = [STATUS_LINE[status][:-2], *map(b": ".join, headers)]
        self._silent = self.method == b"HEAD" or status in (204, 304)
        has_length = b"content-length" in dict(headers)
        self._raw = self._silent or has_length or not self.chunks
        self.endless = self._raw and not (self._silent or has_length)
        if not self._raw:
            lines.append(b"transfer-encoding: chunked")
        if not self.keep_alive:
            lines.append(b"connection: close")
        lines += (b"", b"")
        self._head = b"\r\n".join(lines)
        self.started = True

    def write(self, data: bytes) -> None:
        """A piece of the body, on its way at once."""
        head, self._head = self._head, b""
        if self._silent or not data:
            data = b""
        elif not self._raw:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if head or data:
            self._lane.transport.write(head + data if head else data)

    async def finish(self, data: bytes = b"") -> None:
        """The clean end of the answer, with its last bytes or all of them."""
        if self.gone or self.ended:
            return
        if not self._raw:
            data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        elif self._silent:
            data = b""
        head, self._head = self._head, b""
        if head or data:
            self._lane.transport.write(head + data)
        self.ended = True
        self.wake()
        self._lane.answered(self)

    async def relay(self, exchange: Piped, begun: Callable[[], None], seen: Callable[[bytes], None]) -> None:
        """Each piece goes from the replica's socket to the client's where it is received: no task runs per piece."""
        write = self._lane.transport.write
        framed, silent = not self._raw, self._silent

        def first(data: bytes) -> None:
            begun()
            seen(data)
            if not self.gone:
                self.write(data)

        def rest(data: bytes) -> None:
            seen(data)
            if not (self.gone or silent):
                write(b"%x\r\n%b\r\n" % (len(data), data) if framed else data)

        self._exchange = exchange
        if self._lane.stalled:
            exchange.hold()
        else:
            exchange.go_on()  # what came before this may have been enough to pause the replica
        if self._head and not exchange.unread:
            self.write(b"")
        try:
            await exchange.pipe(first, rest)
        finally:
            self._exchange = None

    def refuse(self, status: int, code: str, message: str) -> None:
        """An answer of the lane's own; the connection ends with it."""
        self._lane.transport.write(refusal(status, code, message))
        self.started = self.ended = True
        self.keep_alive = False
        self._lane.answered(self)

    # Plain ASGI

    async def receive(self) -> Message:
        self.waits_for_room = not self.whole  # whoever reads in pieces bounds the body by itself
        while not (self.gone or self.ended) and (self._told or not (self._parts or self.whole)):
            self._lane.flow.resume_reading()
            await self._wait()
        if self.gone or self.ended:
            return {"type": "http.disconnect"}
        data, self._parts = b"".join(self._parts), []
        self._told = self.whole
        return {"type": "http.request", "body": data, "more_body": not self.whole}

    async def send(self, message: Message) -> None:
        if self._lane.stalled and not self.gone:
            await self._lane.flow.drain()
        if self.gone:
            return
        if message["type"] == "http.response.start":
            self.start(message["status"], list(message.get("headers", ())))
        elif message.get("more_body", False):
            self.write(message.get("body", b""))
        else:
            await self.finish(message.get("body", b""))
