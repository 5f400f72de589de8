"""The way back: a replica's reply relayed as it comes, or an error of our own in the caller's dialect.

Law: bytes pass untouched; an answer that broke off never looks as if it had ended.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeAlias

from router.core.health import Fault
from router.core.lease import Lease
from router.core.request import Usage
from router.headers import Header, printable, to_client, value_of
from router.metrics import Outcome
from router.receipt import Client
from router.turn import Refusal, Turn, Window
from router.upstream import Exchange, FirstByteTimeout, IdleTimeout, UpstreamError

Fields: TypeAlias = Mapping[bytes, bytes]  # of a reply's head, the first of each name

_GENERATES = frozenset(
    ("chat", "completions", "responses", "messages", "generate")
)  # whose first byte is a first token
_ROUTES = 4096  # kept sets of x-router-* fields: replicas times reasons times sources
_BODILESS = (204, 304)
_NOT_IMPLEMENTED = 501  # what an engine is, not how it is: llama.cpp's word for an API that it was started without
_LAST_WORD_SECONDS = 1.0  # for a client that may have stopped reading: it gets the cut instead


class Counts(Protocol):
    """What the ledger wants to know of an answer."""

    def first_token(self, seconds: float) -> None: ...
    def answered(self, usage: Usage, expected: int, seconds_after_first: float) -> None: ...


class Answers:
    """How clients are answered. `shown` is the policy's name for the x-router-* fields; "" leaves them out."""

    def __init__(self, clock: Callable[[], float], counts: Counts, shown: str) -> None:
        self._now, self._counts, self._shown = clock, counts, printable(shown)
        self._routes: dict[tuple[str, str, str], tuple[Header, ...]] = {}

    async def relay(self, turn: Turn, lease: Lease, exchange: Exchange, client: Client) -> None:
        status, headers = exchange.status, exchange.headers
        good = 200 <= status < 300
        if not good:
            blame(lease, status, headers)
        turn.status, turn.phase = status, "answering"
        fields = dict(reversed(headers))
        turn.tellable = _may_end_in_an_event(fields)
        turn.request_id = fields.get(b"x-request-id") or turn.request_id
        client.start(status, self._fields(turn, to_client(headers, bodiless=status in _BODILESS), fields))
        turn.answering = True
        last = exchange.whole()
        if last is None:
            try:
                await client.relay(exchange, lambda: self._first_byte(turn, lease, good), turn.window.add)
            except UpstreamError as error:
                await self._broken(turn, lease, error, client)
                return
        if not turn.first_byte:
            self._first_byte(turn, lease, good)
        if last:
            turn.window.add(last)
        turn.complete = True
        self._settle(turn, lease, turn.window, fields)
        await client.finish(last or b"")

    async def refuse(self, turn: Turn, refusal: Refusal, client: Client) -> None:
        """An error of our own; where an answer has begun, its last word."""
        turn.outcome, turn.error = refusal.outcome, turn.error or refusal.message
        if turn.answering:
            await self._break_off(turn, refusal.code, refusal.message, client)
            return
        turn.status, turn.answering = refusal.status, True
        body = turn.dialect.error(refusal.status, refusal.code, refusal.message)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        if refusal.retry_after is not None:
            headers.append((b"retry-after", b"%d" % max(1, round(refusal.retry_after))))
        turn.complete = True
        client.start(refusal.status, self._fields(turn, headers, {}))
        await client.finish(body if turn.head.method != b"HEAD" else b"")

    def _first_byte(self, turn: Turn, lease: Lease, good: bool) -> None:
        turn.first_byte = self._now()
        if good:
            lease.first_byte()
            if turn.dialect.name in _GENERATES:
                self._counts.first_token(turn.first_byte - turn.started)

    def _settle(self, turn: Turn, lease: Lease, window: Window, fields: Fields) -> None:
        """The answer is whole: what it says of itself decides whether it was one."""
        turn.outcome = _outcome_of(turn.status)
        if turn.outcome is not Outcome.OK:
            return
        turn.error = ""  # of an attempt before this one
        if fields.get(b"content-encoding", b"") not in (b"", b"identity"):
            lease.settle(None)  # an encoded body is relayed, not read
            return
        usage = turn.dialect.usage(window.first, window.last, _is_event_stream(fields))
        turn.usage = usage
        if usage.failed:
            turn.outcome, turn.error = Outcome.REPLICA_ERROR, "the answer carried a failure"
            lease.blame(Fault.FAULT)
            return
        lease.settle(usage)
        expected = turn.decision.expected_cached if turn.decision else 0
        self._counts.answered(usage, expected, self._now() - turn.first_byte)

    async def _broken(self, turn: Turn, lease: Lease, error: UpstreamError, client: Client) -> None:
        lease.blame(Fault.FAULT)
        late = isinstance(error, (IdleTimeout, FirstByteTimeout))
        turn.outcome, turn.error = (Outcome.TIMEOUT if late else Outcome.TRUNCATED), str(error)
        await self._break_off(turn, error.code, f"replica {lease.load.id} broke off its answer", client)

    async def _break_off(self, turn: Turn, code: str, message: str, client: Client) -> None:
        """Where the answer's kind allows, say so in it; else nothing, and the server cuts the connection.

        Half an event cannot be taken back, and SDKs would parse it: there the cut is the clearer word.
        """
        if not turn.tellable or turn.complete or not turn.window.between_events:
            return
        turn.complete = True
        event = turn.dialect.error_event(code, message)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORD_SECONDS):
                await client.finish(event)

    def _fields(self, turn: Turn, headers: list[Header], theirs: Fields) -> list[Header]:
        if not theirs.get(b"x-request-id"):
            headers.append((b"x-request-id", turn.request_id))
        decision = turn.decision
        if not self._shown or decision is None:
            return headers
        headers += self._route(decision.replica or "", decision.reason, turn.request.source)
        return headers

    def _route(self, replica: str, reason: str, source: str) -> tuple[Header, ...]:
        """Few and always the same: kept, at a gain of 5 us a request."""
        route = self._routes.get((replica, reason, source))
        if route is None:
            if len(self._routes) >= _ROUTES:  # replicas come and go
                self._routes.clear()
            self._routes[replica, reason, source] = route = (
                (b"x-router-replica", printable(replica)),
                (b"x-router-policy", self._shown),
                (b"x-router-reason", reason.encode()),
                (b"x-router-session-source", printable(source)),
            )
        return route


def blame(lease: Lease, status: int, headers: Iterable[Header]) -> None:
    """What a status says of the replica's health."""
    if status in (429, 503):
        lease.blame(Fault.PUSHBACK, _seconds(value_of(headers, b"retry-after")))
    elif status >= 500 and status != _NOT_IMPLEMENTED:
        lease.blame(Fault.FAULT)


def _seconds(retry_after: bytes) -> float | None:
    """Retry-After in its seconds form; a date is not worth a clock comparison between machines."""
    return float(retry_after) if retry_after.isdigit() and len(retry_after) < 9 else None


def _outcome_of(status: int) -> Outcome:
    if status in (429, 503):
        return Outcome.REJECTED
    if status >= 500 and status != _NOT_IMPLEMENTED:
        return Outcome.REPLICA_ERROR
    return Outcome.CLIENT_ERROR if status >= 400 else Outcome.OK


def _is_event_stream(fields: Fields) -> bool:
    return fields.get(b"content-type", b"").startswith(b"text/event-stream")


def _may_end_in_an_event(fields: Fields) -> bool:
    """Events of our own fit only where no length was announced and no encoding runs."""
    return _is_event_stream(fields) and not (fields.get(b"content-length") or fields.get(b"content-encoding"))
