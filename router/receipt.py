"""The client's side of a request, one protocol on two lanes: its body, its answer, its end.

Law: a body is bounded either way; from the first byte to the last, somebody notices when the client hangs up.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol, TypeAlias

from router.headers import Header, value_of
from router.metrics import Outcome
from router.turn import Buffer, Gone, Refusal

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

LANE = "router.lane"  # the scope's extension that is a `Client` by itself: see `router.server`
_SMALL = 1024 * 1024  # an unread body up to this size is kept whole all the same, so that it can be sent again


class TooLarge(Exception):
    """The body exceeds its limit."""


class Piped(Protocol):
    """A replica's answer, as a client's side takes it: piece by piece, or pushed where it is received."""

    @property
    def unread(self) -> int: ...

    async def read(self) -> bytes: ...
    async def pipe(self, sink: Callable[[bytes], None]) -> None: ...
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

    async def relay(self, exchange: Piped, seen: Callable[[bytes], None]) -> None:
        """Every piece of the replica's answer, shown to `seen` first. Raises UpstreamError."""

    async def finish(self, data: bytes = b"") -> None:
        """The clean end, with the last bytes."""


class Standard:
    """A client behind the plain calls of ASGI."""

    __slots__ = ("_gone", "_receive", "_send", "_start", "_watching")

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._start: Message | None = None
        self._gone: Callable[[], None] | None = None
        self._watching: asyncio.Task[None] | None = None

    def watch(self, gone: Callable[[], None] | None) -> None:
        self._gone = gone
        if gone is None and self._watching is not None:
            self._watching.cancel()

    async def body(self, limit: int) -> tuple[Buffer, ...]:
        return tuple([part async for part in self.pieces(limit)])

    async def pieces(self, limit: int) -> AsyncIterator[Buffer]:
        size = 0
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Gone
            part = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(part)
            if size > limit:
                raise TooLarge
            if part:
                yield part
        self._begin()

    def start(self, status: int, headers: list[Header]) -> None:
        self._start = {"type": "http.response.start", "status": status, "headers": headers}

    async def relay(self, exchange: Piped, seen: Callable[[bytes], None]) -> None:
        self._begin()  # an answer that came early has ended the upload
        await self._started()
        while data := await exchange.read():
            seen(data)
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

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
            self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self._gone is not None:
            self._gone()


async def receive_body(
    client: Client, headers: Iterable[Header], limit: int, *, whole: bool
) -> tuple[Buffer, ...] | AsyncIterator[Buffer]:
    """All of the body as it came, or an iterator over what is still to come.

    Raises Refusal (413) above `limit` bytes and Gone if the client hangs up.
    """
    length = value_of(headers, b"content-length")
    declared = int(length) if length.isdigit() else None
    if declared is not None and declared > limit:
        raise too_large(limit)
    if declared is None and not value_of(headers, b"transfer-encoding"):
        await client.body(limit)
        return ()
    if not whole and (declared is None or declared > _SMALL):
        return client.pieces(limit)
    return await client.body(limit) or (b"",)


def too_large(limit: int) -> Refusal:
    return Refusal(413, "body_too_large", f"the body exceeds max_body_bytes ({limit} bytes)", Outcome.CLIENT_ERROR)
