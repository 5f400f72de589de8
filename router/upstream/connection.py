"""One socket to a replica, one exchange at a time: writes the request, parses the reply, notices every kind of death.

Law: a connection goes back to the pool only if both messages ended cleanly; in every other case it is aborted at once.
"""

import asyncio
from collections.abc import AsyncIterator
from math import inf
from typing import Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from router.upstream.errors import FirstByteTimeout, IdleTimeout, KeepAliveRace, ReplicaFailed, Truncated, UpstreamError
from router.upstream.exchange import Exchange
from router.upstream.outgoing import Body, Buffer, Header, Timeouts

MAX_HEAD_BYTES = 64 * 1024  # head, interim heads, trailers and chunk extensions: engines send under 1 KiB
MAX_HEADERS = 256  # an order of magnitude above any engine behind any gateway

# A replica that closes an idle connection while a request is under way answers it with a reset within a round trip.
# Whoever dies later than this may have been at work on the request, and sending it again could do the work twice.
KEEPALIVE_RACE_SECONDS = 0.25


class Malformed(Exception):
    """Raised inside a parser callback; leaves this module as ReplicaFailed."""


class Owner(Protocol):
    """What a connection asks of its pool."""

    timeouts: Timeouts
    buffer_bytes: int

    def finished(self, connection: "Connection") -> None: ...
    def dropped(self, connection: "Connection") -> None: ...
    def lost(self, connection: "Connection") -> None: ...


