"""What every API family answers: how a request is read, what a reply says of itself, how a failure is told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from router.core.keys import Sources
from router.core.request import Request, Usage


@dataclass(slots=True, eq=False)
class Head:
    """The head of a request, as far as reading needs it."""

    method: bytes
    path: str  # decoded: it is matched, never forwarded
    query: bytes
    headers: Sequence[tuple[bytes, bytes]]  # names in lower case
    fields: Mapping[bytes, bytes] = field(init=False, repr=False)  # the first of each name: looked at ten times

    def __post_init__(self) -> None:
        self.fields = dict(reversed(self.headers))

    def header(self, name: bytes) -> bytes:
        """The first value of a header, stripped; empty if it is not there."""
        return self.fields.get(name, b"").strip()


class Dialect(Protocol):
    """One API family. Pure: nothing here raises for what a client or an engine sent."""

    @property
    def name(self) -> str: ...

    def read(self, head: Head, body: bytes | bytearray | memoryview, sources: Sources) -> Request:
        """The request as decisions need it. A body that cannot be read is an empty chain."""
        ...

    def usage(self, first: bytes, last: bytes, event_stream: bool) -> Usage:
        """What a reply says of itself, from its first 4 KiB and its last 64 KiB (they may overlap or be equal)."""
        ...

    def error(self, status: int, code: str, message: str) -> bytes:
        """A JSON error body that this family's clients understand, of type `router_error`."""
        ...

    def error_event(self, code: str, message: str) -> bytes:
        """The event that ends a broken stream for this family's SDKs. Never `[DONE]`.

        Only between events: after half of one, a client would parse it as the other half.
        """
        ...
