"""The waiting room: a newcomer that fits nowhere is held, and every way out of the line is clean."""

import asyncio
import json

from tests.mock import gate, json_reply, sse
from tests.relay.rig import HELLO, MESSAGES, fleet, post, run, until

FULL = 1000  # tokens of KV; a body of 3,600 bytes is 900 of them by the seed of 4 bytes a token
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 3600}]}).encode()
HASTY = {"policy": "locality", "kv_capacity_tokens": FULL, "admission_options": {"horizon_seconds": 1}}  # idle = gone
DONE = {"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}]}
TOOL = {"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "tool_calls"}]}


def turn(session: str, body: bytes = BODY) -> bytes:
    return post(body, "/v1/chat/completions", ("x-session-id", session))


def test_a_newcomer_is_held_until_there_is_room() -> None:
    async def main() -> None:
        go = asyncio.Event()
        async with fleet([[gate(go), *json_reply(DONE)], json_reply(DONE)], **HASTY) as (rig, engine):
            first = asyncio.create_task(rig.ask(turn("a")))
            await until(lambda: len(engine.requests) == 1)
            second = asyncio.create_task(rig.ask(turn("b")))
            await until(lambda: len(rig.router.proxy.waiting) == 1)
            assert len(engine.requests) == 1
            go.set()
            assert [(await each).status for each in (first, second)] == [200, 200]
            assert len(rig.router.proxy.waiting) == 0
            page = rig.router.ledger.render()[0].decode()
            assert 'router_decisions_total{arm="",policy="locality",reason="hold"} 1.0' in page
            assert "router_waiting_seconds_count 1.0" in page

    run(main)


def test_a_session_with_a_place_is_not_held_while_others_wait() -> None:
    async def main() -> None:
        go = asyncio.Event()
        replies = [json_reply(TOOL), [gate(go), *json_reply(TOOL)]]
        async with fleet(replies, kv_capacity_tokens=FULL) as (rig, engine):
            assert (await rig.ask(turn("a"))).status == 200
            held = asyncio.create_task(rig.ask(turn("b")))
            await until(lambda: len(rig.router.proxy.waiting) == 1)
            follow_up = asyncio.create_task(rig.ask(turn("a")))
            await until(lambda: len(engine.requests) == 2)
            assert len(rig.router.proxy.waiting) == 1
            go.set()
            assert (await follow_up).status == 200
            held.cancel()
            for client in rig.clients:
                client.hang_up()
            await until(lambda: not rig.router.proxy.waiting)

    run(main)


def test_a_client_that_hangs_up_while_held_leaves_the_line_and_the_next_is_called() -> None:
    async def main() -> None:
        go = asyncio.Event()
        async with fleet([[gate(go), *json_reply(DONE)], json_reply(DONE)], **HASTY) as (rig, engine):
            first = asyncio.create_task(rig.ask(turn("a")))
            await until(lambda: len(engine.requests) == 1)
            leaves = await rig.connect()
            await leaves.send(turn("b"))
            await until(lambda: len(rig.router.proxy.waiting) == 1)
            third = asyncio.create_task(rig.ask(turn("c")))
            await until(lambda: len(rig.router.proxy.waiting) == 2)
            leaves.hang_up()
            await until(lambda: len(rig.router.proxy.waiting) == 1)
            go.set()
            assert [(await each).status for each in (first, third)] == [200, 200]
            assert await rig.ended(3) == {"ok": 2, "client_gone": 1}
            assert len(engine.requests) == 2

    run(main)


def test_waiting_is_bounded_and_says_when_to_come_back() -> None:
    async def main() -> None:
        go = asyncio.Event()
        async with fleet([[gate(go), *sse()], json_reply(DONE)], kv_capacity_tokens=FULL, max_wait=0.2) as (
            rig,
            engine,
        ):
            first = asyncio.create_task(rig.ask(turn("a")))
            await until(lambda: len(engine.requests) == 1)
            answer = await rig.ask(post(BODY, MESSAGES, ("x-session-id", "b")))
            assert (answer.status, int(answer.one(b"retry-after"))) == (503, 30)
            error = json.loads(answer.body)
            assert (error["type"], error["error"]["code"]) == ("error", "overloaded")
            go.set()
            await first
            assert await rig.ended(2) == {"ok": 1, "rejected": 1}

    run(main)


def test_who_fits_is_never_held_and_neither_is_who_has_no_session() -> None:
    async def main() -> None:
        async with fleet([json_reply(DONE)], kv_capacity_tokens=100_000) as (rig, _):
            for number in range(20):
                assert (await rig.ask(turn(f"s{number}", HELLO))).status == 200
            assert "router_waiting_seconds_count 0.0" in rig.router.ledger.render()[0].decode()

    run(main)
