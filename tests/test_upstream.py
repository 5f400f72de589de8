"""The upstream pool against a scripted replica: every test is a transcript of what went over the socket."""

import asyncio
import datetime
import ipaddress
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from router.upstream import (
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    Exchange,
    FirstByteTimeout,
    IdleTimeout,
    KeepAliveRace,
    NeverSent,
    Outgoing,
    Pool,
    ReplicaFailed,
    Timeouts,
    TooManyConnections,
    Truncated,
    Unsendable,
    UpstreamError,
)
from router.upstream.outgoing import read_origin
from tests.mock import (
    Mock,
    Peer,
    chunk,
    close,
    gate,
    half_close,
    hang,
    json_reply,
    ok,
    reset,
    send,
    slowly,
    sse,
    status,
    wait,
)

Transcript = Callable[[], Awaitable[None]]
Run = Callable[[Transcript], None]

GET = Outgoing(b"GET", b"/", [])
POST = Outgoing(b"POST", b"/v1/chat/completions", [(b"content-type", b"application/json")], (b'{"n":', b"1}"))


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run on both loops; a transcript may leave no task behind."""

    async def watched(transcript: Transcript) -> None:
        await transcript()
        await asyncio.sleep(0.001)  # what was cancelled last has ended by then
        assert asyncio.all_tasks() == {asyncio.current_task()}

    def run(transcript: Transcript) -> None:
        factory = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}[request.param]
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(watched(transcript))

    return run


@asynccontextmanager
async def pool_to(target: Mock | str, **options: Any) -> AsyncIterator[Pool]:
    timeouts = Timeouts(**{name: options.pop(name) for name in ("connect", "first_byte", "idle") if name in options})
    pool = Pool(target if isinstance(target, str) else target.url, timeouts, **options)
    try:
        yield pool
    finally:
        await pool.aclose()
        assert (pool.open_exchanges, pool.idle) == (0, 0)


async def whole(exchange: Exchange) -> bytes:
    parts = []
    while data := await exchange.read():
        parts.append(data)
    exchange.close()
    return b"".join(parts)


async def ask(pool: Pool, outgoing: Outgoing = GET) -> bytes:
    return await whole(await pool.send(outgoing))


async def items(
    *values: bytes, then: Exception | None = None, gate: asyncio.Event | None = None
) -> AsyncIterator[bytes]:
    for value in values:
        yield value
    if gate is not None:
        await gate.wait()
    if then is not None:
        raise then


# What goes out.


def test_request_goes_out_byte_for_byte(run: Run) -> None:
    async def transcript() -> None:
        async with Mock() as mock, pool_to(mock) as pool:
            await ask(pool, POST)
            assert mock.requests[0].head == (
                b"POST /v1/chat/completions HTTP/1.1\r\n"
                b"host: 127.0.0.1:%d\r\n"
                b"content-type: application/json\r\n"
                b"content-length: 7\r\n\r\n" % mock.port
            )
            assert mock.requests[0].body == b'{"n":1}'

    run(transcript)


@pytest.mark.parametrize(
    "target",
    [b"/?b=2&a=1&b=3&flag&s=%E9%FF;x&q=a%20b+c", b"/a%2Fb/%25/../x//y?", b"/\xe9?#not-a-fragment", b"*"],
)
def test_target_is_not_rewritten(run: Run, target: bytes) -> None:
    """F28"""

    async def transcript() -> None:
        async with Mock() as mock, pool_to(mock) as pool:
            await ask(pool, Outgoing(b"GET", target, []))
            assert mock.requests[0].line == b"GET " + target + b" HTTP/1.1"

    run(transcript)


def test_base_path_of_the_replica_goes_before_the_target(run: Run) -> None:
    async def transcript() -> None:
        async with Mock() as mock, pool_to(f"{mock.url}/engine/") as pool:
            await ask(pool, Outgoing(b"GET", b"/v1/models", []))
            assert mock.requests[0].line == b"GET /engine/v1/models HTTP/1.1"

    run(transcript)


@pytest.mark.parametrize(
    ("body", "name", "value", "arrives"),
    [
        ((), b"content-length", None, b""),
        ((b"",), b"content-length", b"0", b""),
        ([b"ab", bytearray(b"c"), memoryview(b"def")], b"content-length", b"6", b"abcdef"),
        ((b"x" * 3_000_000, b"y" * 3_000_000), b"content-length", b"6000000", b"x" * 3_000_000 + b"y" * 3_000_000),
    ],
)
def test_known_body_is_framed_by_its_length(
    run: Run, body: Any, name: bytes, value: bytes | None, arrives: bytes
) -> None:
    async def transcript() -> None:
        async with Mock() as mock, pool_to(mock) as pool:
            await ask(pool, Outgoing(b"POST", b"/", [], body))
            (seen,) = mock.requests
            assert (seen.header(name), seen.header(b"transfer-encoding"), seen.body) == (value, None, arrives)

    run(transcript)


def test_iterator_body_is_sent_in_chunks_and_never_ends_early(run: Run) -> None:
    async def transcript() -> None:
        async with Mock() as mock, pool_to(mock) as pool:
            for _ in range(2):  # the connection stays usable
                await ask(pool, Outgoing(b"POST", b"/", [], items(b"one", b"", b"two" * 100_000)))
            assert mock.requests[1].header(b"transfer-encoding") == b"chunked"
            assert mock.requests[1].body == b"one" + b"two" * 100_000
            assert mock.connections == 1

    run(transcript)


@pytest.mark.parametrize(
    "outgoing",
    [
        Outgoing(b"GET", b"/", [(b"x", b"a\r\ny: b")]),
        Outgoing(b"GET", b"/", [(b"x\n", b"a")]),
        Outgoing(b"GET", b"/", [(b"x", b"a\0")]),
        Outgoing(b"GET", b"/ HTTP/1.1\r\nx: y\r\n\r\n", []),
        Outgoing(b"GET", b"/a b", []),
        Outgoing(b"GET /", b"/", []),
        Outgoing(b"GET", b"http://elsewhere/", []),
    ],
)
def test_head_that_would_smuggle_is_never_written(run: Run, outgoing: Outgoing) -> None:
    async def transcript() -> None:
        async with Mock() as mock, pool_to(mock) as pool:
            with pytest.raises(Unsendable):
                await pool.send(outgoing)
            assert mock.connections == 0

    run(transcript)


@pytest.mark.parametrize(
    ("url", "host", "port", "named"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1", 8000, b"10.0.0.1:8000"),
        ("http://replica", "replica", 80, b"replica"),
        ("https://replica:443/base", "replica", 443, b"replica"),
        ("http://[::1]:8000", "::1", 8000, b"[::1]:8000"),
        ("http://[fe80::1%25eth0]:1", "fe80::1%eth0", 1, b"[fe80::1]:1"),
        ("http://[fe80::1%eth0]", "fe80::1%eth0", 80, b"[fe80::1]"),
    ],
)
def test_origin_is_read_from_the_url(url: str, host: str, port: int, named: bytes) -> None:
    """F160"""
    origin = read_origin(url)
    assert (origin.host, origin.port, origin.line_end) == (host, port, b" HTTP/1.1\r\nhost: " + named)


@pytest.mark.parametrize(
    "url", ["ftp://a", "http://", "a:8000", "http://u:p@a", "http://a?b", "http://a:99999", "http://é"]
)
def test_url_that_names_no_origin_is_refused(url: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        read_origin(url)


def test_ipv6_replica_is_reached(run: Run) -> None:
    """F160"""

    async def transcript() -> None:
        async with Mock(host="::1") as mock, pool_to(mock) as pool:
            assert await ask(pool) == b"ok"
            assert mock.requests[0].header(b"host") == b"[::1]:%d" % mock.port

    run(transcript)


# What comes back.

FIVE = status(200, length=5)
CHUNKED = status(200, "transfer-encoding: chunked")
ENDLESS = 6 * MAX_HEAD_BYTES  # more than one read of the socket, whose bytes are counted as one
EARLY = send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n")


@pytest.mark.parametrize(
    ("method", "reply", "code", "body", "kept"),
    [
        (b"GET", [FIVE, send(b"hello")], 200, b"hello", 1),
        (b"GET", [status(200, length=0)], 200, b"", 1),
        (b"GET", [CHUNKED, chunk(b"hel"), chunk(b"lo"), chunk(b"")], 200, b"hello", 1),
        (b"GET", [CHUNKED, send(b"5;a=b\r\nhello\r\n0\r\nTrailer: dropped\r\n\r\n")], 200, b"hello", 1),
        (b"GET", [status(200), send(b"until "), send(b"the end"), close()], 200, b"until the end", 0),
        (b"GET", [status(200), send(b"half"), half_close(), hang()], 200, b"half", 0),
        (b"GET", [send(b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok")], 200, b"ok", 0),
        (b"GET", [ok(b"bye", "Connection: close")], 200, b"bye", 0),
        (b"GET", [status(204)], 204, b"", 1),
        (b"GET", [status(304, length=5)], 304, b"", 1),
        (b"HEAD", [FIVE], 200, b"", 1),
        (b"HEAD", [CHUNKED], 200, b"", 1),
        (b"HEAD", [FIVE, send(b"hello")], 200, b"", 0),
        (b"GET", [EARLY, FIVE, send(b"hello")], 200, b"hello", 1),
        (
            b"GET",
            [slowly(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")],
            200,
            b"hello",
            1,
        ),
        (b"GET", [send(b"HTTP/1.1 599\r\ncontent-length: 0\r\n\r\n")], 599, b"", 1),
        (b"GET", json_reply({"error": "no"}, 429), 429, b'{"error": "no"}', 1),
    ],
)
def test_reply_is_read_to_its_end(run: Run, method: bytes, reply: Any, code: int, body: bytes, kept: int) -> None:
    async def transcript() -> None:
        async with Mock(reply, [ok(b"next")]) as mock, pool_to(mock) as pool:
            exchange = await pool.send(Outgoing(method, b"/", []))
            assert (exchange.status, exchange.reused) == (code, False)
            assert await whole(exchange) == body
            assert await exchange.read() == b""
            await mock.until(lambda: pool.idle == kept)
            assert await ask(pool) == b"next"

    run(transcript)


def test_headers_come_back_raw_in_order_with_duplicates(run: Run) -> None:
    async def transcript() -> None:
        async with Mock([ok(b"", "Set-Cookie: a=1", "X-Empty:", "set-cookie: B=\xe9")]) as mock, pool_to(mock) as pool:
            exchange = await pool.send(GET)
            assert exchange.headers == [
                (b"set-cookie", b"a=1"),
                (b"x-empty", b""),
                (b"set-cookie", b"B=\xe9"),
                (b"content-length", b"0"),
            ]

    run(transcript)


def test_bytes_are_handed_on_as_soon_as_they_come(run: Run) -> None:
    async def transcript() -> None:
        head, first, second = asyncio.Event(), asyncio.Event(), asyncio.Event()
        script = [CHUNKED, gate(head), chunk(b"a"), gate(first), chunk(b"b"), chunk(b"c"), gate(second), chunk(b"")]
        async with Mock(script) as mock, pool_to(mock) as pool:
            exchange = await pool.send(GET)
            head.set()
            assert await exchange.read() == b"a"
            first.set()
            data = b""
            while data != b"bc":
                data += await exchange.read()
            assert not exchange.complete
            second.set()
            assert await exchange.read() == b""
            assert exchange.complete

    run(transcript)


@pytest.mark.parametrize(
    "end",
    [
        [FIVE, send(b"hel"), reset()],
        [FIVE, send(b"hel"), close()],
        [CHUNKED, chunk(b"hel"), reset()],
        [CHUNKED, chunk(b"hel"), close()],
        [CHUNKED, chunk(b"hel"), half_close(), hang()],
        [CHUNKED, chunk(b"hel"), send(b"zz\r\n"), hang()],
        [CHUNKED, chunk(b"hel"), send(b"5;" + b"x" * ENDLESS), hang()],
        [CHUNKED, chunk(b"hel"), send(b"0\r\nt: " + b"x" * ENDLESS), hang()],
        [status(200), send(b"hel"), wait(0.01), reset()],
    ],
)
def test_death_in_the_middle_of_a_body_is_not_an_end(run: Run, end: Any) -> None:
    """F1"""

    async def transcript() -> None:
        async with Mock(end, [ok()]) as mock, pool_to(mock) as pool:
            exchange = await pool.send(GET)
            got = b""
            while b"hel".startswith(got):  # what a reset leaves of the last bytes is the kernel's affair
                try:
                    got += await exchange.read() or b"a clean end"
                except Truncated:
                    break
            assert b"hel".startswith(got)
            with pytest.raises(Truncated):
                await exchange.read()
            exchange.close()
            assert (pool.open_exchanges, pool.idle) == (0, 0)
            assert await ask(pool) == b"ok"

    run(transcript)


@pytest.mark.parametrize(
    "reply",
    [
        reset(),
        [reset()],
        [close()],
        [half_close(), hang()],
        [send(b"HTTP/1.1 200 OK\r\ncontent-"), reset()],
        [send(b"HTTP/1.1 200 OK\r\ncontent-"), close()],
        [send(b"\x16\x03\x01 not HTTP"), hang()],
        [send(b"HTTP/1.1 abc OK\r\n\r\n"), hang()],
        [send(b"HTTP/1.1 000 OK\r\n\r\n"), hang()],
        [send(b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"), hang()],
        [status(200, "transfer-encoding: chunked", length=5), send(b"hello"), hang()],
        [status(200, "content-length: 4", length=5), send(b"hello"), hang()],
        [status(200, "content-length: -1"), hang()],
        [status(200, "folded: a\r\n b"), hang()],
        [status(200, "nul: a\0b"), hang()],
        [status(200, *["a: b"] * (MAX_HEADERS + 1)), hang()],
        [status(200, "a: " + "b" * MAX_HEAD_BYTES), hang()],
        [send(b"HTTP/1.1 200 OK\r\na: " + b"b" * 2 * MAX_HEAD_BYTES), hang()],
        [send(b"HTTP/1.1 100 Continue\r\n\r\n" * 5000), hang()],
    ],
)
def test_no_valid_head_means_the_replica_failed(run: Run, reply: Any) -> None:
    async def transcript() -> None:
        async with Mock(reply, [ok()]) as mock, pool_to(mock) as pool:
            with pytest.raises(ReplicaFailed):
                await pool.send(POST)
            assert len(mock.requests) == 1
            await mock.until(lambda: mock.open == 0)
            assert (pool.open_exchanges, pool.idle) == (0, 0)
            assert await ask(pool) == b"ok"

    run(transcript)


@pytest.mark.parametrize("extra", [b"H", b"\r\nH", b"garbage", b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx"])
def test_bytes_after_the_reply_never_reach_the_next_request(run: Run, extra: bytes) -> None:
    async def transcript() -> None:
        async with (
            Mock([send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok" + extra)]) as mock,
            pool_to(mock) as pool,
        ):
            assert await ask(pool) == b"ok"
            assert pool.idle == 0

    run(transcript)


def test_bytes_on_an_idle_connection_end_it(run: Run) -> None:
    async def transcript() -> None:
        go = asyncio.Event()
        late = send(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
        async with Mock([ok(b"one"), gate(go), late], [ok(b"two")]) as mock, pool_to(mock) as pool:
            assert await ask(pool) == b"one"
            assert pool.idle == 1
            go.set()
            await mock.until(lambda: pool.idle == 0)
            assert await ask(pool) == b"two"

    run(transcript)


def test_slow_reader_slows_the_replica_not_the_memory(run: Run) -> None:
    """F125"""

    async def transcript() -> None:
        size, limit = 30_000_000, 100_000
        async with (
            Mock([status(200, length=size), send(b"x" * size)]) as mock,
            pool_to(mock, buffer_bytes=limit) as pool,
        ):
            exchange = await pool.send(GET)
            await mock.until(lambda: exchange.unread > limit)
            await asyncio.sleep(0.05)
            assert exchange.unread <= limit + 256 * 1024  # one read of the socket
            assert mock.current == 1
            assert len(await whole(exchange)) == size
            assert pool.idle == 1
            assert await ask(pool, GET)

    run(transcript)


# Connections.


def test_newest_idle_connection_is_used_first(run: Run) -> None:
    async def transcript() -> None:
        one, two = asyncio.Event(), asyncio.Event()
        async with Mock([gate(one), ok()], [gate(two), ok()], [ok()]) as mock, pool_to(mock) as pool:
            first = asyncio.create_task(pool.send(GET))
            await mock.until(lambda: len(mock.requests) == 1)
            second = asyncio.create_task(pool.send(GET))
            await mock.until(lambda: len(mock.requests) == 2)
            assert repr(pool) == f"<Pool {mock.url} [2 open, 0 idle, 0 connecting]>"
            two.set()
            await whole(await second)
            one.set()
            await whole(await first)
            assert pool.idle == 2
            exchange = await pool.send(GET)
            assert (exchange.reused, mock.requests[2].connection) == (True, 1)

    run(transcript)


def test_there_is_no_hidden_bound(run: Run) -> None:
    """F184"""

    async def transcript() -> None:
        go = asyncio.Event()
        async with Mock([gate(go), ok()]) as mock, pool_to(mock) as pool:
            asks = [asyncio.create_task(ask(pool)) for _ in range(150)]
            await mock.until(lambda: mock.current == 150)
            assert pool.open_exchanges == 150
            go.set()
            assert await asyncio.gather(*asks) == [b"ok"] * 150
            assert mock.peak == 150

    run(transcript)


def test_explicit_bound_is_an_answer_not_a_queue(run: Run) -> None:
    async def transcript() -> None:
        async with Mock([FIVE, hang()]) as mock, pool_to(mock, max_connections=1) as pool:
            exchange = await pool.send(GET)
            with pytest.raises(TooManyConnections):
                await pool.send(GET)
            exchange.close()
            (await pool.send(GET)).close()

    run(transcript)


def test_idle_connection_is_closed_before_the_replica_does(run: Run) -> None:
    """F53"""

    async def transcript() -> None:
        async with Mock() as mock, pool_to(mock, idle_expiry=0.02) as pool:
            await ask(pool)
            await asyncio.sleep(0.03)
            exchange = await pool.send(GET)  # before the sweep has come
            assert (exchange.reused, mock.connections) == (False, 2)
            exchange.close()
            await mock.until(lambda: mock.open == 0)  # by the sweep
            assert pool.idle == 0

    run(transcript)


def test_old_connection_is_not_reused(run: Run) -> None:
    """F163"""

    async def transcript() -> None:
        async with Mock() as mock, pool_to(mock, max_age=0.0) as pool:
            await ask(pool)
            await ask(pool)
            assert mock.connections == 2

    run(transcript)


def test_idle_connection_that_the_replica_closes_is_forgotten(run: Run) -> None:
    """F53"""

    async def transcript() -> None:
        for end in (close(), reset(), half_close()):
            async with Mock([ok(), wait(0.01), end, hang()], [ok(b"two")]) as mock, pool_to(mock) as pool:
                assert await ask(pool) == b"ok"
                await mock.until(lambda: pool.idle == 0)
                exchange = await pool.send(GET)
                assert (exchange.reused, exchange.resent, await whole(exchange)) == (False, False, b"two")

    run(transcript)


@pytest.mark.parametrize("death", [reset(), close()])
def test_request_lost_to_the_keepalive_race_is_sent_again_once(run: Run, death: Any) -> None:
    """F53"""

    async def transcript() -> None:
        async with Mock([ok()], death, [ok(b"again")]) as mock, pool_to(mock) as pool:
            await ask(pool)
            exchange = await pool.send(POST)
            assert (exchange.reused, exchange.resent, await whole(exchange)) == (False, True, b"again")
            assert [(seen.connection, seen.body) for seen in mock.requests[2:]] == [(2, b'{"n":1}')]

        async with Mock([ok()], death) as mock, pool_to(mock) as pool:
            await ask(pool)
            with pytest.raises(ReplicaFailed):
                await pool.send(POST)
            assert len(mock.requests) == 3

    run(transcript)


@pytest.mark.parametrize(
    ("death", "body"),
    [
        ([wait(0.3), reset()], (b"x",)),  # it may have been at work
        ([send(b"H"), reset()], (b"x",)),  # it had begun to answer
        (reset(), None),  # an iterator cannot be read twice
    ],
)
def test_request_that_may_have_been_worked_on_is_not_sent_again(run: Run, death: Any, body: Any) -> None:
    """F53"""

    async def transcript() -> None:
        async with Mock([ok()], death, [ok()]) as mock, pool_to(mock) as pool:
            await ask(pool)
            with pytest.raises(ReplicaFailed):
                await pool.send(Outgoing(b"POST", b"/", [], body or items(b"x")))
            assert len(mock.requests) == 2

    run(transcript)


def test_lost_request_whose_second_connection_is_refused_is_not_called_never_sent(run: Run) -> None:
    async def transcript() -> None:
        async with Mock() as mock, pool_to(mock) as pool:

            async def die(peer: Peer) -> None:
                mock._server.close()
                await asyncio.sleep(0.01)
                await reset()(peer)

            mock._script = ([ok()], die)
            await ask(pool)
            with pytest.raises(ReplicaFailed) as failure:
                await pool.send(GET)
            assert not isinstance(failure.value, KeepAliveRace)

    run(transcript)


# Never sent.


def test_what_never_reached_the_replica_says_so(run: Run) -> None:
    async def transcript() -> None:
        async with Mock() as mock:
            plain = mock.url
            async with pool_to(plain.replace("http", "https"), connect=0.1) as pool:
                with pytest.raises(NeverSent):  # TLS to a plain port
                    await pool.send(GET)
        for url in (plain, "http://a..b:1", "http://127.0.0.1:1"):  # gone, no such name, refused
            async with pool_to(url) as pool:
                with pytest.raises(NeverSent):
                    await pool.send(GET)
                assert (pool.open_exchanges, pool._connecting) == (0, 0)
        await pool.aclose()
        with pytest.raises(NeverSent, match="closed"):
            await pool.send(GET)

    run(transcript)


@asynccontextmanager
async def silent_tls_port() -> AsyncIterator[tuple[str, asyncio.Queue[asyncio.StreamReader]]]:
    """Accepts and never shakes hands: connecting to it over TLS goes on for ever."""
    peers: asyncio.Queue[asyncio.StreamReader] = asyncio.Queue()
    writers: list[asyncio.StreamWriter] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.put_nowait(reader)
        writers.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", peers
    server.close()
    for writer in writers:
        writer.transport.abort()
    await asyncio.sleep(0)


async def gone(peer: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(5):
            while await peer.read(65536):
                pass
    except ConnectionError:
        pass
    return True


def test_connecting_has_its_own_timeout(run: Run) -> None:
    async def transcript() -> None:
        async with silent_tls_port() as (url, peers), pool_to(url, connect=0.05) as pool:
            with pytest.raises(NeverSent, match=r"within 0\.05 s"):
                await pool.send(GET)
            assert await gone(await peers.get())

    run(transcript)


def test_cancelled_connect_leaves_no_half_open_connection(run: Run) -> None:
    """F13"""

    async def transcript() -> None:
        async with silent_tls_port() as (url, peers), pool_to(url, max_connections=1) as pool:
            for _ in range(3):
                sending = asyncio.create_task(pool.send(GET))
                peer = await peers.get()
                assert pool._connecting == 1
                sending.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await sending
                assert pool._connecting == 0
                assert await gone(peer)

    run(transcript)


def certificate(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "replica")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(hours=1))
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "pem").write_bytes(secret + made.public_bytes(pem))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "pem")
    return server, ssl.create_default_context(cadata=made.public_bytes(pem).decode())


def test_replica_over_tls(run: Run, tmp_path: Path) -> None:
    async def transcript() -> None:
        server, client = certificate(tmp_path)
        async with Mock([ok(b"x" * 1_000_000)], ssl=server) as mock:
            async with pool_to(mock, ssl_context=client) as pool:
                for _ in range(2):
                    assert len(await ask(pool, POST)) == 1_000_000
                assert (mock.connections, mock.requests[1].body) == (1, b'{"n":1}')
            async with pool_to(mock) as strangers:  # the system's authorities do not know it
                with pytest.raises(NeverSent, match="certificate"):
                    await strangers.send(GET)

    run(transcript)


# Timeouts.


@pytest.mark.parametrize(
    "reply", [[hang()], [send(b"HTTP/1.1 200"), hang()], [EARLY, hang()], [FIVE, hang()], [CHUNKED, hang()]]
)
def test_first_byte_timeout_lasts_until_head_and_first_byte_of_body(run: Run, reply: Any) -> None:
    async def transcript() -> None:
        async with Mock(reply) as mock, pool_to(mock, first_byte=0.05) as pool:
            with pytest.raises(FirstByteTimeout):
                await ask(pool, POST)
            await mock.until(lambda: mock.left == [1] and mock.open == 0)
            assert pool.open_exchanges == 0

    run(transcript)


def test_idle_timeout_counts_only_while_somebody_waits(run: Run) -> None:
    async def transcript() -> None:
        async with Mock([CHUNKED, chunk(b"a"), hang()]) as mock, pool_to(mock, first_byte=0.05, idle=0.05) as pool:
            exchange = await pool.send(GET)
            await asyncio.sleep(0.6)  # two sweeps: a reader that takes its time
            assert await exchange.read() == b"a"
            assert pool.open_exchanges == 1
            with pytest.raises(IdleTimeout):
                await exchange.read()
            await mock.until(lambda: mock.left == [1])

    run(transcript)


async def deaf(peer: Peer) -> None:
    """Takes the head and reads no further, until there is nothing more to wait for."""
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(1.5)


@pytest.mark.parametrize("whole_body", [True, False])
def test_replica_that_stops_reading_the_request_is_timed_out(run: Run, whole_body: bool) -> None:
    async def transcript() -> None:
        async with Mock(deaf) as mock, pool_to(mock, first_byte=0.05) as pool:
            big = b"x" * 20_000_000
            body: Any = (big,) if whole_body else items(*[big[:1_000_000]] * 20)
            with pytest.raises(FirstByteTimeout, match="not taken"):
                await pool.send(Outgoing(b"POST", b"/", [], body))
            assert pool.open_exchanges == 0

    run(transcript)


# Uploads.


def test_iterator_is_asked_for_no_more_than_the_replica_takes(run: Run) -> None:
    async def transcript() -> None:
        asked = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal asked
            while True:
                asked += 1
                yield b"x" * 1_000_000

        async with Mock(deaf) as mock, pool_to(mock) as pool:
            body = endless()
            sending = asyncio.create_task(pool.send(Outgoing(b"POST", b"/", [], body)))
            await mock.until(lambda: asked > 1)
            await asyncio.sleep(0.1)
            assert asked < 20  # what the kernel's buffers hold
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            assert pool.open_exchanges == 0
            await body.aclose()  # type: ignore[attr-defined]

    run(transcript)


def test_early_answer_stops_the_upload(run: Run) -> None:
    async def transcript() -> None:
        never = asyncio.Event()
        refuse = status(413, length=0)
        async with Mock(refuse, refuse) as mock, pool_to(mock) as pool:
            for body in (items(b"a", gate=never), (b"x" * 20_000_000,)):
                exchange = await pool.send(Outgoing(b"POST", b"/", [], body))
                assert (exchange.status, await whole(exchange)) == (413, b"")
                assert (pool.open_exchanges, pool.idle) == (0, 0)

    run(transcript)


def test_death_in_the_middle_of_an_upload_surfaces_at_once(run: Run) -> None:
    async def transcript() -> None:
        async with Mock(reset()) as mock, pool_to(mock) as pool:
            with pytest.raises(ReplicaFailed):
                await pool.send(Outgoing(b"POST", b"/", [], items(b"a", gate=asyncio.Event())))

    run(transcript)


def test_iterator_that_fails_fails_the_request_with_its_own_error(run: Run) -> None:
    async def transcript() -> None:
        async with Mock() as mock, pool_to(mock) as pool:
            with pytest.raises(LookupError, match="client"):
                await pool.send(Outgoing(b"POST", b"/", [], items(b"a", then=LookupError("client has gone"))))
            await mock.until(lambda: mock.connections == 1 and mock.open == 0)
            assert pool.open_exchanges == 0

    run(transcript)


def test_body_of_the_wrong_type_leaves_nothing_behind(run: Run) -> None:
    async def transcript() -> None:
        async with Mock() as mock, pool_to(mock) as pool:
            with pytest.raises(TypeError):
                await pool.send(Outgoing(b"POST", b"/", [], ("text",)))  # type: ignore[arg-type]
            assert pool.open_exchanges == 0

    run(transcript)


# Cancelling and closing.


@pytest.mark.parametrize("reply", [[hang()], [FIVE, hang()], [FIVE, send(b"a"), hang()]])
def test_cancelled_request_is_cut_off_at_the_replica(run: Run, reply: Any) -> None:
    """F14"""

    async def transcript() -> None:
        async with Mock(reply) as mock, pool_to(mock) as pool:
            asks = [asyncio.create_task(ask(pool, POST)) for _ in range(20)]
            await mock.until(lambda: mock.current == 20)
            await asyncio.sleep(0.01)
            for each in asks:
                each.cancel()
            assert {type(each) for each in await asyncio.gather(*asks, return_exceptions=True)} == {
                asyncio.CancelledError
            }
            assert (pool.open_exchanges, pool.idle) == (0, 0)
            await mock.until(lambda: mock.open == 0 and sorted(mock.left) == list(range(1, 21)))

    run(transcript)


def test_cancelled_upload_is_cut_off_at_the_replica(run: Run) -> None:
    """F13"""

    async def transcript() -> None:
        async with Mock() as mock, pool_to(mock) as pool:
            sending = asyncio.create_task(pool.send(Outgoing(b"POST", b"/", [], items(b"a", gate=asyncio.Event()))))
            await mock.until(lambda: mock.current == 1)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            await mock.until(lambda: mock.open == 0 and mock.left == [1])

    run(transcript)


def test_aborts_under_contention_cost_no_slot(run: Run) -> None:
    """F13"""

    async def transcript() -> None:
        dice = random.Random(13)
        outcomes: dict[str, int] = {}

        async def one(pool: Pool) -> None:
            try:
                async with asyncio.timeout(dice.random() * 0.06):
                    await ask(pool, POST)
                outcome = "ok"
            except (TimeoutError, UpstreamError) as error:
                outcome = type(error).__name__
            outcomes[outcome] = outcomes.get(outcome, 0) + 1

        async with Mock([wait(0.005), *sse(1, 2, delay=0.005)]) as mock, pool_to(mock, max_connections=8) as pool:
            for _ in range(25):
                await asyncio.gather(*(one(pool) for _ in range(16)))
            assert outcomes.keys() == {"ok", "TimeoutError", "TooManyConnections"}
            assert (pool.open_exchanges, pool._connecting) == (0, 0)
            assert pool.idle <= 8
            assert await ask(pool) == b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n"
            await mock.until(lambda: mock.open == len(pool._sockets) == pool.idle)

    run(transcript)


def test_close_cuts_off_an_incomplete_reply_and_wakes_its_reader(run: Run) -> None:
    async def transcript() -> None:
        async with Mock([FIVE, send(b"a"), hang()]) as mock, pool_to(mock) as pool:
            exchange = await pool.send(GET)
            assert await exchange.read() == b"a"
            reading = asyncio.create_task(exchange.read())
            await asyncio.sleep(0)
            exchange.close()
            exchange.close()
            with pytest.raises(Truncated, match="closed by its reader"):
                await reading
            await mock.until(lambda: mock.left == [1] and mock.open == 0)
            assert pool.open_exchanges == 0

    run(transcript)


def test_closed_pool_leaves_no_socket_and_no_waiter(run: Run) -> None:
    async def transcript() -> None:
        async with Mock([ok()], [hang()], [FIVE, hang()]) as mock, pool_to(mock) as pool:
            await ask(pool)
            waiting = [asyncio.create_task(ask(pool)) for _ in range(2)]
            await mock.until(lambda: mock.current == 2)
            await asyncio.sleep(0.01)
            await pool.aclose()
            ends = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(end) for end in ends] == [ReplicaFailed, Truncated]
            assert pool._sockets == set()
            assert repr(pool) == f"<Pool {mock.url} [closed, 0 open, 0 idle, 0 connecting]>"
            await mock.until(lambda: mock.open == 0)

    run(transcript)


def test_sweep_runs_only_while_there_is_something_to_watch(run: Run) -> None:
    async def transcript() -> None:
        async with Mock() as mock, pool_to(mock, idle_expiry=0.0) as pool:
            assert pool._timer is None
            await ask(pool)
            assert pool._timer is not None
            await mock.until(lambda: pool._timer is None and mock.open == 0)

    run(transcript)
