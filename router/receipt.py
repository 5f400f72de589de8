"""The client's side of a request: its body, whole where it must be read, passed through where it need not; its end.

Law: a body is bounded either way; from the first byte to the last, somebody notices when the client hangs up.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from router.headers import Header, value_of
from router.metrics import Outcome
from router.turn import Gone, Refusal, Turn

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_SMALL = 1024 * 1024  # an unread body up to this size is kept whole all the same, so that it can be sent again


async def receive_body(
    headers: Iterable[Header], receive: Receive, limit: int, *, whole: bool
) -> tuple[bytes, ...] | AsyncIterator[bytes]:
    """All of the body as it came, or an iterator over what is still to come.

    Raises Refusal (413) above `limit` bytes and Gone if the client hangs up.
    """
    length = value_of(headers, b"content-length")
    declared = int(length) if length.isdigit() else None
    if declared is not None and declared > limit:
        raise _too_large(limit)
    if declared is None and not value_of(headers, b"transfer-encoding"):
        return ()
    if whole or (declared is not None and declared <= _SMALL):
        return await _whole(receive, limit)
    return _passing(receive, limit)


async def _whole(receive: Receive, limit: int) -> tuple[bytes, ...]:
    parts = [part async for part in _passing(receive, limit)]
    return tuple(parts) or (b"",)


async def _passing(receive: Receive, limit: int) -> AsyncIterator[bytes]:
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        part = message.get("body", b"")
        more = message.get("more_body", False)
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        if part:
            yield part


def _too_large(limit: int) -> Refusal:
    return Refusal(413, "body_too_large", f"the body exceeds max_body_bytes ({limit} bytes)", Outcome.CLIENT_ERROR)


class Vigil:
    """Notices that the client hung up, in whichever phase, and ends the one task that serves it."""

    __slots__ = ("_receive", "_task", "_turn", "_watching")

    def __init__(self, turn: Turn, task: "asyncio.Task[Any]", receive: Receive) -> None:
        self._turn, self._task, self._receive = turn, task, receive
        self._watching: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Once the body is there, or nobody wants the rest of it. Harmless when repeated."""
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    async def after(self, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same parts; the vigil begins at their end."""
        async for part in parts:
            yield part
        self.begin()

    def end(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._turn.complete:
            self._turn.gone = True
            self._task.cancel()
