"""What goes in comes out: targets, fields and bodies pass byte for byte, in both directions."""

import asyncio
import gzip
from hashlib import sha256

import pytest

from tests.mock import Peer, chunk, close, ok, send, slowly, status
from tests.relay.rig import CHAT, HELLO, JSON, fleet, post, request, run, until

TARGETS = [
    "/v1/anything?b=2&a=1&b=3&flag&s=%E9%FF;x&q=a%20b+c",
    "/a%2Fb/%25/../c//d/./e",
    "//v1/chat/completions",
    "/v1/files/file-1/content",
    "/%00%0d%0a",
    "/x?a=1?b=2&url=http://h/p",
    "/~user/(a)/'b'/:c;d=1,2/@e!*$",
    "/" + "a" * 8000,
]
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "REPORT"]
SIZES = [30_000, 128_000, 700_000, 1_100_000, 5_000_000, 20_000_000]


@pytest.mark.parametrize("target", TARGETS, ids=range(len(TARGETS)))
def test_the_target_is_forwarded_byte_for_byte(target: str) -> None:
    """F28"""

    async def main() -> None:
        async with fleet([[ok()]]) as (rig, engine):
            assert (await rig.ask(request("POST", target, [JSON], HELLO))).status == 200
            assert engine.requests[0].line == f"POST {target} HTTP/1.1".encode()

    run(main)


def test_every_method_passes_as_it_is() -> None:
    async def main() -> None:
        async with fleet([[ok(b"fine")]]) as (rig, engine):
            for method in METHODS:
                assert (await rig.ask(request(method, "/v1/things/1"))).body == b"fine"
            assert [seen.line.split()[0].decode() for seen in engine.requests] == METHODS
            assert [seen.header(b"content-length") for seen in engine.requests] == [None] * len(METHODS)

    run(main)


@pytest.mark.parametrize("size", SIZES)
def test_bodies_of_every_size_and_framing_arrive_unchanged(size: int) -> None:
    """F34, F35"""
    body = (b'{"messages":[{"role":"user","content":"' + b"0123456789abcdef" * (size // 16))[: size - 4] + b'"}]}'

    async def main() -> None:
        async with fleet([[ok()]]) as (rig, engine):
            await rig.ask(post(body))
            await rig.ask(request("POST", CHAT, [JSON, ("transfer-encoding", "chunked")]) + _odd_chunks(body))
            binary = ("content-type", "application/octet-stream")
            await rig.ask(request("POST", "/v1/files", [binary], body))
            await rig.ask(request("POST", "/v1/files", [binary, ("transfer-encoding", "chunked")]) + _odd_chunks(body))
            digests = [sha256(seen.body).digest() for seen in engine.requests]
            assert digests == [sha256(body).digest()] * 4

    run(main)


def test_odd_chunk_sizes_never_repeat_or_lose_a_chunk() -> None:
    """F35"""
    body = bytes(range(256)) * 5000

    async def main() -> None:
        async with fleet([[ok()]]) as (rig, engine):
            client = await rig.connect()
            for step in range(20):
                kind = ("content-type", ["application/json", "application/octet-stream"][step % 2])
                head = request("POST", "/v1/embeddings", [kind, ("transfer-encoding", "chunked")])
                await client.send(head + _odd_chunks(body, 977 + 4093 * step))
                assert (await client.answer()).status == 200
            assert {sha256(seen.body).digest() for seen in engine.requests} == {sha256(body).digest()}

    run(main)


def _odd_chunks(body: bytes, size: int = 65_521) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


ODD_JSON = b'{ "a" :1e400,\t"b":-0.0, "seed":9007199254740993,"x":"\\ud83d", "a":1.0 }\r\n \n'


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", ODD_JSON),
        ("application/json", b""),
        ("text/vtt", "WEBVTT\n\n00:00 --> 00:01\nžluťoučký\n".encode()),
        ("audio/mpeg", bytes(range(256)) * 300),
        ("text/event-stream", b"data:no space\r\r: comment\r\ndata: {}\r\n\r\nid\n\ndata: unfinished"),
    ],
    ids=["odd json", "nothing", "text", "binary", "odd events"],
)
def test_the_answer_is_relayed_verbatim_in_every_framing(kind: str, body: bytes) -> None:
    """F23, F38, F40"""
    line = f"content-type: {kind}"
    close_delimited = [status(200, line, "connection: close"), send(body), close()]
    chunked = [status(200, line, "transfer-encoding: chunked"), *([chunk(body)] if body else []), chunk(b"")]

    async def main() -> None:
        async with fleet([[ok(body, line)], chunked, close_delimited, [slowly(_raw(line, body[:500]))]]) as (rig, _):
            assert (await rig.ask()).body == body
            for _ in range(2):
                answer = await rig.ask()
                assert (answer.body, answer.clean, answer.one(b"content-type")) == (body, True, kind.encode())
            assert (await rig.ask()).body == body[:500]

    run(main)


