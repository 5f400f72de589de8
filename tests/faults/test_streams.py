"""Streams under every policy and in every family: a break never looks like an end, and nothing is held up or lost."""

import asyncio
import gzip
import json

import pytest

from router.policies import names
from tests.mock import Step, chunk, close, gate, reset, send, sse, status
from tests.relay.rig import (
    CHAT,
    COMPLETIONS,
    HELLO,
    HELLO_STREAM,
    MESSAGES,
    RESPONSES,
    TOKEN,
    Answer,
    Client,
    Rig,
    fleet,
    post,
    run,
    until,
)

EVENT_STREAM = status(200, "content-type: text/event-stream", "transfer-encoding: chunked")
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
FAMILIES = (CHAT, COMPLETIONS, MESSAGES, RESPONSES, "/generate")
USAGE = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 60}}


@pytest.mark.parametrize("policy", names())
@pytest.mark.parametrize("end", [reset(), close()], ids=["reset", "close"])
def test_a_replica_that_dies_inside_a_stream_is_told_in_every_family(policy: str, end: Step) -> None:
    """F1, F2, F11: one error at the end, never [DONE], counted once, nothing kept; whoever chose."""

    async def main() -> None:
        script = [[EVENT_STREAM, chunk(EVENT), chunk(EVENT), end]]
        async with fleet(script, script, policy=policy) as (rig, *_):
            for number, path in enumerate(FAMILIES, 1):
                answer = await rig.ask(post(HELLO_STREAM, path, ("x-session-id", "s")))
                assert answer.status == 200
                assert answer.body.startswith(EVENT)
                assert b"[DONE]" not in answer.body
                if answer.clean:  # else it is cut, and no client takes that for an end
                    assert b"error" in answer.body.removeprefix(EVENT * 2)
                assert await rig.ended(number) == {"truncated": number}

    run(main)


@pytest.mark.parametrize("policy", names())
def test_an_error_inside_a_stream_is_no_success_under_any_policy(policy: str) -> None:
    """F127"""

    async def main() -> None:
        script = [sse(TOKEN, {"error": {"message": "x", "code": 500}})]
        async with fleet(script, script, policy=policy) as (rig, *_):
            for number, path in enumerate((CHAT, COMPLETIONS), 1):
                answer = await rig.ask(post(HELLO_STREAM, path))
                assert answer.clean
                assert answer.body.endswith(b"data: [DONE]\n\n")
                assert await rig.ended(number) == {"replica_error": number}

    run(main)


@pytest.mark.parametrize("path", FAMILIES)
def test_each_event_arrives_alone_in_every_family(path: str) -> None:
    """F8: event n + 1 is sent only after the client has seen event n."""

    async def main() -> None:
        seen = [asyncio.Event() for _ in range(10)]
        steps: list[Step] = [EVENT_STREAM]
        for event in seen:
            steps += [chunk(EVENT), gate(event)]
        async with fleet([[*steps, chunk(b"")]]) as (rig, _):
            client = await rig.connect()
            await client.send(post(HELLO_STREAM, path, ("accept-encoding", "gzip, br")))
            assert (await client.head()).all(b"content-encoding") == []
            for event in seen:
                assert await client.chunk() == EVENT
                event.set()
            assert await client.chunk() == b""

    run(main)


@pytest.mark.parametrize("path", FAMILIES)
def test_a_compressed_stream_passes_and_its_usage_is_unknown(path: str) -> None:
    """F7: no failure, no zero; and what was not counted leaves the session where it is."""
    data = gzip.compress(EVENT + b"data: [DONE]\n\n")
    head = status(200, "content-type: text/event-stream", "content-encoding: gzip", "transfer-encoding: chunked")
    script = [[head, chunk(data[:20]), chunk(data[20:]), chunk(b"")]]

    async def main() -> None:
        async with fleet(script, script, policy="locality") as (rig, *_):
            raw = post(HELLO_STREAM, path, ("accept-encoding", "gzip"), ("x-session-id", "s"))
            first, second = await rig.ask(raw), await rig.ask(raw)
            assert first.body == second.body == data
            assert first.one(b"x-router-replica") == second.one(b"x-router-replica")
            assert await rig.ended(2) == {"ok": 2}
            assert [value for _, value in rig.samples("router_prompt_tokens_total")] == [0]
            assert [value for _, value in rig.samples("router_time_to_first_token_seconds_count")] == [2]

    run(main)


