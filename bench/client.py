"""A lean HTTP/1.1 client: one connection per lane, one request at a time, only what a replay must know of a reply.

A client that parses every event would be the slowest part of the demo, so only the tail of a body is kept.
"""

import asyncio
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools
import msgspec

_TAIL_BYTES = 4_096  # the usage event and [DONE] fit many times over


@dataclass(slots=True)
class Answer:
    """A reply as seen by the caller; times are of `time.monotonic`."""

    sent_at: float
    status: int = 0  # 0 = the connection failed
    headers: dict[str, str] = field(default_factory=dict)
    first_at: float = 0.0  # first byte of the body
    done_at: float = 0.0
    tail: bytes = b""
    complete: bool = False
    error: str = ""

    def usage(self) -> dict[str, object]:
        """The usage object of a streamed or whole reply; empty if it carried none."""
        for line in reversed(self.tail.split(b"\n")):
            text = line.removeprefix(b"data: ").strip()
            if b'"usage"' not in text:
                continue
            try:
                usage = msgspec.json.decode(text).get("usage")
            except (msgspec.DecodeError, AttributeError):
                continue
            if isinstance(usage, dict):
                return usage
        return {}


class Lane(asyncio.Protocol):
    """One keep-alive connection to one origin, opened when needed and again when it was closed."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._host, self._port = parts.hostname, parts.port or 80
        self._origin = parts.netloc
        self._base = parts.path.rstrip("/")
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._done: asyncio.Future[None] | None = None

    async def post(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> Answer:
        extra = {"content-type": "application/json", "content-length": str(len(body))} | (headers or {})
        return await self._request("POST", path, extra, body)

    async def get(self, path: str) -> Answer:
        return await self._request("GET", path, {}, b"")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _request(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        lines = [f"{method} {self._base}{path} HTTP/1.1", f"host: {self._origin}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return await self._once(("\r\n".join(lines) + "\r\n\r\n").encode(), body)

    async def _once(self, head: bytes, body: bytes) -> Answer:
        answer = self._answer = Answer(time.monotonic())
        loop = asyncio.get_running_loop()
        try:
            if self._transport is None or self._transport.is_closing():
                await loop.create_connection(lambda: self, self._host, self._port)
        except OSError as error:
            answer.error, answer.done_at = str(error), time.monotonic()
            return answer
        assert self._transport is not None
        self._done = loop.create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._transport.writelines([head, body])
        try:
            await self._done
        finally:
            self._done = None
            if not answer.complete:
                self._transport.abort()
        answer.done_at = time.monotonic()
        return answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail(f"connection closed: {exc}" if exc else "connection closed")

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._answer is not None:
            self._answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._answer is not None:
            self._answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        answer = self._answer
        if answer is None:
            return
        if not answer.first_at:
            answer.first_at = time.monotonic()
        answer.tail = (answer.tail + body)[-_TAIL_BYTES:]

    def on_message_complete(self) -> None:
        if self._answer is not None:
            self._answer.complete = True
        if not self._parser.should_keep_alive() and self._transport is not None:
            self._transport.close()
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _fail(self, why: str) -> None:
        if self._done is None or self._done.done() or self._answer is None:
            return
        self._answer.error = why
        self._done.set_result(None)