def _raw(line: str, body: bytes) -> bytes:
    return f"HTTP/1.1 200 OK\r\n{line}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def test_the_request_body_is_not_decoded_and_encoded_again() -> None:
    """F38"""
    body = b'{"messages":[ {"role":"user","content":"\\ud83d \\u00e9"} ],' + ODD_JSON[1:]

    async def main() -> None:
        async with fleet([[ok()]]) as (rig, engine):
            await rig.ask(post(body))
            assert engine.requests[0].body == body

    run(main)


def test_compressed_bodies_pass_as_they_are_in_both_directions() -> None:
    """F7"""
    asked, answered = gzip.compress(HELLO), gzip.compress(ODD_JSON)
    reply = [ok(answered, "content-type: application/json", "content-encoding: gzip")]

    async def main() -> None:
        async with fleet([reply]) as (rig, engine):
            answer = await rig.ask(post(asked, CHAT, ("content-encoding", "gzip"), ("accept-encoding", "gzip, br")))
            assert (answer.body, answer.one(b"content-encoding")) == (answered, b"gzip")
            (seen,) = engine.requests
            assert (seen.body, seen.header(b"content-encoding")) == (asked, b"gzip")
            assert seen.header(b"accept-encoding") == b"gzip, br"

    run(main)


def test_nothing_is_added_to_what_the_replica_gets() -> None:
    """F37: only host and framing are the router's; the same fields, in the same order, with the same values."""
    fields = [JSON, ("authorization", "Bearer k"), ("x-custom", "1"), ("x-custom", "2"), ("accept", "*/*")]

    async def main() -> None:
        async with fleet([[ok()]]) as (rig, engine):
            await rig.ask(post(HELLO, CHAT, *fields[1:]))
            (seen,) = engine.requests
            sent = [(name.encode(), value.encode()) for name, value in fields]
            own = [(b"host", engine.url[7:].encode()), (b"content-length", b"%d" % len(HELLO))]
            assert seen.headers == [own[0], *sent, own[1]]
            assert seen.body == HELLO
            await rig.ask(request("GET", "/v1/x"))
            assert engine.requests[1].headers == [own[0]]

    run(main)


def test_fields_of_one_hop_are_dropped_in_both_directions() -> None:
    """F31, F166, F175"""
    asked = [
        ("connection", "keep-alive, X-A, authorization"), ("x-a", "1"), ("authorization", "Bearer k"),
        ("te", "trailers"), ("trailer", "x-t"), ("keep-alive", "timeout=5"), ("proxy-connection", "keep-alive"),
        ("upgrade", "h2c"),
        ("proxy-authorization", "Basic eA=="), ("x-router-replica", "elsewhere:1"), ("expect", "100-continue"),
    ]  # fmt: skip
    answered = [
        "Connection: keep-alive, X-B", "X-B: 1", "Keep-Alive: timeout=5", "Trailer: x-t", "Proxy-Authenticate: Basic",
        "Upgrade: h2c", "X-Router-Policy: a lie", "TE: trailers", "X-C: kept",
    ]  # fmt: skip

    async def main() -> None:
        async with fleet([[ok(b"fine", *answered)]]) as (rig, engine):
            answer = await rig.ask(post(HELLO, CHAT, *asked))
            (seen,) = engine.requests
            assert {name for name, _ in seen.headers} == {b"host", b"content-type", b"authorization", b"content-length"}
            names = {name.lower() for name, _ in answer.headers if not name.startswith(b"x-router-")}
            assert names == {b"content-length", b"x-c", b"x-request-id"}
            assert answer.one(b"x-router-policy") == b"round_robin"
            assert answer.body == b"fine"

    run(main)


