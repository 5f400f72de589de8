"""What must hold whoever chooses: the count is true, the dead get nothing, a hundred hang-ups leave nothing."""

import asyncio
from typing import Any

import pytest

from router.policies import names
from tests.mock import Step, chunk, gate, hang, json_reply, ok, status
from tests.relay.rig import CHAT, HELLO, HELLO_STREAM, JSON, Client, Rig, fleet, post, request, run, until

EVERY_POLICY = pytest.mark.parametrize("policy", names())
EVENT_STREAM = status(200, "content-type: text/event-stream", "transfer-encoding: chunked")


def _named(number: int, body: bytes = HELLO) -> bytes:
    return post(body, CHAT, ("x-session-id", f"s{number}"))


@EVERY_POLICY
def test_what_is_counted_is_what_the_replicas_have(policy: str) -> None:
    """F109: streams that last, under each policy, against the replicas' own count."""

    async def main() -> None:
        go = asyncio.Event()
        stream: list[Step] = [EVENT_STREAM, chunk(b"data: {}\n\n"), gate(go), chunk(b"")]
        async with fleet(*[[stream]] * 4, policy=policy) as (rig, *engines):
            clients = [await rig.connect() for _ in range(24)]
            for number, client in enumerate(clients):
                await client.send(_named(number, HELLO_STREAM))
            answers = [await client.head() for client in clients]
            truth = {engine.url[7:]: engine.current for engine in engines}
            assert sum(truth.values()) == 24
            assert {each.id: each.inflight for each in rig.loads} == truth
            gauge = {labels["replica"]: value for labels, value in rig.samples("router_inflight_requests")}
            assert gauge == truth
            go.set()
            for client, answer in zip(clients, answers, strict=True):
                assert (await client.rest(answer)).clean

    run(main)


@EVERY_POLICY
def test_nobody_notices_that_a_replica_died(policy: str) -> None:
    """F58, F64, F86: sessions that lived there included."""

    async def main() -> None:
        async with fleet(*[[[ok()]]] * 3, policy=policy) as (rig, *engines):
            for number in range(30):
                assert (await rig.ask(_named(number))).status == 200
            busiest = max(engines, key=lambda engine: len(engine.requests))
            await busiest.die()
            for number in range(30):
                answer = await rig.ask(_named(number))
                assert answer.status == 200
                assert answer.one(b"x-router-replica") != busiest.url[7:].encode()
            ((dead,),) = [[each for each in rig.loads if not each.eligible]]
            assert dead.id == busiest.url[7:]
            assert sum(value for _, value in rig.samples("router_retries_total")) <= 1

    run(main)


@EVERY_POLICY
def test_a_replica_that_answers_500_to_all_is_left_whoever_chooses(policy: str) -> None:
    """F58, F77: five of them, and a session's home is no excuse."""

    async def main() -> None:
        bad = [ok(), json_reply({}, 500)]
        async with fleet(bad, bad, bad, policy=policy) as (rig, *engines):
            home = (await rig.ask(_named(1))).one(b"x-router-replica")
            for engine in engines:
                if engine.url[7:].encode() != home:
                    engine.play([ok()])
            statuses = [(await rig.ask(_named(1))).status for _ in range(40)]
            assert statuses.count(500) <= 5
            assert set(statuses[-20:]) == {200}

    run(main)


# A hundred clients that hang up, in each phase.


async def _mid_upload(client: Client) -> None:
    await client.send(request("POST", CHAT, [JSON, ("content-length", "1000")]) + b"{")


async def _whole(client: Client) -> None:
    await client.send(post(HELLO_STREAM))


async def _streaming(client: Client) -> None:
    await client.send(post(HELLO_STREAM))
    await client.head()
    await client.chunk()


STREAM: list[Step] = [EVENT_STREAM, chunk(b"data: {}\n\n"), hang()]
PHASES = {
    "upload": (_mid_upload, [[ok()]] * 2, 0),
    "before the head": (_whole, [[[hang()]]] * 2, 100),
    "mid-stream": (_streaming, [[STREAM]] * 2, 100),
    "during a retry": (_whole, [[[status(503, "retry-after: 0", length=0)]], [[hang()]]], 100),
}


async def _all_gone(rig: Rig, engines: list[Any], hang_ups: int) -> None:
    async with asyncio.timeout(1):
        await until(lambda: not rig.held() and not any(engine.current for engine in engines), rig.held)
    assert rig.outcomes() == {"client_gone": hang_ups}


@pytest.mark.parametrize("phase", PHASES)
def test_a_hundred_clients_that_hang_up_leave_nothing_within_a_second(phase: str) -> None:
    """F10, F13, F14, F17, F19, F131"""
    begin, scripts, at_replicas = PHASES[phase]

    async def main() -> None:
        async with fleet(*scripts, policy="least_loaded", retry_budget=1.0) as (rig, *engines):
            clients = [await rig.connect() for _ in range(100)]
            for number, client in enumerate(clients, 1):
                await begin(client)
                if at_replicas:  # one after the other, as the budget of retries fills
                    await until(lambda number=number: sum(engine.current for engine in engines) == number)
            await until(lambda: rig.router.proxy.inflight == 100)
            for client in clients:
                client.hang_up()
            await _all_gone(rig, list(engines), 100)
            assert [each.failures for each in rig.loads] == [0, 0]

    run(main)


LARGE = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"x" * 3600)  # 900 tokens, and 1,000 fit


def test_a_hundred_clients_that_hang_up_while_they_are_held_leave_nothing_within_a_second() -> None:
    """F10, F131: the line is empty again, and who has a place keeps it."""

    async def main() -> None:
        options: dict[str, Any] = {"policy": "locality", "kv_capacity_tokens": 1000}
        async with fleet([[hang()]], **options) as (rig, engine):
            first = await rig.connect()
            await first.send(_named(0, LARGE))
            await until(lambda: engine.current == 1)
            clients = [await rig.connect() for _ in range(100)]
            for number, client in enumerate(clients, 1):
                await client.send(_named(number, LARGE))
            await until(lambda: len(rig.router.proxy.waiting) == 100)
            for client in clients:
                client.hang_up()
            async with asyncio.timeout(1):
                await until(lambda: not len(rig.router.proxy.waiting) and rig.router.proxy.inflight == 1)
            assert rig.outcomes() == {"client_gone": 100}
            assert engine.current == 1
            first.hang_up()
            await _all_gone(rig, [engine], 101)

    run(main)
