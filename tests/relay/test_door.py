"""What the fast lane refuses, bounds and keeps in step by itself, before the proxy hears of a request."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from router import server, serving
from tests.mock import Peer, chunk, gate, hang, ok, status
from tests.relay.rig import CHAT, HELLO, HELLO_STREAM, JSON, Answer, Rig, fleet, on_lane, post, request, run, until


@pytest.fixture(autouse=True)
def lane() -> Iterator[str]:
    """Other servers have doors of their own."""
    with on_lane("fast"):
        yield "fast"


async def _refused(rig: Rig, raw: bytes) -> tuple[int, str]:
    client = await rig.connect()
    await client.send(raw)
    answer = await client.answer()
    assert answer.one(b"connection") == b"close"
    assert await client.at_end()
    error = json.loads(answer.body)["error"]
    assert error["type"] == "router_error"
    return answer.status, error["code"]


@pytest.mark.parametrize(
    "lines",
    [
        b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
        b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: +3\r\n\r\nabc",
        b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST /x HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\na\n0\n\n",
        b"GET /x HTTP/1.1\nhost: a\n\n",
        b"GET /x HTTP/1.1\r\nhost: a\rx: b\r\n\r\n",
        b"GET /x HTTP/1.1\r\nhost: a\r\n folded\r\n\r\n",
        b"GET /x HTTP/1.1\r\nhost : a\r\n\r\n",
        b"GET /x HTTP/1.1\r\nx: a\0b\r\n\r\n",
        b"GET /x\r\n\r\n",
        b"GET x HTTP/1.1\r\nhost: a\r\n\r\n",
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(lines: bytes) -> None:
    async def main() -> None:
        async with fleet([[ok()]]) as (rig, engine):
            assert await _refused(rig, lines) == (400, "bad_request")
            assert engine.requests == []
            assert (await rig.ask()).status == 200

    run(main)


@pytest.mark.parametrize(
    "fields",
    [[("x-long", "a" * 70_000)], [(f"x-{n}", "a") for n in range(300)], [("x-endless", "a" * 400_000)]],
    ids=["one long field", "many fields", "more than one read"],
)
def test_a_head_beyond_its_bounds_is_431(fields: list[tuple[str, str]]) -> None:
    async def main() -> None:
        async with fleet([[ok()]]) as (rig, engine):
            assert await _refused(rig, request("GET", "/v1/x", fields)) == (431, "head_too_large")
            assert engine.requests == []

    run(main)


def test_a_head_within_its_bounds_passes() -> None:
    async def main() -> None:
        async with fleet([[ok()]]) as (rig, engine):
            answer = await rig.ask(request("GET", "/v1/x", [("x-long", "a" * 60_000)]))
            assert (answer.status, len(engine.requests[0].header(b"x-long") or b"")) == (200, 60_000)

    run(main)


def test_trailers_never_become_fields_and_are_bounded() -> None:
    async def main() -> None:
        chunked = request("POST", CHAT, [JSON, ("transfer-encoding", "chunked")])
        body = b"%x\r\n%b\r\n0\r\n" % (len(HELLO), HELLO)
        async with fleet([[ok()]]) as (rig, engine):
            assert (await rig.ask(chunked + body + b"authorization: Bearer x\r\n\r\n")).status == 200
            assert engine.requests[0].header(b"authorization") is None
            client = await rig.connect()
            await client.send(chunked + body + b"x: " + b"a" * 200_000)
            assert (await client.answer()).status == 431
            assert await rig.ended(2) == {"ok": 1, "client_gone": 1}

    run(main)


@pytest.mark.parametrize(
    "raw", [b"POST /v1/x HTTP/1.1\r\nhost", request("POST", CHAT, [("content-length", "9")]) + b"x"]
)
def test_a_head_or_a_body_that_does_not_come_on_is_408(raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.lane, "HEAD_SECONDS", 0.05)
    monkeypatch.setattr(server.lane, "BODY_SECONDS", 0.05)

    async def main() -> None:
        async with fleet([[ok()]]) as (rig, engine):
            assert await _refused(rig, raw) == (408, "request_timeout")
            assert engine.requests == []

    run(main)


def test_a_head_that_drips_has_no_more_time_than_one_that_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.lane, "HEAD_SECONDS", 0.1)

    async def main() -> None:
        async with fleet([[ok()]]) as (rig, _):
            client = await rig.connect()
            drip = asyncio.create_task(_drip(client.send))
            assert (await client.answer()).status == 408
            drip.cancel()

    run(main)


async def _drip(send: object) -> None:
    await send(b"GET /v1/x HTTP/1.1\r\n")  # type: ignore[operator]
    while True:
        await send(b"x: y\r\n")  # type: ignore[operator]
        await asyncio.sleep(0.01)


def test_an_idle_connection_is_closed_and_one_that_waits_for_its_answer_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_KEEP_ALIVE", 0.05)
    go = asyncio.Event()

    async def main() -> None:
        async with fleet([[ok(b"one")], [gate(go), ok(b"two")]]) as (rig, _):
            fresh, used = await rig.connect(), await rig.connect()
            await used.send(post())
            assert (await used.answer()).body == b"one"
            await used.send(post())
            assert await fresh.at_end()
            await asyncio.sleep(0.1)
            go.set()
            assert (await used.answer()).body == b"two"
            assert await used.at_end()

    run(main)


def test_garbage_behind_a_request_is_refused_after_its_answer() -> None:
    async def main() -> None:
        go = asyncio.Event()
        async with fleet([[gate(go), ok(b"fine")]]) as (rig, engine):
            client = await rig.connect()
            await client.send(post() + b"GARBAGE\r\n\r\n")
            await until(lambda: len(engine.requests) == 1)
            go.set()
            assert (await client.answer()).body == b"fine"
            assert (await client.answer()).status == 400
            assert await client.at_end()
            assert await rig.ended() == {"ok": 1}

    run(main)


def test_an_old_client_gets_no_chunks_and_an_end_that_is_one() -> None:
    """HTTP/1.0: the end of the connection is the end of the answer, so a broken one is reset."""
    stream = [status(200, "content-type: text/plain", "transfer-encoding: chunked"), chunk(b"one"), chunk(b"two")]

    async def ask(rig: Rig) -> bytes:
        client = await rig.connect()
        await client.send(post(HELLO_STREAM).replace(b"HTTP/1.1", b"HTTP/1.0"))
        return await client.reader.read()

    async def breaks(peer: Peer) -> None:
        await peer.read_body()
        for step in stream:
            await step(peer)
        peer.writer.close()

    async def main() -> None:
        async with fleet([[*stream, chunk(b"")], breaks]) as (rig, _):
            head, _, body = (await ask(rig)).partition(b"\r\n\r\n")
            assert (body, b"chunked" in head, b"connection: close" in head) == (b"onetwo", False, True)
            with pytest.raises(ConnectionResetError):
                await ask(rig)

    run(main)


@pytest.mark.parametrize("target", ["/v1/x?", "/v1/x??a=?", "/v1//x/../y?a=%2F&b=+"])
def test_the_target_is_kept_to_the_last_byte(target: str) -> None:
    async def main() -> None:
        async with fleet([[ok()]]) as (rig, engine):
            await rig.ask(request("GET", target))
            await rig.ask(request("GET", f"http://elsewhere{target}"))
            assert [seen.line for seen in engine.requests] == [f"GET {target} HTTP/1.1".encode()] * 2

    run(main)


def test_a_crowd_behind_a_request_is_answered_in_order_and_its_hang_up_noticed() -> None:
    """F4, F16"""

    async def echo(peer: Peer) -> None:
        await peer.read_body()
        if peer.seen.body == b"hang":
            await hang()(peer)
        await ok(peer.seen.body)(peer)

    async def main() -> None:
        async with fleet([echo]) as (rig, engine):
            client = await rig.connect()
            await client.send(b"".join(post(b"%d" % number) for number in range(200)))
            answers: list[Answer] = [await client.answer() for _ in range(200)]
            assert [answer.body for answer in answers] == [b"%d" % number for number in range(200)]
            await client.send(post(b"hang") + post() * 10)
            await until(lambda: len(engine.requests) == 201)
            client.hang_up()
            assert (await rig.ended(201))["client_gone"] == 1
            await until(lambda: len(engine.left) == 1)

    run(main)
