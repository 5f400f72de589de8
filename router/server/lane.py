"""One connection of a client: uvicorn's HTTP protocol, with more to offer and less to trust.

Law: whatever comes over a connection is bounded in size and in time, and what could be read in two ways is refused.
"""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from router.server.passage import Passage
from router.server.wire import Place, framing_of, has_left, place_of, refusal, size_of

MAX_HEAD_BYTES = 64 * 1024  # clients send 1-4 KiB; nginx allows 32, and tokens in headers grow
MAX_HEADERS = 256  # an order of magnitude above any client behind any gateway
HEAD_SECONDS = 10.0  # from the first byte of a head to its last: a lost segment is sent again within 3
BODY_SECONDS = 60.0  # without a byte of a body that somebody waits for; nginx and haproxy say the same
PEEK_SECONDS = 0.5  # while a client is not read from: a hang-up is passed on within a second
_AHEAD = 32  # pipelined requests taken in behind the one that runs: reading on is what notices a hang-up
_AHEAD_BYTES = 256 * 1024  # of their bodies, and of an upload that nobody has taken yet

_REASONS = {400: "bad_request", 408: "request_timeout", 431: "head_too_large"}


class Lane(HttpToolsProtocol):
    """One connection of a client. Requests are answered one after the other, in the order in which they came."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._running: Passage | None = None  # the one that is being answered
        self._coming: Passage | None = None  # the one whose body is being read
        self._ahead: deque[Passage] = deque()
        self._url, self._last_url = b"", b""
        self._place: Place = "", b"", b"", b""  # of `_last_url`: clients ask for the same again
        self._peeking = False
        self._framing = b""  # of a body behind an upgrade's head, still to be read
        self._replaying = False  # the parser is being told that framing
        self._in_head = False  # a head has begun and not ended
        self._quiet = 0  # bytes since the last byte of a body or the end of a message
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = self._deadline = inf
        self._late: Callable[[Lane], None] = Lane._close  # not bound: that would be a cycle
        self._deaf = False  # nothing more is read: the client broke the protocol, or is leaving
        self._refusal = b""  # told once everything before it has been answered
        self.stalled = False  # the client does not read

    # The transport's side

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)
        self._deaf = True
        if self._alarm is not None:
            self._alarm.cancel()
        lost = ((self._running,) if self._running is not None else ()) + tuple(self._ahead)
        self._ahead.clear()
        for passage in lost:
            passage.lost()
        self.flow.resume_writing()
        self.parser = None  # type: ignore[assignment]  # breaks the cycle of bound callbacks

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._quiet += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            self._refuse(400, f"malformed request: {error.__context__ or error}")
            return
        if self._quiet > MAX_HEAD_BYTES:  # a head, or what may stand around chunks and behind them
            self._refuse(431, f"the head exceeds {MAX_HEAD_BYTES} bytes")
        elif self._coming is not None:
            self._watch(BODY_SECONDS, Lane._slow_body)
        elif self._in_head and (self._deadline == inf or self._late is not Lane._slow_head):
            self._watch(HEAD_SECONDS, Lane._slow_head)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:  # ignored (RFC 9110 section 7.8), or refused by the proxy
            rest = data[upgrade.args[0] :]
            if self._framing:
                self._read_on()
            if rest and not self._deaf:
                self._feed(rest)

    def _read_on(self) -> None:
        """llhttp takes an upgrade's head for the whole message. The body is one all the same, framed as its head said:
        a parser that has seen that framing and nothing of an upgrade goes on with it.
        """
        self.parser = httptools.HttpRequestParser(self)
        framing, self._framing, self._replaying = self._framing, b"", True
        self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")
        self._replaying = False

    def pause_writing(self) -> None:
        super().pause_writing()
        self.stalled = True
        if self._running is not None:
            self._running.hold()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.stalled = False
        if self._running is not None:
            self._running.go_on()

    def shutdown(self) -> None:
        """Called by the server: close as soon as what runs has been answered."""
        if self._running is None:
            self.transport.close()
        else:
            self._running.keep_alive = False

    # The parser's side

    def on_message_begin(self) -> None:
        if self._replaying:
            return
        self._url = b""
        self._in_head = True
        self.headers = []

    def on_url(self, url: bytes) -> None:
        if not self._replaying:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head and not self._replaying:  # else a trailer, which nobody has checked
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser, headers = self.parser, self.headers
        self._in_head = False
        if self._replaying:
            return
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise ValueError(f"HTTP version {version}")
        if self._url != self._last_url:
            self._place, self._last_url = place_of(self._url), self._url
        passage = Passage(self, parser.get_method(), self._place, headers, version == "1.1")
        passage.keep_alive = passage.chunks and parser.should_keep_alive()
        if len(headers) > MAX_HEADERS or (
            self._quiet > MAX_HEAD_BYTES and len(self._url) + size_of(headers) > MAX_HEAD_BYTES
        ):
            self._refuse(431, f"the head exceeds {MAX_HEADERS} fields or {MAX_HEAD_BYTES} bytes")
            return
        if not passage.chunks and any(name == b"transfer-encoding" for name, _ in headers):
            raise ValueError("a transfer coding in HTTP/1.0")
        if self._deaf:
            return
        if parser.should_upgrade():
            self._framing = framing_of(headers)
        self._coming = passage
        if self._running is None:
            self._start(passage)
        else:
            self._ahead.append(passage)
            if len(self._ahead) > _AHEAD:
                self._pause()

    def on_body(self, body: bytes) -> None:
        passage = self._coming
        self._quiet = 0
        if passage is None or passage.ended:
            return  # an answer that came early: the rest is let pass
        passage.arrived(body)
        if passage.waits_for_room or (passage is not self._running and passage.size > _AHEAD_BYTES):
            self._pause()

    def on_message_complete(self) -> None:
        if self._framing:
            return  # only the head of it: see `_read_on`
        passage, self._coming = self._coming, None
        self._quiet = 0
        self._deadline = inf
        if passage is not None:
            passage.whole = True
            passage.wake()

    def _pause(self) -> None:
        self.flow.pause_reading()
        if not self._peeking:
            self._peeking = True
            self.loop.call_later(PEEK_SECONDS, self._peek)

    def _peek(self) -> None:
        """Nothing is read now, so nobody hears that the client hangs up: the kernel is asked."""
        self._peeking = False
        if self.transport is None or self.transport.is_closing() or not self.flow.read_paused:
            return
        if has_left(self.transport):
            self.transport.abort()
        else:
            self._peeking = True
            self.loop.call_later(PEEK_SECONDS, self._peek)

    # Requests, one after the other

    def _start(self, passage: Passage) -> None:
        self._running = passage
        passage.task = task = self.loop.create_task(self._serve(passage))
        self.tasks.add(task)

    async def _serve(self, passage: Passage) -> None:
        try:
            await self.app(passage.scope(self.scheme, self.client, self.server), passage.receive, passage.send)
            if not passage.ended and not passage.gone:
                self._failed(passage, None)
        except BaseException as error:  # whatever it was, the connection must not hang
            self._failed(passage, error)
        finally:
            self.tasks.discard(passage.task)

    def _failed(self, passage: Passage, error: BaseException | None) -> None:
        if error is not None:
            self.logger.error("Exception in ASGI application\n", exc_info=error)
        if passage.started or passage.gone:  # an answer that broke off is cut
            if passage.endless:  # an orderly end of the connection would be that of the answer
                self._reset()
            self.transport.close()
            return
        passage.refuse(500, "internal_error", "the router failed")

    def answered(self, passage: Passage) -> None:
        """Its last byte is written."""
        self.server_state.total_requests += 1
        self._running = None
        if not passage.keep_alive:
            self._close()
            return
        self.flow.resume_reading()
        if self._ahead:
            self._start(self._ahead.popleft())
        elif self._refusal:
            self._write_refusal()
        elif self._coming is None and not self._in_head:
            self._rest()

    # Time

    def _rest(self) -> None:
        self._watch(self.timeout_keep_alive, Lane._close)

    def _watch(self, seconds: float, late: "Callable[[Lane], None]") -> None:
        """One timer per connection, moved only when it would come too late: nothing is armed per request."""
        self._late, self._deadline = late, self.loop.time() + seconds
        if self._alarm is None or self._alarm_at > self._deadline:
            self._arm()

    def _arm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = self._deadline
        self._alarm = self.loop.call_at(self._deadline, self._ring)

    def _ring(self) -> None:
        self._alarm, self._alarm_at = None, inf
        if self._deaf or self._deadline == inf:
            return
        if self.loop.time() >= self._deadline:
            self._late(self)
        else:
            self._arm()

    def _slow_head(self) -> None:
        if self._in_head:
            self._refuse(408, f"the head did not come within {HEAD_SECONDS:g} s")

    def _slow_body(self) -> None:
        if self._coming is None:
            return
        if self.flow.read_paused:  # the replica's pace, not the client's
            self._watch(BODY_SECONDS, Lane._slow_body)
        else:
            self._refuse(408, f"no byte of the body for {BODY_SECONDS:g} s")

    # Ends

    def _close(self) -> None:
        self._deaf = True
        if not self.transport.is_closing():
            self.transport.close()

    def _reset(self) -> None:
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _refuse(self, status: int, message: str) -> None:
        """The client broke the protocol: it is told after all that it was promised before, and the connection ends."""
        if self._deaf:
            return
        self.logger.debug("%d: %s", status, message)
        self._deaf, self._refusal = True, refusal(status, _REASONS[status], message)
        broken, self._coming = self._coming, None
        if broken is not None and broken in self._ahead:
            self._ahead.remove(broken)
        if broken is not None and broken.ended:  # its answer came early, and one is all it gets
            self.transport.close()
        elif self._running is None:
            self._write_refusal()
        elif self._running is broken:
            if not broken.started:
                self.transport.write(self._refusal)
            self.transport.close()
            broken.lost()

    def _write_refusal(self) -> None:
        self.transport.write(self._refusal)
        self.transport.close()