@pytest.mark.parametrize("code", [200, 404, 500])
def test_single_fields_stay_single_and_several_stay_several(code: int) -> None:
    """F32"""
    lines = [
        "Server: engine/1", "Date: Sun, 29 Nov 2026 17:00:00 GMT", "Content-Type: application/json",
        "Set-Cookie: a=1; Path=/", "Set-Cookie: b=2", "X-Request-Id: theirs",
    ]  # fmt: skip

    async def main() -> None:
        async with fleet([[status(code, *lines, length=2), send(b"{}")]]) as (rig, _):
            answer = await rig.ask()
            assert (answer.status, answer.body) == (code, b"{}")
            for name in (b"server", b"date", b"content-type", b"content-length", b"x-request-id"):
                assert len(answer.all(name)) == 1
            assert answer.one(b"server") == b"engine/1"
            assert answer.one(b"x-request-id") == b"theirs"
            assert answer.all(b"set-cookie") == [b"a=1; Path=/", b"b=2"]

    run(main)


def test_a_replica_without_server_and_date_gets_none_added() -> None:
    async def main() -> None:
        async with fleet([[ok()]], response_headers=False) as (rig, _):
            assert {name for name, _ in (await rig.ask()).headers} == {b"content-length", b"x-request-id"}

    run(main)


def test_head_has_the_length_and_no_body() -> None:
    """F29"""

    async def main() -> None:
        async with fleet([[status(200, "x-a: 1", length=1234)]]) as (rig, engine):
            client = await rig.connect()
            for _ in range(2):  # the connection is still in step
                await client.send(request("HEAD", "/v1/files/1"))
                answer = await client.answer("HEAD")
                assert (answer.status, answer.one(b"content-length"), answer.one(b"x-a")) == (200, b"1234", b"1")
            assert engine.requests[0].line == b"HEAD /v1/files/1 HTTP/1.1"

    run(main)


@pytest.mark.parametrize("lines", [[], ["etag: x"], ["content-length: 10"]], ids=["bare", "etag", "length"])
@pytest.mark.parametrize("code", [204, 304])
def test_answers_without_a_body_keep_the_connection_in_step(code: int, lines: list[str]) -> None:
    if code == 204 and lines == ["content-length: 10"]:
        lines = ["content-length: 0"]

    async def main() -> None:
        async with fleet([[status(code, *lines)]]) as (rig, _):
            client = await rig.connect()
            for _ in range(2):
                await client.send(request("GET", "/v1/files/1"))
                assert (await client.answer()).status == code

    run(main)


def test_interim_answers_are_skipped_and_the_final_one_passes() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"

    async def main() -> None:
        async with fleet([[send(b"HTTP/1.1 100 Continue\r\n\r\n" + early), ok(b"final", "x-a: 1")]]) as (rig, _):
            answer = await rig.ask()
            assert (answer.status, answer.body, answer.all(b"link"), answer.interim) == (200, b"final", [], [])

    run(main)


def test_trailers_are_dropped_and_the_end_stays_clean() -> None:
    raw = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;ext=1\r\nabc\r\n0\r\nx-trailer: 1\r\n\r\n"

    async def main() -> None:
        async with fleet([[send(raw)]]) as (rig, _):
            client = await rig.connect()
            for _ in range(2):
                await client.send(post())
                answer = await client.answer()
                assert (answer.body, answer.clean) == (b"abc", True)

    run(main)


def test_a_client_that_expects_100_gets_it_and_the_replica_never_hears_of_it() -> None:
    """F29"""

    async def main() -> None:
        async with fleet([[ok()]]) as (rig, engine):
            client = await rig.connect()
            raw = post(HELLO, CHAT, ("expect", "100-continue"))
            await client.send(raw[: -len(HELLO)])
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            await client.send(HELLO)
            assert (await client.answer()).status == 200
            assert engine.requests[0].header(b"expect") is None
            assert engine.requests[0].body == HELLO

    run(main)


