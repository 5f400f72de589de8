"""What fails has one status and one word for each condition, in the caller's dialect, and the fleet learns from it."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from router.core.replica import State
from tests.mock import close, gate, hang, json_reply, ok, reset, send, sse, status, wait
from tests.relay.rig import (
    CHAT,
    HELLO,
    HELLO_STREAM,
    MESSAGES,
    RESPONSES,
    TOKEN,
    Answer,
    Engine,
    empty_source,
    fleet,
    post,
    request,
    rig,
    run,
    until,
)

DIALECTS = pytest.mark.parametrize("path", [CHAT, MESSAGES], ids=["openai", "anthropic"])


def _is_refusal(answer: Answer, path: str, code: int, word: str) -> None:
    said = json.loads(answer.body)
    assert (answer.status, said["error"]["code"], said["error"]["type"]) == (code, word, "router_error")
    assert (path == MESSAGES) == (said.get("type") == "error")
    assert answer.one(b"content-type") == b"application/json"
    assert answer.one(b"content-length") == b"%d" % len(answer.body)
    assert bool(answer.all(b"retry-after")) == (code == 503)
    assert answer.one(b"x-request-id")


@asynccontextmanager
async def _plain() -> AsyncIterator[int]:
    """A port that answers whatever it is told in plain HTTP."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def _tarpit() -> AsyncIterator[str]:
    """An address that never completes a handshake: its queue of connections is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        try:
            yield f"http://127.0.0.1:{address[1]}"
        finally:
            for filler in fillers:
                filler.close()


@DIALECTS
@pytest.mark.parametrize(
    ("url", "scheme"),
    [("http://127.0.0.1:1", "refused"), ("http://no-such-name.invalid:80", "DNS"), ("https://127.0.0.1:{port}", "TLS")],
    ids=["refused", "dns", "tls"],
)
def test_a_replica_that_cannot_be_reached_is_503_no_replica(url: str, scheme: str, path: str) -> None:
    """F47"""

    async def main() -> None:
        async with _plain() as port, rig(url.format(port=port), ready=False) as built:
            _is_refusal(await built.ask(post(HELLO, path)), path, 503, "no_replica")
            assert await built.ended() == {"replica_error": 1}

    run(main)


@DIALECTS
def test_a_connect_timeout_is_503_no_replica(path: str) -> None:
    """F47"""

    async def main() -> None:
        async with _tarpit() as url, rig(url, ready=False, connect_timeout=0.05) as built:
            _is_refusal(await built.ask(post(HELLO, path)), path, 503, "no_replica")

    run(main)


@DIALECTS
@pytest.mark.parametrize("body", [HELLO, HELLO_STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("script", "code", "word", "outcome"),
    [
        ([reset()], 502, "replica_failed", "replica_error"),
        ([close()], 502, "replica_failed", "replica_error"),
        ([send(b"HTTP/1.1 200 OK\r\ncontent-le"), wait(0.01), reset()], 502, "replica_failed", "replica_error"),
        ([send(b"SSH-2.0-OpenSSH\r\n"), hang()], 502, "replica_failed", "replica_error"),
        ([send(b"\x16\x03\x01\x00\x00" * 50), hang()], 502, "replica_failed", "replica_error"),
        ([status(101), hang()], 502, "replica_failed", "replica_error"),
        ([status(999, length=0)], 502, "replica_failed", "replica_error"),
        ([status(200, "x-a: a\x01b", length=0), hang()], 502, "replica_failed", "replica_error"),
        ([status(200, "content-length: 3", length=4), hang()], 502, "replica_failed", "replica_error"),
        ([hang()], 504, "first_byte_timeout", "timeout"),
        ([send(b"HTTP/1.1 200 OK\r\n"), hang()], 504, "first_byte_timeout", "timeout"),
    ],
    ids=[
        "reset", "closed", "half a head", "another protocol", "binary", "switching", "999", "control", "two lengths",
        "silent", "stalls in the head",
    ],
)  # fmt: skip
def test_a_replica_that_fails_before_it_answers(
    script: list[Any], code: int, word: str, outcome: str, body: bytes, path: str
) -> None:
    """F44, F47, F50, F185: one status per condition; the work may have begun, so nobody else is asked."""

    async def main() -> None:
        async with fleet([script], [[ok()]], first_byte_timeout=0.05 if code == 504 else 60.0) as (built, _, other):
            _is_refusal(await built.ask(post(body, path)), path, code, word)
            assert await built.ended() == {outcome: 1}
            assert other.requests == []
            assert built.loads[0].failures == 1

    run(main)


@DIALECTS
def test_an_empty_fleet_is_503_no_replica(path: str, tmp_path: Path) -> None:
    """F47"""

    async def main() -> None:
        async with rig(empty_source(tmp_path)) as built:
            _is_refusal(await built.ask(post(HELLO, path)), path, 503, "no_replica")
            assert await built.ended() == {"rejected": 1}

    run(main)


@DIALECTS
def test_a_fleet_that_is_all_down_is_503_no_replica(path: str) -> None:
    """F47, F64"""

    async def main() -> None:
        async with fleet([[ok()]], [[ok()]], [[ok()]]) as (built, *engines):
            for engine in engines:
                await engine.die()
            _is_refusal(await built.ask(post(HELLO, path)), path, 503, "no_replica")
            assert [load.state for load in built.loads] == [State.EJECTED] * 3
            assert await built.ended() == {"replica_error": 1}

    run(main)


def test_a_model_whose_replicas_are_all_down_is_503_whoever_else_is_up(tmp_path: Path) -> None:
    """F47: one condition, one status."""
    listed = tmp_path / "replicas.yaml"

    async def main() -> None:
        async with Engine([ok()]) as one, Engine([ok()]) as two:
            listed.write_text(f"- url: {one.url}\n  model: a\n- url: {two.url}\n  model: b\n")
            async with rig(f"file://{listed}") as built:
                await one.die()
                _is_refusal(await built.ask(post(b'{"model":"a","messages":[]}')), CHAT, 503, "no_replica")
                assert (await built.ask(post(b'{"model":"b","messages":[]}'))).status == 200

    run(main)


def test_a_replica_that_cannot_be_reached_while_others_might_is_502() -> None:
    """F47"""

    async def main() -> None:
        async with fleet([[ok()]], [[ok()]], retries=0) as (built, first, _):
            await first.die()
            answer = await built.ask()
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (502, "replica_failed")
            assert (await built.ask()).status == 200

    run(main)


@DIALECTS
@pytest.mark.parametrize("limit", ["max_requests", "max_inflight"])
def test_what_is_over_a_limit_is_503_overloaded(limit: str, path: str) -> None:
    """F47"""

    async def main() -> None:
        go = asyncio.Event()
        async with fleet([[gate(go), ok()]], **{limit: 1}) as (built, engine):
            first = asyncio.create_task(built.ask())
            await until(lambda: len(engine.requests) == 1)
            _is_refusal(await built.ask(post(HELLO, path)), path, 503, "overloaded")
            go.set()
            assert (await first).status == 200
            assert await built.ended(2) == {"ok": 1, "rejected": 1}
            assert (await built.ask()).status == 200

    run(main)


def test_a_refusal_to_head_has_no_body() -> None:
    async def main() -> None:
        async with fleet([[reset()]]) as (built, _):
            answer = await built.ask(request("HEAD", "/v1/files/1"))
            assert (answer.status, answer.body) == (502, b"")

    run(main)


@pytest.mark.parametrize("code", [400, 401, 404, 422, 429, 500, 501, 504])
def test_an_engine_error_on_a_stream_request_passes_verbatim(code: int) -> None:
    """F22, F44; 501 is what the engine is, not how it is."""
    body = b'{"object": "error",  "message": "too long", "code": 400}\n'
    script = [status(code, "content-type: application/json", "x-a: 1", "retry-after: 7", length=len(body)), send(body)]

    async def main() -> None:
        async with fleet([script], [[ok()]]) as (built, _, other):
            answer = await built.ask(post(HELLO_STREAM))
            assert (answer.status, answer.body, answer.clean) == (code, body, True)
            assert (answer.one(b"x-a"), answer.one(b"retry-after")) == (b"1", b"7")
            expected = {429: "rejected"}.get(code, "client_error" if code < 500 or code == 501 else "replica_error")
            assert await built.ended() == {expected: 1}
            assert other.requests == []

    run(main)


# Retries


@pytest.mark.parametrize("code", [502, 503])
def test_a_refusal_before_any_byte_is_retried_elsewhere_with_the_same_request(code: int) -> None:
    """F52, F55, F56"""
    fields = (("x-request-id", "r1"), ("authorization", "Bearer k"))

    async def main() -> None:
        async with fleet([json_reply({"e": 1}, code)], [[ok(b"fine")]]) as (built, first, second):
            answer = await built.ask(post(HELLO, CHAT, *fields))
            assert (answer.status, answer.body) == (200, b"fine")
            assert answer.one(b"x-router-replica").decode() == second.url[7:]
            (one,), (two,) = first.requests, second.requests
            assert (one.line, one.body, one.headers[1:]) == (two.line, two.body, two.headers[1:])
            assert await built.ended() == {"ok": 1}
            assert built.samples("router_retries_total") == [({"reason": f"status_{code}"}, 1.0)]

    run(main)


def test_a_dead_replica_costs_no_request_even_one_whose_body_passes_through() -> None:
    """F64, F91: a body that nobody has taken a byte of can go elsewhere."""
    upload = request("POST", "/v1/files", [("content-type", "application/octet-stream")], b"x" * 3_000_000)

    async def main() -> None:
        for raw in (post(), upload):
            async with fleet([[ok()]], [[ok(b"fine")]]) as (built, first, second):
                await first.die()
                for _ in range(4):
                    assert (await built.ask(raw)).body == b"fine"
                assert built.router.fleet.loads[first.url[7:]].state is State.EJECTED
                assert len(second.requests) == 4
                assert built.samples("router_retries_total") == [({"reason": "unreached"}, 1.0)]

    run(main)


def test_the_last_503_passes_verbatim_with_its_retry_after() -> None:
    """F61"""
    body = b'{"error":  "queue is full"}'
    full = [status(503, "retry-after: 9", "content-type: application/json", length=len(body)), send(body)]

    async def main() -> None:
        async with fleet([full], [full], [full], [full]) as (built, *engines):
            answer = await built.ask()
            assert (answer.status, answer.body, answer.one(b"retry-after")) == (503, body, b"9")
            assert sum(len(engine.requests) for engine in engines) == 3  # retries = 2
            assert await built.ended() == {"rejected": 1}
            assert sorted(load.state for load in built.loads) == [State.COOLING] * 3 + [State.UP]

    run(main)


def test_retries_stay_within_their_budget() -> None:
    """F55"""
    refuses = json_reply({}, 503)

    async def main() -> None:
        async with fleet([refuses], [refuses], [refuses], [[ok()]], retry_budget=0.1) as (built, *engines):
            for load in built.loads:  # nobody learns: the worst that retries can do
                load.until = float("inf")
            answers = [await _asked_again(built) for _ in range(200)]
            attempts = sum(len(engine.requests) for engine in engines)
            assert attempts <= 200 * 1.1 + 10
            assert {answer.status for answer in answers} == {200, 503}
            assert sum((await built.ended(200)).values()) == 200
            assert built.samples("router_retries_refused_total")[0][1] > 0

    async def _asked_again(built: Any) -> Answer:
        for load in built.loads:
            load.state = State.UP
        built.router.fleet.changed()
        answer: Answer = await built.ask()
        return answer

    run(main)


def test_no_retries_means_none() -> None:
    async def main() -> None:
        for settings in ({"retries": 0}, {"retry_budget": 0.0}):
            async with fleet([json_reply({}, 503)], [[ok()]], **settings) as (built, _, second):
                assert (await built.ask()).status == 503
                assert second.requests == []

    run(main)


def test_a_turn_that_continues_a_response_goes_nowhere_but_to_its_maker() -> None:
    """Elsewhere it would be a 404 that looks final; here it is a 503 that says when to come back."""
    made = {"id": "resp_1", "object": "response", "status": "completed", "output": []}
    follow = b'{"model":"m","input":"go on","previous_response_id":"resp_1"}'

    async def main() -> None:
        scripts = [json_reply(made), json_reply({}, 503)]
        async with fleet(scripts, scripts, policy="locality") as (built, *engines):
            maker = (await built.ask(post(b'{"model":"m","input":"hello"}', RESPONSES))).one(b"x-router-replica")
            answer = await built.ask(post(follow, RESPONSES))
            assert (answer.status, answer.one(b"x-router-replica")) == (503, maker)
            assert sorted(len(engine.requests) for engine in engines) == [0, 2]

    run(main)


# Health


@pytest.mark.parametrize("code", [400, 401, 403, 404, 413, 422])
def test_client_errors_are_neutral_for_health(code: int) -> None:
    """F26, F59"""

    async def main() -> None:
        async with fleet([*[json_reply({}, code)] * 20, [ok()]]) as (built, _):
            assert [(await built.ask()).status for _ in range(21)] == [code] * 20 + [200]
            (load,) = built.loads
            assert (load.state, load.failures, load.ejections) == (State.UP, 0, 0)
            assert await built.ended(21) == {"client_error": 20, "ok": 1}

    run(main)


def test_a_mix_of_500_and_200_ejects_nobody() -> None:
    """F70"""

    async def main() -> None:
        mixed = [json_reply({"error": "prompt too long"}, 500), [ok()]] * 20
        async with fleet(mixed, [[ok()]]) as (built, *_):
            for _ in range(60):
                await built.ask()
            assert [(load.state, load.ejections) for load in built.loads] == [(State.UP, 0)] * 2

    run(main)


@pytest.mark.parametrize(
    "script",
    [json_reply({}, 500), [reset()], sse(TOKEN, {"error": {"code": 500}}), [send(b"garbage\r\n\r\n")]],
    ids=["500", "reset", "error in a stream", "garbage"],
)
def test_a_replica_that_always_fails_is_ejected_and_the_rest_serves_on(script: list[Any]) -> None:
    """F58, F77"""

    async def main() -> None:
        async with fleet([script], [[ok()]]) as (built, bad, _):
            for _ in range(30):
                await built.ask(post(HELLO_STREAM))
            assert built.router.fleet.loads[bad.url[7:]].state is State.EJECTED
            assert len(bad.requests) == 5
            assert await built.ended(30) == {"replica_error": 5, "ok": 25}
            up = {labels["replica"]: value for labels, value in built.samples("router_replica_up")}
            assert up[bad.url[7:]] == 0

    run(main)


def test_a_replica_that_always_breaks_off_is_ejected_however_well_it_begins() -> None:
    """F77, F127: a first byte brings a replica back, only an end forgives it."""
    stream = status(200, "content-type: text/event-stream", "transfer-encoding: chunked")

    async def main() -> None:
        async with fleet([[stream, send(b"5\r\ndata:\r\n"), close()]], [[ok()]]) as (built, bad, _):
            for _ in range(30):
                await built.ask(post(HELLO_STREAM))
            assert built.router.fleet.loads[bad.url[7:]].state is State.EJECTED
            assert await built.ended(30) == {"truncated": 5, "ok": 25}

    run(main)


def test_the_last_replica_is_tried_however_bad_it_looks() -> None:
    """F80"""

    async def main() -> None:
        async with fleet([*[json_reply({}, 500)] * 20, [ok()]]) as (built, _):
            assert [(await built.ask()).status for _ in range(21)] == [500] * 20 + [200]
            assert built.loads[0].state is State.UP

    run(main)


def test_pushback_cools_and_is_no_fault() -> None:
    """F61"""

    async def main() -> None:
        async with fleet([json_reply({}, 429), [ok()]], [[ok()]]) as (built, busy, _):
            assert (await built.ask()).status == 429
            load = built.router.fleet.loads[busy.url[7:]]
            assert (load.state, load.failures) == (State.COOLING, 0)
            assert [(await built.ask()).status for _ in range(5)] == [200] * 5
            assert len(busy.requests) == 1

    run(main)
