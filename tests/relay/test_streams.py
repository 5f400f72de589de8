"""Streams: every event alone and at once, back-pressure all the way, and a break never looks like an end."""

import asyncio
import json

import pytest

from tests.mock import Peer, Step, chunk, gate, json_reply, ok, reset, send, sse, status, wait
from tests.relay.rig import (
    CHAT,
    COMPLETIONS,
    HELLO,
    HELLO_STREAM,
    MESSAGES,
    RESPONSES,
    TOKEN,
    fleet,
    post,
    run,
    until,
)

EVENT_STREAM = status(200, "content-type: text/event-stream", "transfer-encoding: chunked")


def _event(value: object) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def test_each_of_fifty_events_arrives_alone_before_the_next_is_sent() -> None:
    """F8: the replica sends event n + 1 only after the client has seen event n."""

    async def main() -> None:
        seen = [asyncio.Event() for _ in range(50)]
        steps: list[Step] = [EVENT_STREAM]
        for number in range(50):
            steps += [chunk(_event({"n": number})), gate(seen[number])]
        steps += [chunk(b"data: [DONE]\n\n"), chunk(b"")]
        async with fleet([steps]) as (rig, _):
            client = await rig.connect()
            await client.send(post(HELLO_STREAM, CHAT, ("accept-encoding", "gzip")))
            answer = await client.head()
            assert answer.all(b"content-encoding") == answer.all(b"x-accel-buffering") == []
            for number in range(50):
                assert await client.chunk() == _event({"n": number})
                seen[number].set()
            assert await client.chunk() == b"data: [DONE]\n\n"
            assert await client.chunk() == b""

    run(main)


def test_the_head_of_a_stream_arrives_before_its_first_event() -> None:
    """F25: the fields that say where it went are in it."""

    async def main() -> None:
        go = asyncio.Event()
        async with fleet([[EVENT_STREAM, gate(go), chunk(b"data: [DONE]\n\n"), chunk(b"")]]) as (rig, engine):
            client = await rig.connect()
            await client.send(post(HELLO_STREAM))
            answer = await client.head()
            assert answer.one(b"x-router-replica") == engine.url[7:].encode()
            go.set()
            assert (await client.rest(answer)).clean

    run(main)


def test_a_slow_reader_stops_the_replica_from_writing() -> None:
    """F125"""
    piece = b"x" * 65536
    total = 1600  # 100 MiB: beyond any socket buffer

    async def main() -> None:
        written = 0

        async def reply(peer: Peer) -> None:
            nonlocal written
            await peer.read_body()
            await peer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (total * len(piece)))
            for _ in range(total):
                await peer.write(piece)
                written += 1

        async with fleet([reply]) as (rig, _):
            client = await rig.connect()
            await client.send(post())
            answer = await client.head()
            before = -1
            while written != before:  # until it no longer gets on
                before = written
                await asyncio.sleep(0.1)
            assert written < total / 2
            assert rig.loads[0].inflight == 1
            got = 0
            while got < total * len(piece):
                got += len(await client.reader.read(1 << 20))
            assert written == total
            assert answer.one(b"content-length") == b"%d" % got

    run(main)


def test_the_load_is_held_until_the_last_byte() -> None:
    """F109, F110"""

    async def main() -> None:
        go = asyncio.Event()
        stream: list[Step] = [EVENT_STREAM, chunk(_event(TOKEN)), gate(go), chunk(b"")]
        async with fleet([stream]) as (rig, _):
            clients = [await rig.connect() for _ in range(8)]
            for client in clients:
                await client.send(post(HELLO_STREAM))
                await client.head()
                await client.chunk()
            assert rig.samples("router_inflight_requests")[0][1] == 8
            assert rig.loads[0].queued_tokens == 0
            go.set()
            for client in clients:
                assert await client.chunk() == b""
            await until(lambda: rig.samples("router_inflight_requests")[0][1] == 0)

    run(main)


BREAKS = [
    (CHAT, lambda tail: json.loads(tail[6:])["error"]),
    (COMPLETIONS, lambda tail: json.loads(tail[6:])["error"]),
    (MESSAGES, lambda tail: json.loads(tail.partition(b"\n")[2][6:])["error"]),
    (RESPONSES, lambda tail: json.loads(tail.partition(b"\n")[2][6:])["response"]["error"]),
]


