"""One request: read, choose, forward, settle. Raw ASGI; bytes pass as they came.

Laws: nothing awaits between the snapshot and the lease; the lease, the exchange and the turn each end
exactly once on every path; a client that hangs up, in whichever phase, cancels the one task that serves it.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import count
from types import MappingProxyType
from typing import Any, Protocol

from router.answer import Answers, blame
from router.core.budget import RetryBudget
from router.core.decision import Decision, Policy, decide
from router.core.fleet import Fleet
from router.core.health import Fault
from router.core.keys import Sources
from router.core.lease import Lease
from router.core.pools import NoReplica
from router.core.replica import Load
from router.core.request import Request
from router.dialects import Head, dialect_of, read, wants_body
from router.headers import is_websocket, to_replica
from router.metrics import Ledger, Outcome
from router.receipt import LANE, Client, Message, Standard, TooLarge, receive_body, too_large
from router.receipt import Receive as Receive
from router.receipt import Send as Send
from router.turn import Gone, Refusal, Turn
from router.upstream import (
    FirstByteTimeout,
    NeverSent,
    Outgoing,
    Pool,
    ReplicaFailed,
    TooManyConnections,
    Unsendable,
    UpstreamError,
)
from router.waiting import WaitingRoom

Scope = Message

_NONE: Mapping[str, Any] = MappingProxyType({})
_COME_BACK = 30.0  # seconds: a place is won or lost on this scale
_log = logging.getLogger("router")
_ELSEWHERE = (502, 503)  # said before any byte: the replica did not do the work
_LAST_STATUS = 599  # beyond it there is no class that says what it means, and servers refuse to write it


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    max_body_bytes: int = 64 * 1024 * 1024
    max_requests: int | None = None
    retries: int = 2
    retry_budget: float = 0.2
    total_timeout: float = 0.0  # seconds; 0 = none
    response_headers: bool = True
    max_wait: float = 600.0  # seconds in the waiting room; people and harnesses give up about then


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
        recall: Callable[[Request], Awaitable[None]] | None = None,
    ) -> None:
        self.fleet, self.policy, self.ledger, self.upstreams = fleet, policy, ledger, upstreams
        self.sources, self.options = sources, options
        self._turns: set[Turn] = set()  # in flight
        self.waiting = WaitingRoom(fleet.now, self._told)
        ledger.waiting.set_function(self.waiting.__len__)
        self._draining = False
        self._emptied = asyncio.Event()
        self._ended = ended  # the access log
        self._recall = recall  # asks the store for sessions that are not known here; None = nobody to ask
        self._arm = ledger.arm(policy.name, "")
        self._ids, self._numbers = secrets.token_hex(8).encode(), count(1 << 32)  # unique without 4 us of uuid4
        self._budget = RetryBudget(options.retry_budget)
        self._answers = Answers(fleet.now, self._arm, policy.name if options.response_headers else "")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client: Client = scope.get("extensions", _NONE).get(LANE) or Standard(receive, send)
        turn = self._turn(scope)
        self._turns.add(turn)
        try:
            if self.options.total_timeout:
                await self._serve_within(self.options.total_timeout, turn, client)
            else:
                await self._serve(turn, client)
        finally:
            self._turns.discard(turn)
            if self._draining and not self._turns:
                self._emptied.set()
            seconds = self.fleet.now() - turn.started
            self._arm.ended(turn.replica, turn.outcome, seconds)
            self._ended(turn, seconds)

    @property
    def inflight(self) -> int:
        return len(self._turns)

    def _told(self, since: float | None) -> None:
        if self.fleet.admission is not None:
            self.fleet.admission.first_waiting_since = since

    async def drain(self) -> None:
        """Refuse what is new; return when what runs has ended."""
        self._draining = True
        if self._turns:
            await self._emptied.wait()

    def cut_off(self) -> None:
        """The grace is over: what still runs ends, in words where its answer allows."""
        for turn in self._turns:
            if turn.task is not None:
                turn.cut_off = True
                turn.task.cancel()

    def _turn(self, scope: Scope) -> Turn:
        head = Head(scope["method"].encode("latin-1"), scope["path"], scope["query_string"], scope["headers"])
        request_id = head.fields.get(b"x-request-id", b"")[:256] or b"%b%x" % (self._ids, next(self._numbers))
        return Turn(head, _target(scope), dialect_of(head.path), request_id, self.fleet.now())

    async def _serve_within(self, seconds: float, turn: Turn, client: Client) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._serve(turn, client)
        except TimeoutError:
            turn.error = "total_timeout"
            refusal = Refusal(504, "total_timeout", "the request took too long", Outcome.TIMEOUT)
            await self._answers.refuse(turn, refusal, client)

    async def _serve(self, turn: Turn, client: Client) -> None:
        turn.task = task = asyncio.current_task()
        limit = self.options.max_body_bytes
        try:
            client.watch(turn.hung_up)
            self._check_door(turn)
            turn.body = await receive_body(client, turn.head.fields, limit, whole=wants_body(turn.head))
            self._read(turn)
            if self._recall is not None:
                await self._recall(turn.request)
            await self._attempts(turn, client)
        except Refusal as refusal:
            await self._answers.refuse(turn, refusal, client)
        except TooLarge:
            await self._answers.refuse(turn, too_large(limit), client)
        except (Gone, OSError):  # what some servers raise where a client cannot be written to; replicas' are wrapped
            turn.gone, turn.outcome = True, Outcome.CLIENT_GONE
        except asyncio.CancelledError:
            if task is None or not (turn.gone or turn.cut_off):  # the server's own cancellation, or the total timeout
                raise
            task.uncancel()
            turn.outcome = Outcome.CLIENT_GONE
            if not turn.gone:
                await self._answers.refuse(turn, _shutting_down(), client)
        except Exception as error:  # a policy of somebody's own, or a bug of ours: no replica is to blame
            _log.exception("request %s failed in the router", turn.request_id.decode("latin-1"))
            turn.error = f"{type(error).__name__} in the router"
            await self._answers.refuse(turn, _failed(), client)
        finally:
            client.watch(None)

    def _check_door(self, turn: Turn) -> None:
        if self._draining:
            raise _shutting_down()
        if self.options.max_requests is not None and self.inflight > self.options.max_requests:
            raise Refusal(503, "overloaded", "too many requests are in flight", Outcome.REJECTED, retry_after=1)
        if b"upgrade" in turn.head.fields and is_websocket(turn.head.headers):
            raise Refusal(501, "upgrade_not_supported", "WebSocket is not carried", Outcome.CLIENT_ERROR)
        if turn.head.fields.get(b"transfer-encoding", b"").lower() not in (b"", b"chunked"):
            raise Refusal(400, "bad_request", "no transfer coding but chunked is carried", Outcome.CLIENT_ERROR)
        self._budget.deposit()

    def _read(self, turn: Turn) -> None:
        turn.received = self.fleet.now()
        body = turn.body if isinstance(turn.body, tuple) else ()
        turn.request = read(turn.head, body, self.sources, self.fleet.only_model)
        turn.phase = "choosing"
        self.ledger.source(turn.request.source)

    # Attempts

    async def _attempts(self, turn: Turn, client: Client) -> None:
        again = True
        while again:
            decision = self._choose(turn)
            if decision.replica is None:
                decision = await self._wait(turn, decision)
            turn.decision = decision
            with self.fleet.lease(turn.request, decision) as lease:
                self._count(turn, decision)
                again = await self._attempt(turn, lease, client)
            if self.waiting:
                self.waiting.room_made()

    def _choose(self, turn: Turn, *, first: bool = False) -> Decision:
        try:
            snapshot = self.fleet.snapshot(turn.request, turn.tried, first=first)
        except NoReplica as error:
            raise _nobody(turn, error) from None
        turn.pinned = bool(snapshot.pinned)
        return decide(self.policy, turn.request, snapshot)

    async def _wait(self, turn: Turn, decision: Decision) -> Decision:
        """Until there is room. Its last step is a choice, with no await between that and the lease."""
        turn.phase = "waiting"
        self.fleet.hold(turn.request)
        self._arm.decided(decision)
        try:
            with self.waiting.ticket() as ticket:
                async with asyncio.timeout(self.options.max_wait):
                    while decision.replica is None:
                        await ticket.called()
                        decision = self._choose(turn, first=True)
        except TimeoutError:
            raise Refusal(
                503, "overloaded", "no replica has room for a new session", Outcome.REJECTED, retry_after=_COME_BACK
            ) from None
        finally:
            turn.waited = self.fleet.now() - ticket.since
            self.ledger.waited(turn.waited)
        return decision

    def _count(self, turn: Turn, decision: Decision) -> None:
        turn.attempts += 1
        turn.phase = "dispatched"
        self._arm.decided(decision)
        if turn.attempts == 1:
            self.ledger.overhead(self.fleet.now() - turn.received - turn.waited)

    async def _attempt(self, turn: Turn, lease: Lease, client: Client) -> bool:
        """One replica's turn at it. True: it provably did not do the work, and another may."""
        load = lease.load
        headers = to_replica(turn.head.headers, self.upstreams.credential(load))
        outgoing = Outgoing(turn.head.method, turn.target, headers, turn.body)
        try:
            exchange = await self.upstreams.pool(load).send(outgoing)
        except UpstreamError as error:
            return self._unanswered(turn, lease, error)
        try:
            if exchange.status > _LAST_STATUS:
                return self._unanswered(turn, lease, ReplicaFailed(f"status {exchange.status}"))
            if exchange.status in _ELSEWHERE and self._may_go_elsewhere(turn, load, f"status_{exchange.status}"):
                blame(lease, exchange.status, exchange.headers)
                return True
            await self._answers.relay(turn, lease, exchange, client)
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
            if self._may_go_elsewhere(turn, lease.load, "unreached", untouched=True):
                return True
            status, code = (502, "replica_failed") if self._is_anybody_left(turn) else (503, "no_replica")
            raise Refusal(
                status, code, f"replica {lease.load.id} cannot be reached", Outcome.REPLICA_ERROR, retry_after=1
            )
        lease.blame(Fault.FAULT)
        raise Refusal(
            502, "replica_failed", f"replica {lease.load.id} failed before it answered", Outcome.REPLICA_ERROR
        )

    def _may_go_elsewhere(self, turn: Turn, load: Load, reason: str, *, untouched: bool = False) -> bool:
        """Whether a retry is allowed and somebody is left; spends the budget if so.

        `untouched`: nothing of the body was taken, so even one that is passed through can go elsewhere.
        """
        turn.tried.append(load.id)
        if turn.pinned or not (turn.resendable or untouched) or turn.attempts > self.options.retries:
            return False
        if not self._is_anybody_left(turn):
            return False
        if not self._budget.withdraw():
            self.ledger.retry_refused()
            return False
        self.ledger.retried(reason)
        return True

    def _is_anybody_left(self, turn: Turn) -> bool:
        try:
            self.fleet.snapshot(turn.request, turn.tried)
        except NoReplica:
            return False
        return True


def _target(scope: Scope) -> bytes:
    """The target byte for byte where the lane offers it; ASGI itself does not tell `/a?` from `/a`."""
    lane = scope.get("extensions", _NONE).get(LANE)
    if lane is not None:
        target: bytes = lane.target
        return target
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return raw_path + b"?" + query if query else raw_path


def _failed() -> Refusal:
    return Refusal(500, "internal_error", "the router failed", Outcome.REJECTED)


def _shutting_down() -> Refusal:
    return Refusal(503, "draining", "the router is shutting down", Outcome.REJECTED, retry_after=1)


def _nobody(turn: Turn, error: NoReplica) -> Refusal:
    if error.reason == "empty":
        return Refusal(503, "no_replica", "no replica is known", Outcome.REJECTED, retry_after=5)
    return Refusal(503, "overloaded", "every replica is at its limit", Outcome.REJECTED, retry_after=1)
