"""What an attacker found at the door: each was a way to smuggle, to starve or to blame."""

import asyncio
import json
import socket
import struct
from collections.abc import Iterator

import pytest

from router.core.keys import Sources
from router.dialects import Head, dialect_of
from tests.mock import Peer, json_reply
from tests.relay.rig import CHAT, HELLO, JSON, fleet, on_lane, post, request, run, until


@pytest.fixture(autouse=True)
def lane() -> Iterator[str]:
    """The door is the lane's: plain uvicorn has its own."""
    with on_lane("fast"):
        yield "fast"


@pytest.mark.parametrize("protocol", ["h2c", "TLS/1.0", "foo"])
@pytest.mark.parametrize("chunked", [False, True])
def test_the_body_behind_an_ignored_upgrade_is_a_body(protocol: str, chunked: bool) -> None:
    """F29: llhttp ends such a message at its head; what follows must not be read as a request of its own."""
    inner = post(HELLO, "/v1/embeddings")
    upgrade = [JSON, ("connection", "Upgrade"), ("upgrade", protocol)]
    raw = request("POST", CHAT, upgrade, inner)
    if chunked:
        head = request("POST", CHAT, [*upgrade, ("transfer-encoding", "chunked")])
        raw = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(inner), inner)

    async def main() -> None:
        async with fleet([json_reply({"ok": 1})]) as (rig, engine):
            client = await rig.connect()
            await client.send(raw + post(HELLO))
            for _ in range(2):
                assert (await client.answer()).status == 200
            assert [seen.body for seen in engine.requests] == [inner, HELLO]
            assert all(b" /v1/chat/completions " in seen.line for seen in engine.requests)
            rig.sent = 2

    run(main)


def test_a_websocket_upgrade_with_a_body_is_refused_and_its_body_is_no_request() -> None:
    async def main() -> None:
        async with fleet([json_reply({"ok": 1})]) as (rig, engine):
            client = await rig.connect()
            fields = [JSON, ("connection", "Upgrade"), ("upgrade", "websocket")]
            await client.send(request("POST", CHAT, fields, post(HELLO)) + post(HELLO))
            assert [(await client.answer()).status for _ in range(2)] == [501, 200]
            assert [seen.body for seen in engine.requests] == [HELLO]
            rig.sent = 2

    run(main)


def test_a_body_of_tiny_chunks_is_sent_on_in_few_pieces_and_blames_nobody() -> None:
    body = b"[" + b"1," * 40_000 + b"1]"

    async def main() -> None:
        async with fleet([json_reply({"ok": 1})]) as (rig, engine):
            head = request("POST", CHAT, [JSON, ("transfer-encoding", "chunked")])
            answer = await rig.ask(head + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
            assert answer.status == 200
            assert engine.requests[0].body == body
            assert rig.loads[0].failures == 0

    run(main)


def test_explain_stops_reading_at_its_limit() -> None:
    async def main() -> None:
        async with fleet([json_reply({"ok": 1})], max_body_bytes=100_000) as (rig, _):
            client = await rig.connect()
            await client.send(request("POST", "/router/explain", [JSON, ("transfer-encoding", "chunked")]))
            piece = b"4000\r\n" + b"a" * 0x4000 + b"\r\n"
            for _ in range(7):
                await client.send(piece)
            assert (await asyncio.wait_for(client.head(), 5)).status == 413  # though the body has not ended

    run(main)


@pytest.mark.parametrize("element", [b"0", b"{}", b'{"role":"user","content":"x"}'])
def test_a_list_of_very_many_elements_is_one_part(element: bytes) -> None:
    """An object for each of twenty million elements stopped the loop for forty seconds."""
    body = b'{"model":"m","messages":[' + b",".join([element] * 700_000) + b"]}"
    head = Head(b"POST", CHAT, b"", [(b"content-type", b"application/json")])
    read = dialect_of(CHAT).read(head, body, Sources())
    assert (read.model, len(read.chain)) == ("m", 2)


def test_expect_is_read_in_any_case() -> None:
    """F29"""

    async def main() -> None:
        async with fleet([json_reply({"ok": 1})]) as (rig, _):
            client = await rig.connect()
            length = ("content-length", str(len(HELLO)))
            await client.send(request("POST", CHAT, [JSON, length, ("expect", "100-CONTINUE")]))
            assert b"100" in await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), 5)
            await client.send(HELLO)
            answer = await client.answer()
            assert (answer.status, json.loads(answer.body)) == (200, {"ok": 1})
            rig.sent = 1

    run(main)


def test_a_hang_up_is_noticed_while_the_replica_takes_no_more_of_an_upload() -> None:
    """F16, F17: reading is paused then, so nobody would hear of it."""

    async def deaf(peer: Peer) -> None:
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(30)

    async def main() -> None:
        async with fleet([deaf]) as (rig, _):
            client = await rig.connect()
            kind = ("content-type", "application/octet-stream")
            size = 60_000_000
            await client.send(request("POST", "/v1/audio", [kind, ("content-length", str(size))]))
            upload = asyncio.create_task(client.send(b"x" * 50_000_000))
            await until(lambda: rig.router.proxy.inflight == 1)
            await asyncio.sleep(0.3)  # until everything is full
            upload.cancel()
            sock = client.writer.get_extra_info("socket")
            sock.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )  # an end waits behind its data
            client.hang_up()
            async with asyncio.timeout(3):
                await until(lambda: rig.router.proxy.inflight == 0)
            assert await rig.ended(1) == {"client_gone": 1}

    run(main)
