"""Replicas that answer from precomputed bytes: as little work as an HTTP/1.1 server can do.

They run in the process of the load generator: both sit on the same core anyway, and one loop saves the switches.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import httptools
import msgspec

from bench.cost.workloads import MODEL, Reply

_HEAD = b"HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
_STREAM_HEAD = _HEAD + b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_LAST = b"0\r\n\r\n"
_HISTOGRAMS, _BUCKETS = 24, 26  # with the gauges about as many lines as a vLLM page has: scrapes cost what they cost
_BLOCKS = 1_000_000_000  # of KV cache: more than all sessions of a run, so nobody's admission control holds any


@dataclass(slots=True)
class Mock:
    """What all replicas of a run share: the reply to give next, and what was asked so far."""

    reply: Reply = field(default_factory=Reply)
    ports: tuple[int, ...] = ()
    served: dict[int, int] = field(default_factory=dict)  # port → completions asked

    def answer(self, reply: Reply) -> None:
        self.reply = reply


@asynccontextmanager
async def running_replicas(count: int) -> AsyncIterator[Mock]:
    """Replicas on free ports of the loopback, until the block ends."""
    mock, loop = Mock(), asyncio.get_running_loop()
    servers = [
        await loop.create_server(lambda: _Conversation(mock), "127.0.0.1", 0, backlog=1024) for _ in range(count)
    ]
    mock.ports = tuple(server.sockets[0].getsockname()[1] for server in servers)
    mock.served = dict.fromkeys(mock.ports, 0)
    try:
        yield mock
    finally:
        for server in servers:
            server.close()


class _Conversation(asyncio.Protocol):
    """One connection. Bodies are skipped inside the parser: nothing here asks for them."""

    def __init__(self, mock: Mock) -> None:
        self._mock = mock
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._port = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._port = transport.get_extra_info("sockname")[1]
        self._fd: int = transport.get_extra_info("socket").fileno()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:  # some routers try HTTP/2 first; a vLLM hangs up, too
            self._transport.abort()

    def on_url(self, url: bytes) -> None:
        self._path = url

    def on_message_complete(self) -> None:
        if self._parser.get_method() != b"POST" or b"/tokenize" in self._path:
            self._transport.write(_page(self._path))
            return
        self._mock.served[self._port] += 1
        reply = self._mock.reply
        if not reply.events:
            self._transport.write(_framed(b"application/json", reply.whole))
        elif reply.gap:
            self._write(_STREAM_HEAD)
            self._tick(reply, 0)
        else:
            self._write(_STREAM_HEAD)
            for event in reply.events:
                self._write(b"%x\r\n%b\r\n" % (len(event), event))
            self._write(_LAST)

    def _tick(self, reply: Reply, index: int) -> None:
        event = reply.events[index]
        self._write(b"%x\r\n%b\r\n" % (len(event), event))
        if index + 1 == len(reply.events):
            self._write(_LAST)
            return
        self._timer = asyncio.get_running_loop().call_later(reply.gap, self._tick, reply, index + 1)

    def _write(self, data: bytes) -> None:
        """A system call of its own: the transport would gather what is written within one callback."""
        if not self._transport.get_write_buffer_size():
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                pass
            except OSError:
                return  # the proxy hung up; the transport will say so
        if data:
            self._transport.write(data)


def _framed(kind: bytes, body: bytes) -> bytes:
    return _HEAD + b"content-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(body), body)


def _page(path: bytes) -> bytes:
    """What routers ask replicas for besides completions: health, models, metrics, what the engine is."""
    if path.startswith(b"/metrics"):
        return _framed(b"text/plain; version=0.0.4", _metrics())
    model = {"id": MODEL, "object": "model", "created": 1764000000, "owned_by": "vllm", "max_model_len": 262_144}
    known = {"model_path": MODEL, "served_model_name": MODEL, "is_generation": True, "version": "0.32.0"}
    return _framed(b"application/json", msgspec.json.encode({"object": "list", "data": [model], **known}))


def _metrics() -> bytes:
    labels = f'engine="0",model_name="{MODEL}"'
    lines = [
        f"vllm:num_requests_running{{{labels}}} 3.0",
        f"vllm:num_requests_waiting{{{labels}}} 0.0",
        f"vllm:kv_cache_usage_perc{{{labels}}} 0.25",
        f"vllm:prefix_cache_queries_total{{{labels}}} 1000000.0",
        f"vllm:prefix_cache_hits_total{{{labels}}} 900000.0",
        f'vllm:cache_config_info{{{labels},block_size="16",num_gpu_blocks="{_BLOCKS}"}} 1.0',
    ]
    for number in range(_HISTOGRAMS):
        lines += [f"# HELP vllm:h{number} Seconds of something.", f"# TYPE vllm:h{number} histogram"]
        lines += (f'vllm:h{number}_bucket{{{labels},le="{bucket}.0"}} 12.0' for bucket in range(_BUCKETS))
        lines += [f"vllm:h{number}_count{{{labels}}} 12.0", f"vllm:h{number}_sum{{{labels}}} 30.5"]
    return ("\n".join(lines) + "\n").encode()
