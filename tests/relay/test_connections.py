"""Connections of clients: kept, shared by requests in order, and no different from a direct one."""

import asyncio
import socket

import pytest

from router.serving import _listen as listen
from tests.mock import Peer, Step, chunk, gate, hang, ok, send, sse, status
from tests.relay.rig import CHAT, HELLO, HELLO_STREAM, TOKEN, Client, fleet, post, request, run, until

STREAM = status(200, "content-type: text/event-stream", "transfer-encoding: chunked")


def test_an_early_second_request_is_answered_after_the_first() -> None:
    """F4"""

    async def main() -> None:
        go = asyncio.Event()
        first: list[Step] = [STREAM, chunk(b"data: 1\n\n"), gate(go), chunk(b"data: 2\n\n"), chunk(b"")]
        async with fleet([first, [ok(b"second")], [ok(b"third")]]) as (rig, _):
            client = await rig.connect()
            await client.send(post(HELLO_STREAM))
            answer = await client.head()
            assert await client.chunk() == b"data: 1\n\n"
            await client.send(post(HELLO) + post(HELLO))
            await asyncio.sleep(0.05)
            go.set()
            assert (await client.rest(answer)).body == b"data: 2\n\n"
            assert (await client.answer()).body == b"second"
            assert (await client.answer()).body == b"third"

    run(main)


def test_pipelined_requests_are_answered_in_order() -> None:
    """F4"""

    async def echo(peer: Peer) -> None:
        await peer.read_body()
        await ok(peer.seen.body)(peer)

    async def main() -> None:
        async with fleet([echo], [echo]) as (rig, *_):
            client = await rig.connect()
            await client.send(b"".join(post(b'{"n":%d}' % number) for number in range(20)))
            assert [(await client.answer()).body for _ in range(20)] == [b'{"n":%d}' % number for number in range(20)]

    run(main)


def test_500_requests_on_two_connections_are_the_same_as_direct_ones() -> None:
    """F41"""
    kinds = [
        [ok(b'{ "a": 1}', "content-type: application/json")],
        sse(TOKEN, TOKEN),
        [status(404, length=2), send(b"no")],
    ]

    async def fifty_times(client: Client, host: str) -> list[tuple[int, bytes, bytes]]:
        got = []
        for number in range(250):
            await client.send(post(HELLO_STREAM[:-1] + b',"n":%d}' % number, CHAT, ("x-n", str(number))))
            answer = await client.answer()
            fields = b"\n".join(value for name, value in answer.headers if name.lower() == b"content-type")
            got.append((answer.status, fields, answer.body))
        return got

    async def by_number(peer: Peer) -> None:
        await peer.read_body()
        for step in kinds[int(peer.seen.header(b"x-n") or 0) % 3]:
            await step(peer)

    async def main() -> None:
        async with fleet([by_number]) as (rig, engine):
            direct = Client(*await asyncio.open_connection("127.0.0.1", engine.port))
            expected = await fifty_times(direct, "direct")
            direct.hang_up()
            clients = [await rig.connect(), await rig.connect()]
            for got in await asyncio.gather(*(fifty_times(client, "router") for client in clients)):
                assert got == expected
            assert await rig.ended(500) == {"ok": 2 * 167, "client_error": 2 * 83}
            assert rig.loads[0].failures == 0

    run(main)


def test_a_connection_survives_a_slow_answer_and_its_own_silence() -> None:
    """F4, F188: no timer of the first request is left to end the second."""

    async def main() -> None:
        go = asyncio.Event()
        async with fleet([[ok(b"one")], [gate(go), ok(b"two")]]) as (rig, engine):
            client = await rig.connect()
            await client.send(post())
            assert (await client.answer()).body == b"one"
            await client.send(post())
            await until(lambda: len(engine.requests) == 2)
            await asyncio.sleep(0.3)
            go.set()
            assert (await client.answer()).body == b"two"

    run(main)


def test_connection_close_is_obeyed_and_said() -> None:
    async def main() -> None:
        async with fleet([[ok(b"bye")]]) as (rig, engine):
            client = await rig.connect()
            await client.send(post(HELLO, CHAT, ("connection", "close")))
            answer = await client.answer()
            assert (answer.body, answer.one(b"connection")) == (b"bye", b"close")
            assert await client.at_end()
            assert engine.requests[0].header(b"connection") is None

    run(main)


def test_a_head_in_pieces_is_a_request() -> None:
    async def main() -> None:
        async with fleet([[ok(b"fine")]]) as (rig, _):
            client = await rig.connect()
            client.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in post():
                await client.send(bytes((byte,)))
                await asyncio.sleep(0)
            assert (await client.answer()).body == b"fine"

    run(main)


def test_small_writes_leave_at_once_on_every_loop() -> None:
    """F8: on a plain asyncio loop an answer of two writes waited 40 ms for an acknowledgement."""
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_hanging_up_on_a_queue_of_requests_ends_the_one_that_runs(lane: str) -> None:
    """F16"""
    if lane == "standard":
        pytest.xfail("uvicorn stops reading behind a request that runs, so nobody sees the end")

    async def main() -> None:
        async with fleet([[hang()]]) as (rig, engine):
            client = await rig.connect()
            await client.send(post() + request("GET", "/v1/x"))
            await until(lambda: len(engine.requests) == 1)
            client.hang_up()
            async with asyncio.timeout(0.5):
                await until(lambda: len(engine.left) == 1)
            assert await rig.ended() == {"client_gone": 1}

    run(main)