@pytest.mark.parametrize(("path", "error_in"), BREAKS, ids=["chat", "completions", "messages", "responses"])
def test_a_broken_stream_ends_in_an_error_of_its_family(path: str, error_in: "type[dict[str, str]]") -> None:
    """F1, F2"""
    sent = _event({"n": 1}) + _event({"n": 2})

    async def main() -> None:
        seen = asyncio.Event()
        async with fleet([[EVENT_STREAM, chunk(sent[:20]), chunk(sent[20:]), gate(seen), reset()]]) as (rig, _):
            answer = await rig.ask_and_break(post(HELLO_STREAM, path), len(sent), seen)
            assert answer.body.startswith(sent)
            assert b"[DONE]" not in answer.body
            tail = answer.body[len(sent) :].strip()
            assert error_in(tail)["code"] == ("truncated" if path != RESPONSES else error_in(tail)["code"])
            if path == MESSAGES:
                assert tail.startswith(b"event: error\n")
            if path == RESPONSES:
                assert tail.startswith(b"event: response.failed\n")
            assert await rig.ended() == {"truncated": 1}

    run(main)


@pytest.mark.parametrize("end", [b'data: {"n', b'data: {"n": 3}\n', b'data: {"n": 3}\r\n'])
def test_a_stream_that_breaks_inside_an_event_is_cut(end: bytes) -> None:
    """F1: what came after half an event would be parsed as its other half."""
    sent = _event({"n": 1}) + end

    async def main() -> None:
        seen = asyncio.Event()
        async with fleet([[EVENT_STREAM, chunk(sent), gate(seen), reset()]]) as (rig, _):
            answer = await rig.ask_and_break(post(HELLO_STREAM), len(sent), seen)
            assert (answer.body, answer.clean) == (sent, False)
            assert await rig.ended() == {"truncated": 1}

    run(main)


@pytest.mark.parametrize(
    "lines",
    [
        ["content-type: application/json", "content-length: 100"],
        ["content-type: application/json", "transfer-encoding: chunked"],
        ["content-type: text/event-stream", "content-length: 100"],
        ["content-type: text/event-stream", "transfer-encoding: chunked", "content-encoding: gzip"],
        ["content-type: audio/mpeg"],
    ],
    ids=["length", "chunked", "events with a length", "compressed events", "close-delimited"],
)
def test_a_broken_answer_that_can_carry_no_event_is_cut_and_never_ends_cleanly(lines: list[str]) -> None:
    """F1, F11, F22"""
    first = chunk(b'{"half') if any("chunked" in line for line in lines) else send(b'{"half')

    async def main() -> None:
        seen = asyncio.Event()
        async with fleet([[status(200, *lines), first, gate(seen), reset()]]) as (rig, _):
            answer = await rig.ask_and_break(post(), 6, seen)
            assert (answer.body, answer.clean) == (b'{"half', False)
            assert await rig.ended() == {"truncated": 1}

    run(main)


def test_a_stream_that_breaks_before_its_first_event_still_says_so() -> None:
    async def main() -> None:
        seen = asyncio.Event()
        async with fleet([[EVENT_STREAM, gate(seen), reset()]]) as (rig, _):
            answer = await rig.ask_and_break(post(HELLO_STREAM), 0, seen)
            assert json.loads(answer.body.strip()[6:])["error"]["type"] == "router_error"
            assert await rig.ended() == {"truncated": 1}

    run(main)


def test_a_replica_that_stalls_inside_a_stream_times_out_with_an_event() -> None:
    """F47, F185"""
    stalls: list[Step] = [EVENT_STREAM, chunk(_event(TOKEN)), wait(5)]

    async def main() -> None:
        async with fleet([stalls], idle_timeout=0.05) as (rig, _):
            answer = await rig.ask(post(HELLO_STREAM))
            assert json.loads(answer.body[len(_event(TOKEN)) :].strip()[6:])["error"]["code"] == "idle_timeout"
            assert await rig.ended() == {"timeout": 1}

    run(main)


