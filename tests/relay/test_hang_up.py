"""A client hangs up, in whichever phase: the replica notices at once, it is counted once, nothing stays behind.

The replica's side of each test is `engine.left`: a connection whose peer went away in the middle of a reply.
"""

import asyncio
import random
from collections.abc import MutableMapping, Sequence
from typing import Any

import pytest

from tests.mock import Peer, Step, chunk, hang, json_reply, ok, status
from tests.relay.rig import CHAT, HELLO, HELLO_STREAM, JSON, Client, Rig, fleet, post, request, run, until

EVENT_STREAM = status(200, "content-type: text/event-stream", "transfer-encoding: chunked")
UPLOAD = ("content-type", "multipart/form-data; boundary=xx")


async def _noticed(rig: Rig, engine: "object", requests: int = 1) -> None:
    """The replica's peer has gone within a second, and the books are closed."""
    async with asyncio.timeout(1):
        await until(lambda: len(engine.left) == requests)  # type: ignore[attr-defined]
    assert await rig.ended(requests) == {"client_gone": requests}
    await until(lambda: not rig.held(), rig.held)


@pytest.mark.parametrize("body", [HELLO, HELLO_STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize(
    "before",
    [[], [EVENT_STREAM], [EVENT_STREAM, chunk(b"data: {}\n\n")], [status(200, length=100)]],
    ids=["before the head", "before the first byte", "mid-stream", "before the body"],
)
def test_a_hang_up_reaches_the_replica(before: Sequence[Step], body: bytes) -> None:
    """F10, F14, F16, F17"""

    async def main() -> None:
        async with fleet([[*before, hang()]]) as (rig, engine):
            client = await rig.connect()
            await client.send(post(body))
            await until(lambda: len(engine.requests) == 1)
            if before:
                await client.head()
            if len(before) > 1:
                await client.chunk()
            client.hang_up()
            await _noticed(rig, engine)
            assert rig.loads[0].failures == 0

    run(main)


def test_an_orderly_close_is_a_hang_up_too() -> None:
    async def main() -> None:
        async with fleet([[hang()]]) as (rig, engine):
            client = await rig.connect()
            await client.send(post())
            await until(lambda: len(engine.requests) == 1)
            client.writer.close()
            await _noticed(rig, engine)

    run(main)


def test_a_hang_up_during_an_upload_that_is_read_never_reaches_a_replica() -> None:
    async def main() -> None:
        async with fleet([[ok()]]) as (rig, engine):
            for framing in (("content-length", "1000"), ("transfer-encoding", "chunked")):
                client = await rig.connect()
                await client.send(request("POST", CHAT, [JSON, framing]) + b"5\r\n{\r\n\r\n\r\n")
                await until(lambda: rig.router.proxy.inflight == 1)
                client.hang_up()
                await until(lambda: rig.router.proxy.inflight == 0)
            assert await rig.ended(2) == {"client_gone": 2}
            assert engine.requests == []

    run(main)


def test_a_hang_up_during_a_streamed_upload_reaches_the_replica() -> None:
    async def main() -> None:
        async with fleet([hang()]) as (rig, engine):
            client = await rig.connect()
            length = ("content-length", "3000000")
            await client.send(request("POST", "/v1/audio/transcriptions", [UPLOAD, length]) + b"x" * 100_000)
            await until(lambda: len(engine.requests) == 1)
            client.hang_up()
            await _noticed(rig, engine)

    run(main)


@pytest.mark.parametrize("before", [[], [EVENT_STREAM, chunk(b"data: {}\n\n")]], ids=["before the head", "mid-stream"])
def test_a_hang_up_after_a_streamed_upload_reaches_the_replica(before: Sequence[Step]) -> None:
    """F16, F17: the upload was what watched the client; somebody must go on."""

    async def main() -> None:
        async with fleet([[*before, hang()]]) as (rig, engine):
            client = await rig.connect()
            await client.send(request("POST", "/v1/audio/transcriptions", [UPLOAD], b"x" * 2_000_000))
            await until(lambda: bool(engine.requests and engine.requests[0].body))
            if before:
                await client.head()
            client.hang_up()
            await _noticed(rig, engine)

    run(main)


def test_a_hang_up_after_an_answer_that_came_before_the_end_of_the_upload_reaches_the_replica() -> None:
    async def early(peer: Peer) -> None:
        await EVENT_STREAM(peer)
        await hang()(peer)

    async def main() -> None:
        async with fleet([early]) as (rig, engine):
            client = await rig.connect()
            length = ("content-length", "3000000")
            await client.send(request("POST", "/v1/audio/transcriptions", [UPLOAD, length]) + b"x" * 100_000)
            assert (await client.head()).status == 200
            client.hang_up()
            await _noticed(rig, engine)

    run(main)


@pytest.mark.parametrize("before", [[], [EVENT_STREAM, chunk(b"data: {}\n\n")]], ids=["before the head", "mid-stream"])
def test_a_hang_up_during_the_second_attempt_reaches_the_second_replica(before: Sequence[Step]) -> None:
    """F19"""

    async def main() -> None:
        async with fleet([json_reply({}, 503)], [[*before, hang()]]) as (rig, first, second):
            client = await rig.connect()
            await client.send(post(HELLO_STREAM))
            await until(lambda: len(second.requests) == 1)
            assert len(first.requests) == 1
            if before:
                await client.head()
            client.hang_up()
            await _noticed(rig, second)

    run(main)


def test_a_hang_up_while_the_client_reads_nothing_reaches_the_replica() -> None:
    """The router waits for the client's socket, not for the replica."""

    async def flood(peer: Peer) -> None:
        await peer.read_body()
        await EVENT_STREAM(peer)
        while True:
            await chunk(b"x" * 65536)(peer)

    async def main() -> None:
        async with fleet([flood]) as (rig, engine):
            client = await rig.connect()
            await client.send(post(HELLO_STREAM))
            await client.head()
            await asyncio.sleep(0.05)
            client.hang_up()
            await _noticed(rig, engine)

    run(main)


def test_five_hundred_hang_ups_at_random_moments_leave_nothing_behind() -> None:
    """F10, F13, F14, F131"""
    random.seed(5)
    stream: list[Step] = [EVENT_STREAM, *[chunk(b"data: {}\n\n")] * 3, hang()]

    async def one(rig: Rig) -> None:
        client: Client = await rig.connect()
        await client.send(post(HELLO_STREAM))
        await asyncio.sleep(random.random() * 0.02)
        client.hang_up()

    async def main() -> None:
        async with fleet([stream], [[hang()]]) as (rig, *engines):
            for _ in range(10):
                await asyncio.gather(*(one(rig) for _ in range(50)))
            await until(lambda: not rig.held(), rig.held)
            assert set(rig.outcomes()) == {"client_gone"}
            assert rig.outcomes()["client_gone"] == rig.sent
            for engine in engines:
                await until(lambda engine=engine: engine.current == 0)

    run(main)


def test_a_session_does_not_wait_for_its_own_stalled_first_turn() -> None:
    """F20"""
    session = ("x-session-id", "s")

    async def main() -> None:
        async with fleet([[hang()]], [[hang()]], policy="locality") as (rig, *engines):
            clients = [await rig.connect() for _ in range(6)]
            for client in clients:
                await client.send(post(HELLO, CHAT, session))
            await until(lambda: sum(len(engine.requests) for engine in engines) == 6)
            home = max(engines, key=lambda engine: len(engine.requests))
            assert len(home.requests) == 6
            for client in clients[:3]:
                client.hang_up()
            await until(lambda: len(home.left) == 3)
            assert rig.loads[0].inflight + rig.loads[1].inflight == 3
            for client in clients[3:]:
                client.hang_up()
            await _noticed(rig, home, 6)

    run(main)


def test_a_server_that_says_by_an_error_that_the_client_has_gone_is_understood() -> None:
    """ASGI lets `send` raise OSError then."""
    stream: list[Step] = [EVENT_STREAM, chunk(b"data: {}\n\n"), hang()]
    scope = {
        "type": "http", "method": "POST", "path": CHAT, "raw_path": CHAT.encode(), "query_string": b"",
        "headers": [(b"content-length", b"%d" % len(HELLO_STREAM)), (b"content-type", b"application/json")],
    }  # fmt: skip

    async def main() -> None:
        messages = [{"type": "http.request", "body": HELLO_STREAM, "more_body": False}]

        async def receive() -> dict[str, object]:
            if messages:
                return messages.pop()
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.body":
                raise BrokenPipeError

        async with fleet([stream]) as (rig, engine):
            rig.sent += 1
            await rig.router(scope, receive, send)
            await _noticed(rig, engine)

    run(main)