def test_multipart_is_opaque_whatever_is_in_it() -> None:
    """F40, F46"""
    kind = ("content-type", "multipart/form-data; boundary=xx")
    body = (
        b'--xx\r\ncontent-disposition: form-data; name="file"\r\n\r\n'
        + bytes(range(256)) * 40
        + b"\r\n--x\r\n--xx-\r\n"
    )

    async def main() -> None:
        async with fleet([[ok(b"WEBVTT", "content-type: text/vtt")]]) as (rig, engine):
            for fields in ([kind], [("content-type", "multipart/form-data")], []):
                answer = await rig.ask(request("POST", "/v1/audio/transcriptions", fields, body))
                assert (answer.status, answer.body) == (200, b"WEBVTT")
            assert [seen.body for seen in engine.requests] == [body] * 3

    run(main)


@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=xx", "application/octet-stream"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_large_upload_that_need_not_be_read_is_not_held_up(kind: str, framing: str) -> None:
    """The replica has the first megabyte while the client still holds back the rest."""
    half = b"f" * 1_500_000

    async def main() -> None:
        seen_half = asyncio.Event()

        async def reply(peer: Peer) -> None:
            taken = 0
            while taken < 1_000_000:
                size = int(await peer.reader.readline(), 16)
                taken += len((await peer.reader.readexactly(size + 2))[:-2])
            seen_half.set()
            while size := int(await peer.reader.readline(), 16):
                taken += len((await peer.reader.readexactly(size + 2))[:-2])
            await peer.reader.readline()
            await peer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n%d" % taken)

        async with fleet([reply]) as (rig, _):
            client = await rig.connect()
            length = ("content-length", "3000000") if framing == "length" else ("transfer-encoding", "chunked")
            piece = half if framing == "length" else b"%x\r\n%b\r\n" % (len(half), half)
            await client.send(request("POST", "/v1/audio/transcriptions", [("content-type", kind), length]) + piece)
            await seen_half.wait()
            await client.send(piece if framing == "length" else piece + b"0\r\n\r\n")
            assert (await client.answer()).body == b"3000000"

    run(main)


def _upload(*fields: tuple[str, str]) -> bytes:
    return request("POST", "/v1/files", [("content-type", "application/octet-stream"), *fields])


def test_a_replica_that_does_not_take_an_upload_stops_the_client_from_sending() -> None:
    """F125, the other way"""
    total = 50 * 2**20  # beyond any socket buffer

    async def main() -> None:
        go = asyncio.Event()

        async def deaf(peer: Peer) -> None:
            await go.wait()
            taken = 0
            while size := int(await peer.reader.readline(), 16):
                taken += len((await peer.reader.readexactly(size + 2))[:-2])
            await peer.reader.readline()
            await ok(b"%d" % taken)(peer)

        async with fleet([deaf], max_body_bytes=total) as (rig, engine):
            client = await rig.connect()
            await client.send(_upload(("content-length", str(total))))
            client.writer.write(b"x" * total)
            transport = client.writer.transport
            await until(lambda: len(engine.requests) == 1)
            before = -1
            while transport.get_write_buffer_size() != before:  # until no more is taken
                before = transport.get_write_buffer_size()
                await asyncio.sleep(0.1)
            assert before > total / 2
            go.set()
            assert (await client.answer()).body == b"%d" % total

    run(main)


@pytest.mark.parametrize("code", [200, 400, 413, 503])
def test_an_answer_before_the_end_of_an_upload_reaches_a_client_that_is_still_sending(code: int) -> None:
    """F49: whoever reads only after the last byte must find the answer, and the connection still in step."""

    async def early(peer: Peer) -> None:
        await peer.write(b"HTTP/1.1 %d Early\r\ncontent-length: 5\r\nretry-after: 3\r\n\r\nenough"[:-1] % code)
        while await peer.reader.read(65536):
            pass

    async def main() -> None:
        async with fleet([early], [early]) as (rig, *engines):
            client = await rig.connect()
            for _ in range(2):
                await client.send(_upload(("content-length", "8000000")) + b"x" * 4_000_000)
                await client.send(b"x" * 4_000_000)
                answer = await client.answer()
                assert (answer.status, answer.body, answer.one(b"retry-after")) == (code, b"enoug", b"3")
            assert sum(len(engine.requests) for engine in engines) == 2  # what is half gone is not sent elsewhere

    run(main)