def test_a_replica_that_stalls_inside_a_plain_answer_is_cut() -> None:
    """F47, F185"""
    stalls: list[Step] = [status(200, "content-type: application/json", length=100), send(b'{"half'), wait(5)]
    silent: list[Step] = [status(200, "content-type: application/json", length=100), wait(5)]

    async def main() -> None:
        async with fleet([stalls, silent], idle_timeout=0.05, first_byte_timeout=0.05) as (rig, _):
            for began in (b'{"half', b""):
                answer = await rig.ask()
                assert (answer.status, answer.body, answer.clean) == (200, began, False)
            assert await rig.ended(2) == {"timeout": 2}

    run(main)


def test_the_total_timeout_ends_a_stream_with_an_event_and_another_answer_by_a_cut() -> None:
    stream: list[Step] = [EVENT_STREAM, chunk(_event(TOKEN)), wait(5)]
    plain: list[Step] = [status(200, "content-type: application/json", length=100), send(b"{"), wait(5)]

    async def main() -> None:
        async with fleet([stream, plain, [wait(5)]], total_timeout=0.2) as (rig, _):
            answer = await rig.ask(post(HELLO_STREAM))
            assert json.loads(answer.body[len(_event(TOKEN)) :].strip()[6:])["error"]["code"] == "total_timeout"
            assert not (await rig.ask(post(HELLO))).clean
            late = await rig.ask(post(HELLO))
            assert (late.status, json.loads(late.body)["error"]["code"]) == (504, "total_timeout")
            assert await rig.ended(3) == {"timeout": 3}

    run(main)


ERROR_EVENT = {"error": {"message": "CUDA error", "type": "InternalServerError", "code": 500}}
ABORT = {"choices": [{"index": 0, "delta": {}, "finish_reason": "abort"}]}


@pytest.mark.parametrize("last", [ERROR_EVENT, ABORT], ids=["error", "abort"])
def test_a_failure_inside_a_good_stream_passes_untouched_and_is_counted(last: object) -> None:
    """F127"""

    async def main() -> None:
        async with fleet([sse(TOKEN, last)]) as (rig, _):
            answer = await rig.ask(post(HELLO_STREAM))
            assert answer.body == _event(TOKEN) + _event(last) + b"data: [DONE]\n\n"
            assert answer.clean
            assert await rig.ended() == {"replica_error": 1}
            assert rig.loads[0].failures == 1

    run(main)


@pytest.mark.parametrize("whole", [ERROR_EVENT, {"choices": [{"finish_reason": "abort"}]}], ids=["error", "abort"])
def test_a_failure_inside_a_whole_answer_passes_untouched_and_is_counted(whole: object) -> None:
    """F127"""

    async def main() -> None:
        async with fleet([json_reply(whole)]) as (rig, _):
            answer = await rig.ask()
            assert (answer.status, json.loads(answer.body)) == (200, whole)
            assert await rig.ended() == {"replica_error": 1}

    run(main)


def test_a_stream_keeps_what_its_replica_sent_and_nobody_asks_for_usage() -> None:
    """F43"""

    async def main() -> None:
        async with fleet([sse(TOKEN)]) as (rig, engine):
            for options in (b"", b',"stream_options":{"include_usage":false}'):
                body = HELLO_STREAM[:-1] + options + b"}"
                assert (await rig.ask(post(body))).body == _event(TOKEN) + b"data: [DONE]\n\n"
                assert engine.requests[-1].body == body

    run(main)


def test_the_replica_that_leaves_the_fleet_finishes_its_stream() -> None:
    """F116, F140"""

    async def main() -> None:
        go = asyncio.Event()
        stream: list[Step] = [EVENT_STREAM, chunk(_event(TOKEN)), gate(go), chunk(b"data: [DONE]\n\n"), chunk(b"")]
        async with fleet([stream], [[ok()]]) as (rig, first, second):
            client = await rig.connect()
            await client.send(post(HELLO_STREAM))
            answer = await client.head()
            replica = answer.one(b"x-router-replica").decode()
            stays = [load.replica for load in rig.loads if load.id != replica]
            assert first.url.endswith(replica), "the first turn of round robin is the first replica's"
            leaving = rig.router.fleet.loads[replica]
            await rig.router.watch._apply(stays)
            assert replica not in rig.router.fleet.loads
            assert leaving.inflight == 1
            go.set()
            assert (await client.rest(answer)).clean
            await until(lambda: leaving.inflight == 0)
            assert (await rig.ask()).one(b"x-router-replica").decode() == second.url[7:]

    run(main)
