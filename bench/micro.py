"""`make bench`: what the parts of a request cost, each beside something that everybody knows the cost of.

Absolute figures are this machine's; the ratios are what to compare between two versions. No peers, no network but a
loopback echo, under a minute.
"""

import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from bench.cost.load import Plan, Sessions, drive
from bench.cost.mock import running_replicas
from bench.cost.workloads import DIGITS, MODEL, Body, whole_reply, workloads
from router.core.decision import decide
from router.core.fleet import Fleet
from router.core.keys import Sources
from router.core.replica import Replica
from router.core.request import Request
from router.dialects import DIALECTS, Head
from router.headers import Header, to_client, to_replica
from router.policies import load as load_policy
from router.upstream import Outgoing, Pool, Timeouts

_SECONDS = 0.1  # per repetition
_REPEATS = 5  # the least of them: whatever else ran on the machine only adds
_FLEETS = (4, 64, 256)
_RELAYS = 2_000
_HEADERS: list[Header] = [
    (b"host", b"127.0.0.1:8000"),
    (b"accept", b"application/json"),
    (b"accept-encoding", b"gzip, deflate"),
    (b"content-type", b"application/json"),
    (b"user-agent", b"bench"),
    (b"authorization", b"Bearer none"),
    (b"content-length", b"1024"),
]
_ANSWER: list[Header] = [
    (b"date", b"Thu, 01 Jan 2026 00:00:00 GMT"),
    (b"server", b"uvicorn"),
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"transfer-encoding", b"chunked"),
]


@dataclass(frozen=True, slots=True)
class Cost:
    part: str
    us: float
    base_us: float  # what it is compared with
    base: str

    @property
    def ratio(self) -> float:
        return self.us / self.base_us


def main() -> int:
    """Returns 0 unless something breaks."""
    table = Table(title="cost of the parts", title_justify="left")
    for column, side in (("part", "left"), ("us", "right"), ("ratio", "right"), ("to", "left")):
        table.add_column(column, justify="right" if side == "right" else "left")
    for cost in costs():
        table.add_row(cost.part, f"{cost.us:,.2f}", f"{cost.ratio:.2f}", f"{cost.base} ({cost.base_us:,.1f} us)")
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    return 0


def costs(seconds: float = _SECONDS, relays: int = _RELAYS) -> Iterator[Cost]:
    """`seconds` per repetition of each part, `relays` requests over the loopback."""
    small, large = _whole(workloads()["SMALL"].bodies[0]), _whole(workloads()["AGENT"].bodies[0])
    unit = _time(partial(json.loads, small), seconds)
    yield from _reading(small, large, seconds)
    yield from _choosing(small, large, unit, seconds)
    yield from _answering(unit, seconds)
    yield uvloop.run(_relaying(relays))


def _reading(small: bytes, large: bytes, seconds: float) -> Iterator[Cost]:
    """Each dialect over the same prompt in its own words, beside a bare json.loads of the same body."""
    sources = Sources()
    for size, chat in (("1 KB", small), ("570 KB", large)):
        for name, (path, body) in _families(chat).items():
            head = Head(b"POST", path, b"", _HEADERS)
            dialect = DIALECTS[name]
            base = _time(partial(json.loads, body), seconds)
            us = _time(partial(dialect.read, head, body, sources), seconds)
            yield Cost(f"read {name}, {size}", us, base, "json.loads")


def _choosing(small: bytes, large: bytes, unit: float, seconds: float) -> Iterator[Cost]:
    policy = load_policy("locality", {})
    asked = {"1 KB": _read(small), "142K tokens": _read(large)}
    for count in _FLEETS:
        fleet = _fleet(count)
        request = asked["1 KB"]
        snapshot = fleet.snapshot(request)
        us = _time(partial(decide, policy, request, snapshot), seconds)
        yield Cost(f"choose for a new session, {count} replicas", us, unit, "json.loads, 1 KB")
        for size, request in asked.items():
            us = _time(partial(_turn, fleet, policy, request), seconds)
            yield Cost(f"a turn: snapshot to bind, {size}, {count} replicas", us, unit, "json.loads, 1 KB")


def _turn(fleet: Fleet, policy: Any, request: Request) -> None:
    decision = decide(policy, request, fleet.snapshot(request))
    with fleet.lease(request, decision) as lease:
        lease.first_byte()


