"""Whatever a client sends is answered: passed on where it can be, refused in words where not. Never a hang or a 500."""

import asyncio
import json
from hashlib import sha256

import pytest

from tests.mock import Peer, json_reply, ok
from tests.relay.rig import CHAT, COMPLETIONS, HELLO, JSON, MESSAGES, RESPONSES, fleet, post, request, run, until

PATHS = [CHAT, COMPLETIONS, RESPONSES, MESSAGES, "/v1/embeddings", "/generate", "/v1/x"]
DEEP = 100_000
ODD_BODIES = {
    "empty": b"",
    "not json": b"hello",
    "half json": b'{"model":"m","messages":[{"role":"user","con',
    "array": b'[{"role":"user"}]',
    "number": b"17",
    "null": b"null",
    "no messages": b'{"model":"m"}',
    "messages null": b'{"model":"m","messages":null,"input":null,"prompt":null,"system":null,"tools":null}',
    "messages text": b'{"messages":"hello","tools":"x","system":1,"input":1,"prompt":{}}',
    "messages of anything": b'{"messages":[null,1,"x",[],{},{"role":null,"content":null},{"content":[null,{"a":[]}]}]}',
    "deep arrays": b'{"messages":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep objects": b'{"messages":[{"content":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}]}",
    "model of any type": b'{"model":{"a":[1]},"session_id":[1],"user":{},"metadata":"x","messages":[]}',
    "huge number": b'{"model":"m","seed":1' + b"0" * 5000 + b',"messages":[]}',
    "bad utf-8": b'{"model":"\xff\xfe","messages":[{"role":"user","content":"\xc3("}]}',
    "nul and surrogates": b'{"model":"\\u0000\\ud800","session_id":"\\ud83d","messages":[]}',
    "utf-16": '{"model":"m"}'.encode("utf-16"),
    "bom": b"\xef\xbb\xbf" + HELLO,
    "twice the key": b'{"messages":[],"messages":[{"role":"user","content":"x"}],"model":"a","model":"b"}',
}  # fmt: skip


@pytest.mark.parametrize("policy", ["locality", "prefix_hash", "longest_prefix", "round_robin"])
def test_every_odd_body_is_passed_to_a_replica_as_it_is(policy: str) -> None:
    """F68"""

    async def main() -> None:
        async with fleet([[ok(b"fine")]], [[ok(b"fine")]], policy=policy) as (rig, *engines):
            client = await rig.connect()
            for path in PATHS:
                for name, body in ODD_BODIES.items():
                    await client.send(post(body, path))
                    answer = await client.answer()
                    assert (answer.status, answer.body) == (200, b"fine"), (path, name)
            passed = [seen.body for engine in engines for seen in engine.requests]
            assert sorted(passed) == sorted(list(ODD_BODIES.values()) * len(PATHS))

    run(main)


def test_a_request_without_a_body_has_none_at_the_replica() -> None:
    """F68"""

    async def main() -> None:
        async with fleet([[ok()]], policy="locality") as (rig, engine):
            for method in ("POST", "GET", "DELETE"):
                await rig.ask(request(method, CHAT, [JSON]))
            assert [seen.header(b"content-length") for seen in engine.requests] == [None] * 3
            await rig.ask(post(b""))
            assert engine.requests[-1].header(b"content-length") == b"0"
            await rig.ask(request("POST", CHAT, [JSON, ("transfer-encoding", "chunked")]) + b"0\r\n\r\n")
            assert engine.requests[-1].body == b""

    run(main)


def test_any_label_of_type_and_encoding_passes() -> None:
    async def main() -> None:
        async with fleet([[ok()]], policy="locality") as (rig, engine):
            for kind in (
                "",
                "x",
                "application/json; charset=utf-16",
                "a/b;" * 500,
                "application/x-www-form-urlencoded",
            ):
                assert (await rig.ask(request("POST", CHAT, [("content-type", kind)], HELLO))).status == 200
            for encoding in ("gzip", "zstd", "x"):  # and it is none of these
                raw = post(HELLO, CHAT, ("content-encoding", encoding))
                assert (await rig.ask(raw)).status == 200
            assert {seen.body for seen in engine.requests} == {HELLO}

    run(main)