class Connection(asyncio.Protocol):
    """Built by its pool. `deadline` and `usable_until` are loop times that the pool's sweep looks at."""

    __slots__ = (
        "_bodiless",
        "_drained",
        "_exchange",
        "_first_by",
        "_headers",
        "_idle",
        "_keep_alive",
        "_loop",
        "_owner",
        "_parser",
        "_quiet",
        "_sent_at",
        "_stalled",
        "_transport",
        "_upload",
        "born",
        "deadline",
        "paused",
        "usable_until",
        "used",
    )

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._idle = owner.timeouts.idle
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser: HttpResponseParser | None = None
        self._exchange: Exchange | None = None
        self._headers: list[Header] = []  # where the parser puts fields: the exchange's list, later a list of trailers
        self._quiet = 0  # bytes since the last byte of body (or since the request)
        self._bodiless = False  # the request was HEAD
        self._keep_alive = False
        self._sent_at = 0.0
        self._first_by = inf
        self._stalled = False  # the transport has asked to stop writing
        self._upload: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self.paused = False  # reading
        self.used = False
        self.born = 0.0
        self.deadline = inf
        self.usable_until = inf

    # The pool's side.

    def send(self, exchange: Exchange, method: bytes, head: bytes, body: Body) -> None:
        """Write the request, or begin to. The connection is the exchange's until that is complete or dropped."""
        transport = cast(asyncio.Transport, self._transport)
        self._exchange = exchange
        self._headers = exchange.headers
        self._quiet = 0
        self._bodiless = method == b"HEAD"
        self._keep_alive = False
        self._sent_at = now = self._loop.time()
        self._first_by = now + self._owner.timeouts.first_byte
        if not isinstance(body, (tuple, list)):
            transport.write(head)
            self._first_by = inf  # the client's pace, not the replica's
            self._upload = self._loop.create_task(self._write_chunks(exchange, body))
        elif body:
            transport.writelines((head, *body))
        else:
            transport.write(head)

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def expire(self) -> None:
        """The deadline has passed while somebody waited."""
        if self._exchange is not None and self._exchange.started:
            self.drop(IdleTimeout(f"no byte of the body for {self._owner.timeouts.idle:g} s"))
        elif self._stalled:
            self.drop(FirstByteTimeout(f"the request was not taken for {self._owner.timeouts.first_byte:g} s"))
        else:
            self.drop(FirstByteTimeout(f"no first byte within {self._owner.timeouts.first_byte:g} s"))

    def drop(self, error: Exception | None) -> None:
        """Abort the socket; whoever waits gets the error. Harmless when repeated."""
        exchange, self._exchange = self._exchange, None
        self._stop_upload()
        if self._transport is not None:
            self._transport.abort()
        self._owner.dropped(self)
        if exchange is not None:
            exchange.leave(error)

    # The exchange's side.

    def wait(self, started: bool) -> "asyncio.Future[None]":
        """The future of one wait, watched by the right deadline."""
        self.deadline = self._due(started)
        return self._loop.create_future()

    def _due(self, started: bool) -> float:
        if self.paused:
            return inf  # the client's pace, not the replica's
        return self._loop.time() + self._idle if started else self._first_by

    def pause(self) -> None:
        if not self.paused and self._transport is not None:
            self.paused = True
            self.deadline = inf
            self._transport.pause_reading()

    def resume(self) -> None:
        self.paused = False
        if self._transport is not None:
            self._transport.resume_reading()
        if self._exchange is not None and self._exchange.piped:
            self.deadline = self._due(self._exchange.started)

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = HttpResponseParser(self)
        self.born = self._loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        self.drop(self.death(str(exc or "connection closed")))
        self._transport = None
        self._parser = None  # breaks the cycle of bound callbacks
        self._owner.lost(self)

    def eof_received(self) -> None:
        exchange = self._exchange
        if exchange is None or not exchange.status or _framed(exchange.headers):
            self.drop(self.death("connection closed"))
            return
        exchange.complete = True  # a body that the end of the connection delimits
        self._finish(exchange)

    def data_received(self, data: bytes) -> None:
        exchange, parser = self._exchange, self._parser
        if exchange is None or parser is None:
            self.drop(None)  # nobody asked
            return
        self._quiet += len(data)
        try:
            parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._keep_alive = False
            if not exchange.complete:
                self.drop(self.death(f"malformed response: {error.__context__ or error}"))
                return
        if exchange.complete:
            exchange.flush()
            self._finish(exchange)
        elif self._quiet > MAX_HEAD_BYTES:
            self.drop(self.death(f"malformed response: {self._quiet} bytes without an end of head or a body"))
        elif exchange.unread:
            if exchange.flush():
                if not self.paused:
                    self.deadline = self._loop.time() + self._idle
                return
            self.deadline = inf
            exchange.wake()
            if exchange.unread > self._owner.buffer_bytes:
                self.pause()

    def pause_writing(self) -> None:
        self._stalled = True

    def resume_writing(self) -> None:
        self._stalled = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        elif self._upload is None:
            self._written()

    # The parser's side.

    def on_message_begin(self) -> None:
        if self._exchange is None or self._exchange.complete:
            raise Malformed("bytes after the end of the response")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        exchange, parser = self._exchange, self._parser
        if exchange is None or parser is None:
            raise Malformed("a head after the end of the response")
        headers = exchange.headers
        if len(headers) > MAX_HEADERS or (self._quiet > MAX_HEAD_BYTES and _size(headers) > MAX_HEAD_BYTES):
            raise Malformed("head too large")
        status = parser.get_status_code()
        if status < 200:
            if status < 100 or status == 101:
                raise Malformed(f"status {status}")
            headers.clear()  # 100-continue, 103 early hints: the final head follows
            return
        exchange.status = status
        self._headers = []
        self._keep_alive = parser.should_keep_alive() and self._upload is None
        self._stop_upload()  # an early answer: the rest of the request is not wanted
        if self._bodiless:
            exchange.complete = True
        self.deadline = inf
        exchange.wake()

    def on_body(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None or exchange.complete:
            raise Malformed("a body where there is none")
        self._quiet = 0
        exchange.arrived(data)

    def on_message_complete(self) -> None:
        exchange = self._exchange
        if exchange is not None and exchange.status:
            exchange.complete = True

    # Ends.

    def _finish(self, exchange: Exchange) -> None:
        self.deadline = inf
        transport = self._transport
        if not self._keep_alive or transport is None or transport.is_closing() or transport.get_write_buffer_size():
            self.drop(None)
            return
        self._exchange = None
        if self.paused:
            self.resume()
        if self._bodiless:
            self._parser = HttpResponseParser(self)  # the old one waits for the body that HEAD does not have
        self.used = True
        self._owner.finished(self)
        exchange.leave(None)

    def death(self, reason: str) -> UpstreamError:
        if self._exchange is not None and self._exchange.status:
            return Truncated(reason)
        if self.used and not self._quiet and self._loop.time() - self._sent_at <= KEEPALIVE_RACE_SECONDS:
            return KeepAliveRace(reason)
        return ReplicaFailed(reason)

    # Uploads that are not there yet.

    async def _write_chunks(self, exchange: Exchange, body: AsyncIterator[Buffer]) -> None:
        transport = cast(asyncio.Transport, self._transport)
        try:
            async for item in body:
                if not item:
                    continue  # an empty chunk would be the last
                transport.writelines((b"%x\r\n" % len(item), item, b"\r\n"))
                if self._stalled:
                    await self._drain()
            transport.write(b"0\r\n\r\n")
            self._upload = None
            if not self._stalled:
                self._written()
        except Exception as error:  # the iterator's own: the caller knows its meaning
            self._upload = None
            if self._exchange is exchange:
                self.drop(error)

    async def _drain(self) -> None:
        self.deadline = self._loop.time() + self._owner.timeouts.first_byte
        self._drained = self._loop.create_future()
        try:
            await self._drained
        finally:
            self._drained = None
        self.deadline = inf

    def _written(self) -> None:
        """All of the request is on its way: from now on the replica is being waited for."""
        if self._exchange is not None and not self._exchange.status:
            self.deadline = self._first_by = self._loop.time() + self._owner.timeouts.first_byte

    def _stop_upload(self) -> None:
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.cancel()


def _framed(headers: list[Header]) -> bool:
    """Does the message end before the connection does?"""
    return any(
        name == b"content-length" or (name == b"transfer-encoding" and value.lower().rstrip().endswith(b"chunked"))
        for name, value in headers
    )


def _size(headers: list[Header]) -> int:
    return sum(len(name) + len(value) + 4 for name, value in headers)
