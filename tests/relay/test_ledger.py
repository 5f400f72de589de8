"""Every request is entered once, whatever became of it, under words that no client can multiply."""

import asyncio
import random
from typing import Any

from tests.mock import chunk, close, hang, json_reply, ok, send, sse, status
from tests.relay.rig import CHAT, HELLO, HELLO_STREAM, JSON, RESPONSES, TOKEN, Rig, fleet, post, request, run, until

USAGE = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 60}}


def test_every_way_to_end_is_entered_once() -> None:
    """F131: what was sent adds up."""
    stream = status(200, "content-type: text/event-stream", "transfer-encoding: chunked")
    scripts: list[tuple[Any, str]] = [
        ([ok()], "ok"),
        (sse(TOKEN), "ok"),
        ([status(304)], "ok"),
        (json_reply({}, 404), "client_error"),
        (json_reply({}, 500), "replica_error"),
        (json_reply({}, 429), "rejected"),
        ([send(b"HTTP/1.1 200 OK\r\n"), close()], "replica_error"),
        ([stream, chunk(b"data: {}\n\n"), close()], "truncated"),
        ([status(200, length=9), send(b"half"), close()], "truncated"),
        ([stream, chunk(b"data: {}\n\n"), hang()], "timeout"),
        ([hang()], "timeout"),
        (sse({"error": {"message": "x"}}), "replica_error"),
    ]

    async def main() -> None:
        replies = [reply for reply, _ in scripts]
        async with fleet(replies, first_byte_timeout=0.2, idle_timeout=0.2, max_body_bytes=1000) as (rig, _):
            expected: dict[str, int] = {}
            for number, (_, outcome) in enumerate(scripts, 1):
                await rig.ask(post(HELLO_STREAM))
                expected[outcome] = expected.get(outcome, 0) + 1
                assert await rig.ended(number) == expected
            await rig.ask(post(b"x" * 1001))
            expected["client_error"] += 1
            assert await rig.ended(rig.sent) == expected
            ((_, durations),) = rig.samples("router_request_duration_seconds_count")
            assert durations == rig.sent == len(scripts) + 1

    run(main)


def test_what_the_engine_counted_is_entered_from_both_kinds_of_answer() -> None:
    """F133"""
    whole = json_reply({"choices": [{"finish_reason": "stop"}], "usage": USAGE})
    stream = sse(TOKEN, {"choices": [], "usage": USAGE})

    async def main() -> None:
        async with fleet([whole, stream]) as (rig, _):
            for body in (HELLO, HELLO_STREAM):
                await rig.ask(post(body))
            assert await rig.ended(2) == {"ok": 2}
            assert [value for _, value in rig.samples("router_prompt_tokens_total")] == [200]
            assert [value for _, value in rig.samples("router_cached_tokens_total")] == [120]
            assert [value for _, value in rig.samples("router_time_to_first_token_seconds_count")] == [2]
            assert [value for _, value in rig.samples("router_time_per_output_token_seconds_count")] == [2]

    run(main)


def test_each_attempt_is_a_decision_and_the_request_is_one() -> None:
    async def main() -> None:
        async with fleet([json_reply({}, 503)], [[ok()]]) as (rig, _, second):
            await rig.ask()
            assert await rig.ended() == {"ok": 1}
            assert [(labels["reason"], value) for labels, value in rig.samples("router_decisions_total")] == [
                ("turn", 2)
            ]
            ((labels, _),) = rig.samples("router_requests_total")
            assert labels["replica"] == second.url[7:]

    run(main)


def test_two_thousand_strangers_do_not_grow_the_page() -> None:
    """F130: random models, sessions, paths, methods and types."""
    chance = random.Random(7)

    def word() -> str:
        return "".join(chance.choices("abcdefghijklmnop", k=12))

    def stranger() -> bytes:
        path = chance.choice((CHAT, RESPONSES, f"/{word()}/{word()}"))
        fields = [JSON, (f"x-{word()}", word()), ("x-session-id", word()), ("user-agent", word())]
        body = f'{{"model":"{word()}","{word()}":1,"user":"{word()}","messages":[{{"role":"{word()}"}}]}}'.encode()
        return request(chance.choice(("POST", "PUT", "PATCH")), path, fields, body)

    async def ask(rig: Rig, count: int) -> None:
        client = await rig.connect()
        for _ in range(count):
            await client.send(stranger())
            assert (await client.answer()).status == 200

    def series(rig: Rig) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
        families = rig.router.ledger.registry.collect()
        return {(sample.name, tuple(sample.labels.items())) for family in families for sample in family.samples}

    async def main() -> None:
        async with fleet([[ok()]], [[ok()]], policy="locality") as (rig, *_):
            await asyncio.gather(*(ask(rig, 50) for _ in range(4)))
            before = series(rig)
            await asyncio.gather(*(ask(rig, 450) for _ in range(4)))
            assert len(series(rig)) <= len(before) + 4
            await until(lambda: rig.outcomes() == {"ok": 2000})

    run(main)
