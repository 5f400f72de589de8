"""The client's side of a request, one protocol on two lanes: its body, its answer, its end.

Law: a body is bounded either way; from the first byte to the last, somebody notices when the client hangs up.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Protocol, TypeAlias

from router.headers import Header
from router.metrics import Outcome
from router.turn import Buffer, Gone, Refusal

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

LANE = "router.lane"  # the scope's extension that is a `Client` by itself: see `router.server`
WATCH_AFTER = 0.02  # seconds: what is answered sooner needs no task that watches its client, 6 % of a small request
SMALL = 1024 * 1024  # an unread body up to this size is kept whole all the same, so that it can be sent again


class TooLarge(Exception):
    """The body exceeds its limit."""


class Piped(Protocol):
    """A replica's answer, as a client's side takes it: piece by piece, or pushed where it is received."""

    @property
    def unread(self) -> int: ...

    async def read(self) -> bytes: ...
    async def pipe(self, first: Callable[[bytes], None], rest: Callable[[bytes], None]) -> None: ...
    def hold(self) -> None: ...
    def go_on(self) -> None: ...


class Client(Protocol):
    """Who asked. Reading raises TooLarge and Gone, writing may raise OSError where a server says so by an error."""

    def watch(self, gone: Callable[[], None] | None) -> None:
        """Call `gone` when the client hangs up; None ends the watch. Raises Gone if it has already."""

    async def body(self, limit: int) -> tuple[Buffer, ...]:
        """All of the body, as it came."""

    def pieces(self, limit: int) -> AsyncIterator[Buffer]:
        """The body as it comes, no faster than it is taken."""

    def start(self, status: int, headers: list[Header]) -> None:
        """The answer's head; it leaves with what is called next."""

    async def relay(self, exchange: Piped, begun: Callable[[], None], seen: Callable[[bytes], None]) -> None:
        """Every piece of the replica's answer, shown to `seen`; before the first, `begun`. Raises UpstreamError."""

    async def finish(self, data: bytes = b"") -> None:
        """The clean end, with the last bytes."""


class Standard:
    """A client behind the plain calls of ASGI."""

    __slots__ = ("_gone", "_more", "_receive", "_send", "_size", "_start", "_watching")

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._size, self._more = 0, True  # of the body: bytes so far, whether more may come
        self._start: Message | None = None
        self._gone: Callable[[], None] | None = None
        self._watching: asyncio.Task[None] | asyncio.TimerHandle | None = None

    def watch(self, gone: Callable[[], None] | None) -> None:
        self._gone = gone
        if gone is None and self._watching is not None:
            self._watching.cancel()

    async def body(self, limit: int) -> tuple[Buffer, ...]:
        parts = list[Buffer]()
        while (part := await self._part(limit)) is not None:
            parts.append(part)
        self._begin()
        return tuple(parts)

    async def pieces(self, limit: int) -> AsyncIterator[Buffer]:
        while (part := await self._part(limit)) is not None:
            yield part
        self._begin()

    async def _part(self, limit: int) -> Buffer | None:
        while self._more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Gone
            part: bytes = message.get("body", b"")
            self._more = message.get("more_body", False)
            self._size += len(part)
            if self._size > limit:
                raise TooLarge
            if part:
                return part
        return None

    def start(self, status: int, headers: list[Header]) -> None:
        self._start = {"type": "http.response.start", "status": status, "headers": headers}

    async def relay(self, exchange: Piped, begun: Callable[[], None], seen: Callable[[bytes], None]) -> None:
        self._begin()  # an answer that came early has ended the upload
        await self._started()
        data = await exchange.read()
        if data:
            begun()
        while data:
            seen(data)
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            data = await exchange.read()

    async def finish(self, data: bytes = b"") -> None:
        await self._started()
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def _started(self) -> None:
        start, self._start = self._start, None
        if start is not None:
            await self._send(start)

    def _begin(self) -> None:
        """Nobody wants more of the body: what the server still has to tell is the end."""
        if self._watching is None:
            self._watching = asyncio.get_running_loop().call_later(WATCH_AFTER, self._begin_to_watch)

    def _begin_to_watch(self) -> None:
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self._gone is not None:
            self._gone()


async def receive_body(
    client: Client, fields: Mapping[bytes, bytes], limit: int, *, whole: bool
) -> tuple[Buffer, ...] | AsyncIterator[Buffer]:
    """All of the body as it came, or an iterator over what is still to come.

    Raises Refusal (413) above `limit` bytes and Gone if the client hangs up.
    """
    length = fields.get(b"content-length", b"")
    declared = int(length) if length.isdigit() else None
    if declared is not None and declared > limit:
        raise too_large(limit)
    if declared is None and not fields.get(b"transfer-encoding"):
        await client.body(limit)
        return ()
    if not whole and (declared is None or declared > SMALL):
        return client.pieces(limit)
    return await client.body(limit) or (b"",)


def too_large(limit: int) -> Refusal:
    return Refusal(413, "body_too_large", f"the body exceeds max_body_bytes ({limit} bytes)", Outcome.CLIENT_ERROR)