@pytest.mark.parametrize(
    "name", ["模型-é-🙂", "a\\r\\nx-router-replica: evil", "\\u0000", "x" * 10_000, "", " ", "%0d%0a"], ids=range(7)
)
def test_odd_names_of_models_and_sessions_never_break_an_answer(name: str) -> None:
    """F176"""
    body = f'{{"model":"{name}","session_id":"{name}","user":"{name}","messages":[]}}'.encode()

    async def main() -> None:
        async with fleet([[ok(b"fine")]], policy="locality") as (rig, _):
            answer = await rig.ask(post(body))
            assert (answer.status, answer.body) == (200, b"fine")
            for key, value in answer.headers:
                assert (key + value).isascii()
                assert (key + value).decode().isprintable()
            assert len(answer.all(b"x-router-replica")) == 1
            assert rig.loads[0].failures == 0

    run(main)


@pytest.mark.parametrize("value", ["", " ", "x" * 10_000, "\xff\xfe\xe9", 'a,b;c="d"\'', "../..", "\t"], ids=range(7))
def test_odd_session_headers_are_no_error_and_pass_on(value: str) -> None:
    """F176"""

    async def main() -> None:
        async with fleet([[ok()]], [[ok()]], policy="session_hash") as (rig, *engines):
            for name in ("x-session-id", "x-request-id", "session_id", "x-claude-code-session-id"):
                assert (await rig.ask(post(HELLO, CHAT, (name, value)))).status == 200
            seen = [seen for engine in engines for seen in engine.requests if seen.header(b"x-session-id") is not None]
            assert [one.header(b"x-session-id") for one in seen] == [value.strip().encode("latin-1")]

    run(main)


def test_an_unknown_model_reaches_an_engine_whose_error_is_the_clearest() -> None:
    error = {"error": {"message": "The model `nope` does not exist.", "code": 404}}

    async def main() -> None:
        async with fleet([json_reply(error, 404)]) as (rig, _):
            answer = await rig.ask(post(b'{"model":"nope","messages":[]}'))
            assert (answer.status, json.loads(answer.body)) == (404, error)

    run(main)


LIMIT = 100_000
BINARY = ("content-type", "application/octet-stream")
CHUNKED = ("transfer-encoding", "chunked")


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_the_largest_body_passes_and_one_byte_more_is_413(path: str) -> None:
    """F49"""

    async def main() -> None:
        async with fleet([[ok()]], max_body_bytes=LIMIT) as (rig, engine):
            assert (await rig.ask(post(b"x" * LIMIT, path))).status == 200
            answer = await rig.ask(post(b"x" * (LIMIT + 1), path))
            said = json.loads(answer.body)["error"]
            assert (answer.status, said["code"]) == (413, "body_too_large")
            assert str(LIMIT) in said["message"]
            assert len(engine.requests) == 1
            assert await rig.ended(2) == {"ok": 1, "client_error": 1}

    run(main)


def test_413_is_readable_by_a_client_that_only_reads_when_all_is_sent_and_the_connection_lives_on() -> None:
    """F49: a reset would read as a connection error and be tried again."""

    async def main() -> None:
        async with fleet([[ok(b"fine")]], max_body_bytes=LIMIT) as (rig, _):
            client = await rig.connect()
            for _ in range(3):
                await client.send(post(b"x" * 20_000_000))
                assert (await client.answer()).status == 413
            await client.send(request("POST", CHAT, [JSON, CHUNKED]))
            for _ in range(200):
                await client.send(b"186a0\r\n" + b"x" * 100_000 + b"\r\n")
            await client.send(b"0\r\n\r\n")
            assert (await client.answer()).status == 413
            await client.send(post())
            assert (await client.answer()).body == b"fine"

    run(main)


