"""One request: read, choose, forward, settle. Raw ASGI; bytes pass as they came.

Laws: nothing awaits between the snapshot and the lease; the lease, the exchange and the turn each end
exactly once on every path; a client that hangs up, in whichever phase, cancels the one task that serves it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from router.core.budget import RetryBudget
from router.core.decision import Decision, Policy, decide
from router.core.fleet import Fleet, NoReplica
from router.core.health import Fault
from router.core.keys import Sources
from router.core.lease import Lease
from router.core.replica import Load
from router.dialects import Head, dialect_of, wants_body
from router.headers import Header, is_websocket, printable, to_client, to_replica, value_of
from router.metrics import Ledger, Outcome
from router.receipt import receive_body
from router.turn import Gone, Refusal, Turn, Window
from router.upstream import (
    Exchange,
    FirstByteTimeout,
    IdleTimeout,
    NeverSent,
    Outgoing,
    Pool,
    TooManyConnections,
    Unsendable,
    UpstreamError,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_ELSEWHERE = (502, 503)  # said before any byte: the replica did not do the work
_GENERATES = frozenset(
    ("chat", "completions", "responses", "messages", "generate")
)  # whose first byte is a first token


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    max_body_bytes: int = 64 * 1024 * 1024
    max_requests: int | None = None
    retries: int = 2
    retry_budget: float = 0.2
    total_timeout: float = 0.0  # seconds; 0 = none
    response_headers: bool = True


class Upstreams(Protocol):
    """Where a replica's pool and its credential are found."""

    def pool(self, load: Load) -> Pool: ...
    def credential(self, load: Load) -> bytes: ...


