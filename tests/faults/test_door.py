"""What comes over a connection is bounded in size and in time, on the lane that `serve` runs."""

import asyncio

import pytest

from tests.mock import ok
from tests.relay.rig import CHAT, HELLO, JSON, Client, Rig, fleet, post, request, run, until

HEAD = f"POST {CHAT} HTTP/1.1\r\nhost: router\r\n".encode()


async def _refused(client: Client, status: int) -> None:
    """Told why, and then the connection ends."""
    assert (await client.answer()).status == status
    assert await client.at_end()


def test_large_heads_pass_up_to_a_limit_and_get_a_reason_beyond_it() -> None:
    """F167"""

    async def main() -> None:
        async with fleet([[ok()]]) as (rig, engine):
            assert (await rig.ask(post(HELLO, CHAT, ("x-large", "x" * 20_000)))).status == 200
            assert engine.requests[0].header(b"x-large") == b"x" * 20_000
            for fields in ([("x-large", "x" * 70_000)], [(f"x-{n}", "x") for n in range(10_000)]):
                client = await rig.connect()
                await client.send(request("POST", CHAT, [JSON, *fields], HELLO))
                await _refused(client, 431)
            assert len(engine.requests) == 1

    run(main)


@pytest.mark.parametrize("piece", [b"x" * 65536, b"x-a: b\r\n" * 8192], ids=["one field", "many"])
def test_a_head_without_an_end_is_cut_before_it_fills_the_memory(piece: bytes) -> None:
    """F167: 64 MB are offered, less than one is taken."""

    async def main() -> None:
        async with fleet([[ok()]]) as (rig, _):
            client = await rig.connect()
            sent = 0
            try:
                await client.send(HEAD + b"x-a: ")
                while sent < 1000 and not client.reader.at_eof():
                    await client.send(piece)
                    await asyncio.sleep(0)
                    sent += 1
            except ConnectionError:
                pass
            assert sent < 100  # the sockets' buffers, no more

    run(main)


async def _trickle(client: Client, data: bytes, pause: float) -> None:
    for at in range(len(data)):
        if client.reader.at_eof() or client.writer.is_closing():
            return
        client.writer.write(data[at : at + 1])
        await asyncio.sleep(pause)


def test_a_head_that_trickles_in_is_ended_while_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """F172: each byte comes in time, the whole does not."""
    monkeypatch.setattr("router.server.lane.HEAD_SECONDS", 0.2)

    async def main() -> None:
        async with fleet([[ok()]]) as (rig, _):
            slow = [await rig.connect() for _ in range(50)]
            feeding = [asyncio.create_task(_trickle(client, HEAD + b"x" * 10_000, 0.01)) for client in slow]
            for _ in range(25):
                assert (await rig.ask()).status == 200
            for client in slow:
                try:
                    assert (await client.answer()).status == 408
                except (EOFError, ConnectionError):  # a byte that came after the end took the answer with it
                    continue
                assert await client.at_end()
            await asyncio.gather(*feeding, return_exceptions=True)

    run(main)


@pytest.mark.parametrize("framing", [("content-length", "1000"), ("transfer-encoding", "chunked")])
def test_a_body_that_stops_coming_is_ended(framing: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """F172"""
    monkeypatch.setattr("router.server.lane.BODY_SECONDS", 0.1)

    async def main() -> None:
        async with fleet([[ok()]]) as (rig, engine):
            client = await rig.connect()
            await client.send(request("POST", CHAT, [JSON, framing]) + b"5\r\n")
            await _refused(client, 408)
            assert engine.requests == []
            assert (await rig.ask()).status == 200

    run(main)


async def _connections(rig: Rig, count: int) -> list[Client]:
    return [await rig.connect() for _ in range(count)]


def test_connections_that_say_nothing_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """F173"""
    monkeypatch.setattr("router.serving._KEEP_ALIVE", 0.1)

    async def main() -> None:
        async with fleet([[ok()]]) as (rig, _):
            for client in await _connections(rig, 200):
                assert await client.at_end()

    run(main)


def test_connections_that_are_half_closed_are_closed() -> None:
    """F173: with nothing said, and in the middle of a head."""

    async def main() -> None:
        async with fleet([[ok()]]) as (rig, _):
            for said in (b"", HEAD):
                for client in await _connections(rig, 50):
                    await client.send(said)
                    client.writer.write_eof()
                    assert await client.at_end()
            await until(lambda: not rig.held(), rig.held)

    run(main)