ANTHROPIC = (
    b'event: message_start\r\ndata: {"type":"message_start","message":{"id":"m","usage":{"input_tokens":40,'
    b'"cache_read_input_tokens":60,"output_tokens":1}}}\r\n\r\n'
    b'event: message_delta\ndata:{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":'
    b'{"output_tokens":5}}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n'
)
OPENAI_RESPONSE = (
    b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_1","status":"in_progress"}}\n\n'
    b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"resp_1","status":"completed",'
    b'"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":60},"output_tokens":5}}}\n\n'
)


@pytest.mark.parametrize(("path", "body"), [(MESSAGES, ANTHROPIC), (RESPONSES, OPENAI_RESPONSE)], ids=["a", "o"])
def test_usage_is_found_wherever_a_stream_is_split(path: str, body: bytes) -> None:
    """F133: at every byte of it, for the families whose usage comes in events of their own."""

    async def main() -> None:
        replies = [[EVENT_STREAM, chunk(body[:at]), chunk(body[at:]), chunk(b"")] for at in range(1, len(body))]
        async with fleet(replies) as (rig, _):
            client = await rig.connect()
            for _ in replies:
                await client.send(post(HELLO_STREAM, path))
                assert (await client.answer()).body == body
            assert await rig.ended(len(replies)) == {"ok": len(replies)}
            assert [value for _, value in rig.samples("router_prompt_tokens_total")] == [100 * len(replies)]
            assert [value for _, value in rig.samples("router_cached_tokens_total")] == [60 * len(replies)]

    run(main)


def test_our_own_pages_answer_while_long_prompts_are_read() -> None:
    """F187: thirty thousand tokens each, sixteen at a time; and how late the loop runs is told."""
    words = " ".join(f"word{number}" for number in range(30_000))
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": words}]}).encode()

    async def main() -> None:
        go = asyncio.Event()
        answer = json.dumps({"choices": [{"finish_reason": "stop"}], "usage": USAGE}).encode()
        async with fleet([[gate(go), status(200, length=len(answer)), send(answer)]], policy="locality") as (
            rig,
            engine,
        ):
            clients = [await rig.connect() for _ in range(16)]
            for client in clients:
                await client.send(post(body))
            for path in ("/livez", "/readyz", "/metrics", "/health"):  # no prompt has been answered yet
                assert (await _get(rig, path)).status == 200
            await until(lambda: engine.current == 16)
            assert (await _get(rig, "/livez")).status == 200
            assert b"router_loop_lag_seconds" in (await _get(rig, "/metrics")).body
            go.set()
            assert {(await client.answer()).status for client in clients} == {200}
            assert await rig.ended(16) == {"ok": 16}

    run(main)


async def _get(rig: Rig, path: str) -> Answer:
    client: Client = await rig.connect()
    await client.send(f"GET {path} HTTP/1.1\r\nhost: router\r\n\r\n".encode())
    return await client.answer()


@pytest.mark.parametrize("policy", names())
def test_a_hang_up_before_the_first_token_is_noticed_under_every_policy(policy: str) -> None:
    """F10, F16, F17"""

    async def main() -> None:
        go = asyncio.Event()
        script = [[EVENT_STREAM, gate(go)]]
        async with fleet(script, script, policy=policy) as (rig, *engines):
            for number, body in enumerate((HELLO, HELLO_STREAM), 1):
                client = await rig.connect()
                await client.send(post(body, CHAT, ("x-session-id", "s")))
                await client.head()
                client.hang_up()
                assert await rig.ended(number) == {"client_gone": number}
                await until(lambda: not rig.held(), rig.held)
            assert rig.router.fleet.sessions == 0  # nobody was served, so nobody has a home
            go.set()
            assert sum(len(engine.requests) for engine in engines) == 2

    run(main)


@pytest.mark.parametrize("size", [100_000, 1_000_000, 3_000_000])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_large_answer_that_comes_at_once_comes_whole(framing: str, size: int) -> None:
    """F34, F41: more than the router's own buffer is there before anybody reads."""
    body = b"x" * size
    head = status(200, length=size) if framing == "length" else EVENT_STREAM
    whole = [head, send(body)] if framing == "length" else [head, chunk(body), chunk(b"")]

    async def main() -> None:
        async with fleet([whole]) as (rig, _):
            for number in range(1, 4):
                async with asyncio.timeout(2):
                    answer = await rig.ask(post(HELLO))
                assert answer.clean
                assert answer.body == body
                assert await rig.ended(number) == {"ok": number}

    run(main)