class Proxy:
    """The ASGI app for everything that is not ours. Constructed once; a `Turn` holds what belongs to one request."""

    def __init__(
        self,
        fleet: Fleet,
        policy: Policy,
        ledger: Ledger,
        upstreams: Upstreams,
        sources: Sources,
        options: ProxyOptions,
        ended: Callable[[Turn, float], None],
    ) -> None:
        self.fleet, self.policy, self.ledger, self.upstreams = fleet, policy, ledger, upstreams
        self.sources, self.options = sources, options
        self.inflight = 0
        self._draining = False
        self._emptied = asyncio.Event()
        self._ended = ended  # the access log
        self._arm = ledger.arm(policy.name, "")
        self._budget = RetryBudget(options.retry_budget)
        self._policy_header = printable(policy.name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        turn = self._turn(scope)
        self.inflight += 1
        try:
            async with asyncio.timeout(self.options.total_timeout or None):
                await self._serve(turn, scope, receive, send)
        except TimeoutError:
            turn.outcome, turn.error = Outcome.TIMEOUT, "total_timeout"
            await self._refuse_late(
                turn, Refusal(504, "total_timeout", "the request took too long", Outcome.TIMEOUT), send
            )
        finally:
            self.inflight -= 1
            if self._draining and not self.inflight:
                self._emptied.set()
            seconds = self.fleet.now() - turn.started
            self._arm.ended(turn.replica, turn.outcome, seconds)
            self._ended(turn, seconds)

    async def drain(self) -> None:
        """Refuse what is new; return when what runs has ended."""
        self._draining = True
        if self.inflight:
            await self._emptied.wait()

    def _turn(self, scope: Scope) -> Turn:
        headers: list[Header] = scope["headers"]
        path: str = scope["path"]
        head = Head(scope["method"].encode("latin-1"), path, scope["query_string"], headers)
        request_id = value_of(headers, b"x-request-id")[:256] or uuid4().hex.encode()
        return Turn(head, dialect_of(path), request_id, self.fleet.now())

    async def _serve(self, turn: Turn, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        watch: asyncio.Task[None] | None = None
        try:
            self._check_door(turn)
            read = wants_body(turn.head)
            turn.body = await receive_body(turn.head.headers, receive, self.options.max_body_bytes, whole=read)
            if turn.resendable:  # else the upload itself is watching
                watch = asyncio.create_task(_watch(turn, task, receive))
            self._read(turn)
            await self._attempts(turn, scope, send)
        except Refusal as refusal:
            await self._refuse_late(turn, refusal, send)
        except Gone:
            turn.gone, turn.outcome = True, Outcome.CLIENT_GONE
        except asyncio.CancelledError:
            if not turn.gone:  # the server's own cancellation, or the total timeout
                raise
            task.uncancel()
            turn.outcome = Outcome.CLIENT_GONE
        finally:
            if watch is not None:
                watch.cancel()

    def _check_door(self, turn: Turn) -> None:
        if self._draining:
            raise Refusal(503, "draining", "the router is shutting down", Outcome.REJECTED, retry_after=1)
        if self.options.max_requests is not None and self.inflight > self.options.max_requests:
            raise Refusal(503, "overloaded", "too many requests are in flight", Outcome.REJECTED, retry_after=1)
        if is_websocket(turn.head.headers):
            raise Refusal(501, "upgrade_not_supported", "WebSocket is not carried", Outcome.CLIENT_ERROR)
        self._budget.deposit()

    def _read(self, turn: Turn) -> None:
        body = turn.body
        if not isinstance(body, tuple):
            whole: bytes | bytearray | memoryview = b""
        else:
            whole = body[0] if len(body) == 1 else b"".join(body)
        turn.request = turn.dialect.read(turn.head, whole, self.sources)
        turn.phase = "choosing"
        self.ledger.source(turn.request.source)

    # Attempts

    async def _attempts(self, turn: Turn, scope: Scope, send: Send) -> None:
        again = True
        while again:
            try:
                snapshot = self.fleet.snapshot(turn.request, turn.tried)
            except NoReplica as error:
                raise _nobody(turn, error) from None
            decision = decide(self.policy, turn.request, snapshot)
            if decision.replica is None:
                raise Refusal(
                    503, "overloaded", "no replica has room for a new session", Outcome.REJECTED, retry_after=5
                )
            turn.decision = decision
            with self.fleet.lease(turn.request, decision) as lease:
                self._count(turn, decision)
                again = await self._attempt(turn, lease, scope, send)

    def _count(self, turn: Turn, decision: Decision) -> None:
        turn.attempts += 1
        turn.phase = "dispatched"
        self._arm.decided(decision)
        if turn.attempts == 1:
            turn.dispatched = self.fleet.now()
            self.ledger.overhead(turn.dispatched - turn.started)

    async def _attempt(self, turn: Turn, lease: Lease, scope: Scope, send: Send) -> bool:
        """One replica's turn at it. True: it provably did not do the work, and another may."""
        load = lease.load
        raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        query: bytes = scope["query_string"]
        outgoing = Outgoing(
            turn.head.method,
            raw_path + b"?" + query if query else raw_path,
            to_replica(turn.head.headers, self.upstreams.credential(load)),
            turn.body,
        )
        try:
            exchange = await self.upstreams.pool(load).send(outgoing)
        except UpstreamError as error:
            return self._unanswered(turn, lease, error)
        try:
            if exchange.status in _ELSEWHERE and self._may_go_elsewhere(turn, load, f"status_{exchange.status}"):
                _blame(lease, exchange.status, exchange.headers)
                return True
            await self._relay(turn, lease, exchange, send)
            return False
        finally:
            exchange.close()

    def _unanswered(self, turn: Turn, lease: Lease, error: UpstreamError) -> bool:
        turn.error = str(error)
        if isinstance(error, Unsendable):
            raise Refusal(400, "bad_request", "the request's head cannot be forwarded", Outcome.CLIENT_ERROR)
        if isinstance(error, TooManyConnections):
            raise Refusal(503, "overloaded", "no connection is free", Outcome.REJECTED, retry_after=1)
        if isinstance(error, FirstByteTimeout):
            lease.blame(Fault.FAULT)
            raise Refusal(504, error.code, f"replica {lease.load.id} did not answer in time", Outcome.TIMEOUT)
        if isinstance(error, NeverSent):
            lease.blame(Fault.UNREACHED)
            if self._may_go_elsewhere(turn, lease.load, "unreached"):
                return True
            everybody = len(turn.tried) >= len(self.fleet.loads)
            status, code = (503, "no_replica") if everybody else (502, "replica_failed")
            raise Refusal(
                status, code, f"replica {lease.load.id} cannot be reached", Outcome.REPLICA_ERROR, retry_after=1
            )
        lease.blame(Fault.FAULT)
        raise Refusal(
            502, "replica_failed", f"replica {lease.load.id} failed before it answered", Outcome.REPLICA_ERROR
        )

    def _may_go_elsewhere(self, turn: Turn, load: Load, reason: str) -> bool:
        """Whether a retry is allowed and somebody is left; spends the budget if so."""
        turn.tried.append(load.id)
        if not turn.resendable or turn.attempts > self.options.retries:
            return False
        try:
            snapshot = self.fleet.snapshot(turn.request, turn.tried)
        except NoReplica:
            return False
        if snapshot.pinned and snapshot.pinned in turn.tried:
            return False
        if not self._budget.withdraw():
            self.ledger.retry_refused()
            return False
        self.ledger.retried(reason)
        return True

    # The answer

    async def _relay(self, turn: Turn, lease: Lease, exchange: Exchange, send: Send) -> None:
        status, headers = exchange.status, exchange.headers
        good = 200 <= status < 300
        if not good:
            _blame(lease, status, headers)
        turn.status, turn.phase = status, "answering"
        window = Window()
        out = self._response_headers(turn, to_client(headers))
        turn.answering = True
        await send({"type": "http.response.start", "status": status, "headers": out})
        try:
            while data := await exchange.read():
                if not turn.first_byte:
                    self._first_byte(turn, lease, good)
                window.add(data)
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except UpstreamError as error:
            await self._broken(turn, lease, error, headers, send)
            return
        if not turn.first_byte:
            self._first_byte(turn, lease, good)
        turn.complete = True
        self._settle(turn, lease, window, headers)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _first_byte(self, turn: Turn, lease: Lease, good: bool) -> None:
        turn.first_byte = self.fleet.now()
        if good:
            lease.first_byte()
            if turn.dialect.name in _GENERATES:
                self._arm.first_token(turn.first_byte - turn.started)

    def _settle(self, turn: Turn, lease: Lease, window: Window, headers: Iterable[Header]) -> None:
        """The answer is whole: what it says of itself decides whether it was one."""
        turn.outcome = _outcome_of(turn.status)
        if turn.outcome is not Outcome.OK or value_of(headers, b"content-encoding") not in (b"", b"identity"):
            return  # an encoded body is relayed, not read
        usage = turn.dialect.usage(window.first, window.last, _is_event_stream(headers))
        turn.usage = usage
        if usage.failed:
            turn.outcome, turn.error = Outcome.REPLICA_ERROR, "the answer carried a failure"
            lease.blame(Fault.FAULT)
            return
        lease.settle(usage)
        expected = turn.decision.expected_cached if turn.decision else 0
        self._arm.answered(usage, expected, self.fleet.now() - turn.first_byte)

    async def _broken(
        self, turn: Turn, lease: Lease, error: UpstreamError, headers: Iterable[Header], send: Send
    ) -> None:
        """The answer broke off. Where its kind allows, say so in the stream; else the connection ends uncleanly."""
        lease.blame(Fault.FAULT)
        late = isinstance(error, (IdleTimeout, FirstByteTimeout))
        turn.outcome, turn.error = (Outcome.TIMEOUT if late else Outcome.TRUNCATED), str(error)
        plain = not value_of(headers, b"content-length") and not value_of(headers, b"content-encoding")
        if not (plain and _is_event_stream(headers)):
            return  # returning without the last message makes the server cut the connection
        event = turn.dialect.error_event(error.code, f"replica {lease.load.id} broke off its answer")
        await send({"type": "http.response.body", "body": b"\n\n" + event, "more_body": False})

    async def _refuse_late(self, turn: Turn, refusal: Refusal, send: Send) -> None:
        turn.outcome, turn.error = refusal.outcome, turn.error or refusal.message
        if turn.answering:
            return
        turn.status, turn.answering = refusal.status, True
        body = turn.dialect.error(refusal.status, refusal.code, refusal.message)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        if refusal.retry_after is not None:
            headers.append((b"retry-after", b"%d" % max(1, round(refusal.retry_after))))
        turn.complete = True
        await send(
            {"type": "http.response.start", "status": refusal.status, "headers": self._response_headers(turn, headers)}
        )
        await send({"type": "http.response.body", "body": body if turn.head.method != b"HEAD" else b""})

    def _response_headers(self, turn: Turn, headers: list[Header]) -> list[Header]:
        theirs = value_of(headers, b"x-request-id")
        if theirs:
            turn.request_id = theirs
        else:
            headers.append((b"x-request-id", turn.request_id))
        if not self.options.response_headers or turn.decision is None:
            return headers
        decision = turn.decision
        headers += (
            (b"x-router-replica", printable(decision.replica or "")),
            (b"x-router-policy", self._policy_header),
            (b"x-router-reason", decision.reason.encode()),
            (b"x-router-session-source", printable(turn.request.source)),
        )
        return headers


async def _watch(turn: Turn, task: "asyncio.Task[Any]", receive: Receive) -> None:
    """Notice that the client hung up, in whichever phase, and end the one task that serves it."""
    while (await receive())["type"] != "http.disconnect":
        pass
    if not turn.complete:
        turn.gone = True
        task.cancel()


def _blame(lease: Lease, status: int, headers: Iterable[Header]) -> None:
    if status in (429, 503):
        lease.blame(Fault.PUSHBACK, _seconds(value_of(headers, b"retry-after")))
    elif status >= 500:
        lease.blame(Fault.FAULT)


def _seconds(retry_after: bytes) -> float | None:
    """Retry-After in its seconds form; a date is not worth a clock comparison between machines."""
    return float(retry_after) if retry_after.isdigit() and len(retry_after) < 9 else None


def _outcome_of(status: int) -> Outcome:
    if status in (429, 503):
        return Outcome.REJECTED
    if status >= 500:
        return Outcome.REPLICA_ERROR
    return Outcome.CLIENT_ERROR if status >= 400 else Outcome.OK


def _nobody(turn: Turn, error: NoReplica) -> Refusal:
    if error.reason == "empty":
        return Refusal(503, "no_replica", "no replica is known", Outcome.REJECTED, retry_after=5)
    return Refusal(503, "overloaded", "every replica is at its limit", Outcome.REJECTED, retry_after=1)


def _is_event_stream(headers: Iterable[Header]) -> bool:
    return value_of(headers, b"content-type").startswith(b"text/event-stream")
