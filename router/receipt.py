"""The door: a request's body, whole where it must be read, passed through where it need not. Bounded either way."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from router.headers import Header, value_of
from router.metrics import Outcome
from router.turn import Gone, Refusal

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
