"""One request and its reply, as the proxy holds it. Owns the reply's unread bytes and whoever waits for them.

Law: whichever way an exchange ends, by its end, an error, a cancellation or `close()`, nothing stays behind.
"""

from asyncio import Future
from collections.abc import Callable
from typing import Protocol

from router.upstream.errors import Truncated, UpstreamError
from router.upstream.outgoing import Header


class Wire(Protocol):
    """What an exchange asks of the connection that carries it."""

    paused: bool

    def wait(self, started: bool) -> "Future[None]": ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def drop(self, error: Exception | None) -> None: ...


class Exchange:
    """A reply whose head is there and whose body is read with `read()`. `close()` it whatever happens.

    `headers` are raw, in order, duplicates kept, names in lower case. `complete`: the end of the body has come, so
    `read()` will not wait. `reused`: the connection had carried others before. `resent`: it was lost to the
    keep-alive race and sent again.
    """

    __slots__ = (
        "_chunks",
        "_error",
        "_rest",
        "_sink",
        "_started",
        "_waiter",
        "_wire",
        "complete",
        "headers",
        "resent",
        "reused",
        "status",
        "unread",
    )

    def __init__(self, wire: Wire, *, reused: bool, resent: bool) -> None:
        self.status = 0  # 0 = the head is not there yet
        self.headers: list[Header] = []
        self.complete = False
        self.reused = reused
        self.resent = resent
        self._wire: Wire | None = wire  # None = the connection is back in its pool, or gone
        self._chunks: list[bytes] = []
        self.unread = 0  # bytes in `_chunks`
        self._started = False  # the first byte of the body has come
        self._error: Exception | None = None
        self._waiter: Future[None] | None = None
        self._sink: Callable[[bytes], None] | None = None
        self._rest: Callable[[bytes], None] | None = None

    def whole(self) -> bytes | None:
        """All of the body where it has come already, else nothing."""
        if not self.complete:
            return None
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self.unread = 0
        return data

    async def pipe(self, first: Callable[[bytes], None], rest: Callable[[bytes], None]) -> None:
        """Call `first` with the first piece and `rest` with every other where it is received, until the clean end.

        No task runs per piece. Raises as `read` does.
        """
        self._sink, self._rest = first, rest
        try:
            self.flush()
            while not self.complete:
                if self._error is not None:
                    raise self._error
                await self._news()
        finally:
            self._sink = self._rest = None

    def hold(self) -> None:
        """Whoever is piped to cannot take more: slow the replica down."""
        if self._wire is not None:
            self._wire.pause()

    def go_on(self) -> None:
        if self._wire is not None and self._wire.paused:
            self._wire.resume()

    async def read(self) -> bytes:
        """All that has come since the last read, waiting for it if need be; b"" at the clean end.

        Raises Truncated, FirstByteTimeout or IdleTimeout, after everything that came before it was read.
        """
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self.complete:
                return b""
            await self._news()
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self.unread = 0
        if self._wire is not None and self._wire.paused:
            self._wire.resume()
        return data

    def close(self) -> None:
        """The reader is done. A reply that is not complete is cut off at once, so that the engine notices."""
        if self._wire is not None:
            self._wire.drop(Truncated("closed by its reader"))
        self._chunks.clear()

    async def answered(self) -> None:
        """For the pool: returns when the head is there, raises what came instead."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._news()

    async def _news(self) -> None:
        """Until the connection has something to tell."""
        if self._wire is None:
            raise UpstreamError("neither ended nor carried")
        self._waiter = waiter = self._wire.wait(self._started)
        try:
            await waiter
        except BaseException:  # cancelled: nobody will read on
            self.close()
            raise

    # The connection's side.

    def arrived(self, data: bytes) -> None:
        self._chunks.append(data)
        self.unread += len(data)
        self._started = True

    @property
    def started(self) -> bool:
        return self._started

    def flush(self) -> bool:
        """Hand over what is unread; False where nobody is piped to."""
        sink, chunks = self._sink, self._chunks
        if sink is None:
            return False
        if chunks:
            data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            chunks.clear()
            self.unread = 0
            self._sink = self._rest
            sink(data)
        return True

    @property
    def piped(self) -> bool:
        return self._sink is not None

    def wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def leave(self, error: Exception | None) -> None:
        """The connection lets go: with an error, or because the exchange is complete."""
        self._wire = None
        self._error = error
        self.flush()
        self.wake()
