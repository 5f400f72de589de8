"""One request on its way through the proxy: what is known of it so far, and how it ends.

Law: a turn is entered in the ledger once, by whoever finishes it.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from router.core.decision import Decision
from router.core.request import Request, Usage
from router.dialects import Dialect, Head
from router.metrics import Outcome

_FIRST_BYTES = 4096  # Anthropic counts the prompt in its first event, Responses names its id there
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_LAST_BYTES = 65536  # every family counts at the end; vLLM adds fields after the usage object

Buffer = bytes | bytearray | memoryview


class Refusal(Exception):
    """The request ends here, with an answer of our own. Never escapes the proxy."""

    def __init__(
        self, status: int, code: str, message: str, outcome: Outcome, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.outcome, self.retry_after = outcome, retry_after


class Gone(Exception):
    """The client hung up while its body was still coming."""


class Window:
    """The first and the last bytes of a reply: where usage stands. Bounded, whatever the reply's length."""

    __slots__ = ("_chunks", "_first", "_held")

    def __init__(self) -> None:
        self._first = b""
        self._chunks: list[bytes] = []
        self._held = 0

    def add(self, data: bytes) -> None:
        self._chunks.append(data)
        self._held += len(data)
        if self._held > 2 * _LAST_BYTES:  # amortised: one join for each window's worth of bytes
            whole = b"".join(self._chunks)
            self._first = self._first or whole[:_FIRST_BYTES]
            self._chunks = [whole[-_LAST_BYTES:]]
            self._held = _LAST_BYTES

    @property
    def between_events(self) -> bool:
        """Whether a server-sent event could begin here: nothing has come yet, or an empty line was last."""
        return not self._chunks or self.last.endswith(_EVENT_ENDS)

    @property
    def first(self) -> bytes:
        return self._first or b"".join(self._chunks)[:_FIRST_BYTES]

    @property
    def last(self) -> bytes:
        return b"".join(self._chunks)[-_LAST_BYTES:]


_UNREAD = Request("other")


@dataclass(slots=True, eq=False)
class Turn:
    head: Head
    target: bytes  # path and query as they came
    dialect: Dialect
    request_id: bytes
    started: float  # when its head was read
    body: tuple[Buffer, ...] | AsyncIterator[Buffer] = ()
    request: Request = _UNREAD
    decision: Decision | None = None
    pinned: bool = False  # state on a replica forces that one: elsewhere it would mean nothing
    tried: list[str] = field(default_factory=list)  # replicas that did not take it
    attempts: int = 0
    status: int = 0  # what the client was told; 0 = nothing yet
    answering: bool = False  # the response head is out
    tellable: bool = False  # the answer is one that may end in an event of ours
    window: Window = field(default_factory=Window)
    complete: bool = False  # the last byte is out
    gone: bool = False  # the client hung up
    cut_off: bool = False  # the router is shutting down and has waited long enough
    phase: str = "receiving"
    waited: float = 0.0  # seconds in the waiting room
    received: float = 0.0  # when its body was there, or as much of it as has to be read
    first_byte: float = 0.0
    outcome: Outcome = Outcome.REPLICA_ERROR
    usage: Usage | None = None
    error: str = ""  # for the log: what went wrong, in our words
    task: "asyncio.Task[Any] | None" = None  # what serves it

    def hung_up(self) -> None:
        """The client has gone: whoever works on an answer for it stops."""
        if not self.complete and self.task is not None:
            self.gone = True
            self.task.cancel()

    @property
    def resendable(self) -> bool:
        return isinstance(self.body, tuple)

    @property
    def replica(self) -> str:
        return (self.decision.replica or "") if self.decision else ""