def _answering(unit: float, seconds: float) -> Iterator[Cost]:
    yield Cost("header fields, both ways", _time(_fields, seconds), unit, "json.loads, 1 KB")
    chat, stream = DIALECTS["chat"], workloads()["STREAM"].reply.body
    us = _time(partial(chat.usage, stream[:4096], stream[-65536:], True), seconds)
    yield Cost("usage of a stream of 50 events", us, unit, "json.loads, 1 KB")
    reply = whole_reply().body
    us = _time(partial(chat.usage, reply, reply, False), seconds)
    yield Cost("usage of a whole reply", us, unit, "json.loads, 1 KB")


def _fields() -> None:
    to_replica(_HEADERS)
    to_client(_ANSWER)


async def _relaying(relays: int) -> Cost:
    """One request after another through the pool to a loopback echo, beside a bare client to the same one."""
    body = _whole(workloads()["SMALL"].bodies[0])
    async with running_replicas(1) as echo:
        echo.reply = whole_reply()
        url = f"http://127.0.0.1:{echo.ports[0]}"
        pool = Pool(url, Timeouts())
        headers = to_replica(_HEADERS)

        async def through_pool() -> None:
            exchange = await pool.send(Outgoing(b"POST", b"/v1/chat/completions", headers, (body,)))
            while await exchange.read():
                pass
            exchange.close()

        async def bare() -> None:
            plan = Plan(requests=relays // _REPEATS, connections=1)
            await drive(echo.ports[0], workloads()["SMALL"], plan, Sessions())

        base = await _time_async(bare, 1) / (relays // _REPEATS)
        us = await _time_async(through_pool, relays // _REPEATS)
        await pool.aclose()
    return Cost("relay through the pool, 1 KB, echo included", us, base, "the load generator and the same echo")


def _families(chat: bytes) -> dict[str, tuple[str, bytes]]:
    """The prompt of a chat body in the words of each family: (path, body)."""
    whole = msgspec.json.decode(chat)
    system, *messages = whole["messages"]
    text = "\n".join(message["content"] for message in whole["messages"])
    plain = [{"role": _role(message), "content": message["content"]} for message in messages]
    common = {"model": whole["model"], "stream": whole["stream"]}
    named = {"tools": whole["tools"]} if "tools" in whole else {}
    bodies: dict[str, tuple[str, object]] = {
        "messages": ("/v1/messages", {**common, "system": system["content"], **named, "messages": plain}),
        "responses": ("/v1/responses", {**common, "instructions": system["content"], **named, "input": plain}),
        "completions": ("/v1/completions", {**common, "prompt": text}),
        "generate": ("/generate", {"stream": True, "text": text}),
    }
    encoded = {name: (path, msgspec.json.encode(body)) for name, (path, body) in bodies.items()}
    return {"chat": ("/v1/chat/completions", chat), **encoded}


def _role(message: dict[str, Any]) -> str:
    return "assistant" if message["role"] == "assistant" else "user"


def _read(body: bytes) -> Request:
    return DIALECTS["chat"].read(Head(b"POST", "/v1/chat/completions", b"", _HEADERS), body, Sources())


def _fleet(count: int) -> Fleet:
    fleet = Fleet(time.monotonic)
    names = [f"10.0.{number // 250}.{number % 250}:8000" for number in range(count)]
    added, _ = fleet.update(Replica(name, f"http://{name}") for name in names)
    for load in added:
        fleet.learn(load, models=frozenset({MODEL}))
        fleet.probed(load, True)
    return fleet


def _whole(body: Body) -> bytes:
    return body.before + b"0" * DIGITS + body.after


def _time(call: Callable[[], object], seconds: float) -> float:
    """Microseconds of CPU per call: the least of some repetitions."""
    call()
    begun = time.process_time()
    call()
    count = max(1, round(seconds / max(time.process_time() - begun, 1e-6)))
    best = float("inf")
    for _ in range(_REPEATS):
        begun = time.process_time()
        for _ in range(count):
            call()
        best = min(best, (time.process_time() - begun) / count)
    return best * 1e6


async def _time_async(call: Callable[[], Awaitable[None]], count: int) -> float:
    best = float("inf")
    for _ in range(_REPEATS):
        begun = time.process_time()
        for _ in range(count):
            await call()
        best = min(best, (time.process_time() - begun) / count)
    return best * 1e6


if __name__ == "__main__":
    sys.exit(main())