def test_413_in_the_middle_of_a_passing_upload_ends_the_exchange() -> None:
    """F49"""

    async def taking(peer: Peer) -> None:
        while await peer.reader.read(65536):
            pass
        raise ConnectionResetError

    async def main() -> None:
        async with fleet([taking], max_body_bytes=2_000_000) as (rig, engine):
            client = await rig.connect()
            await client.send(request("POST", "/v1/files", [BINARY, CHUNKED]))
            for _ in range(30):
                await client.send(b"186a0\r\n" + b"x" * 100_000 + b"\r\n")
            await client.send(b"0\r\n\r\n")
            assert (await client.answer()).status == 413
            assert await rig.ended() == {"client_error": 1}
            await until(lambda: len(engine.left) == 1)
            assert rig.loads[0].failures == 0

    run(main)


def test_413_to_a_client_that_awaits_100_comes_without_it() -> None:
    """F49"""

    async def main() -> None:
        async with fleet([[ok()]], max_body_bytes=LIMIT) as (rig, _):
            client = await rig.connect()
            length = ("content-length", str(LIMIT + 1))
            await client.send(request("POST", CHAT, [JSON, length, ("expect", "100-continue")]))
            answer = await client.answer()
            assert (answer.status, answer.interim) == (413, [])

    run(main)


def test_64_mib_pass_by_default_and_not_a_byte_more() -> None:
    """F34, F49"""
    limit = 64 * 1024 * 1024
    body = b'{"model":"m","messages":[{"role":"user","content":"' + b"x" * (limit - 55) + b'"}]}'
    assert len(body) == limit

    async def main() -> None:
        async with fleet([[ok()]], policy="locality") as (rig, engine):
            assert (await rig.ask(post(body))).status == 200
            assert sha256(engine.requests[0].body).digest() == sha256(body).digest()
            assert (await rig.ask(post(body + b" "))).status == 413

    run(main)


def test_a_websocket_is_refused_in_words() -> None:
    """F178, F179: a clear 501, never a hang."""
    upgrade = [
        ("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ]  # fmt: skip

    async def main() -> None:
        async with fleet([[ok()]]) as (rig, engine):
            answer = await rig.ask(request("GET", "/v1/realtime", upgrade))
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (501, "upgrade_not_supported")
            assert engine.requests == []

    run(main)


def test_other_upgrades_are_ignored() -> None:
    """F29"""

    async def main() -> None:
        async with fleet([[ok(b"fine")]]) as (rig, _):
            client = await rig.connect()
            for _ in range(2):
                await client.send(
                    request("GET", "/v1/x", [("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c")])
                )
                assert (await client.answer()).body == b"fine"

    run(main)


@pytest.mark.parametrize(
    "raw",
    [
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /x HTTP/1.1\r\nhost: a\r\nbad header\r\n\r\n",
        b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
        b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        b"GET /\xc3\xa9 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org\r\n\r\n",
    ],
    ids=["word", "tls", "field", "negative", "smuggle", "lengths", "raw utf-8", "http/2", "connect"],
)
def test_what_is_not_http_gets_an_answer_or_an_end_and_reaches_nobody(raw: bytes) -> None:
    async def main() -> None:
        async with fleet([[ok()]]) as (rig, engine):
            client = await rig.connect()
            await client.send(raw)
            async with asyncio.timeout(2):
                assert (await client.reader.read(12)) in (b"HTTP/1.1 400", b"HTTP/1.1 501", b"")
            assert engine.requests == []
            assert (await rig.ask()).status == 200

    run(main)


def test_a_coding_of_the_message_that_would_be_lost_is_refused() -> None:
    """A body sent as `gzip, chunked` would arrive as gzip that nothing announces."""

    async def main() -> None:
        async with fleet([[ok()]]) as (rig, engine):
            raw = request("POST", CHAT, [JSON, ("transfer-encoding", "gzip, chunked")]) + b"3\r\nabc\r\n0\r\n\r\n"
            answer = await rig.ask(raw)
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (400, "bad_request")
            assert engine.requests == []

    run(main)
