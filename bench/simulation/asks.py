"""What callers ask: a request as the router reads it, with the job that an engine will get from it."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from bench.model import Job
from router.core.lease import Lease
from router.core.request import Request

BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Ask:
    request: Request
    job: Job
    finish: str  # how the reply will end: tool_calls or stop
    think: float  # seconds from the last reply, or from the caller's start, until it is sent
    session: int = 0  # whose turn it really is, whatever the router can tell


@dataclass(slots=True, eq=False)
class Caller:
    """Sends one ask after another; between sending and the last token, where it runs and since when."""

    asks: Iterator[Ask]
    ready: Ask | None = None
    arrived_at: float = 0.0
    sent_at: float = 0.0
    first_at: float = 0.0
    expected: int = 0
    lease: Lease | None = None
    engine: str = ""
    router: int = 0
    held_since: float | None = None
    waited: float = field(default=0.0)
