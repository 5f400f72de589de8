"""What a replica may do to a request, one function per deed; each says whether its connection lives on.

An answer that is not meant says so in `x-says`: `damaged` (it proves nothing) or `failed` (a failure in a 200).
"""

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass
from random import Random

import msgspec
import xxhash


@dataclass(slots=True)
class Call:
    """One request at a replica, and the way back."""

    method: str
    target: str
    headers: dict[str, str]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    chance: Random
    patient: float
    body: bytes = b""
    usage: tuple[int, int] = (0, 0)  # tokens of the prompt, and cached ones

    async def read_body(self) -> None:
        """EOFError or ValueError if it is cut or not framed as it says."""
        if "transfer-encoding" in self.headers:
            parts = []
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                parts.append((await self.reader.readexactly(size + 2))[:-2])
            await self.reader.readexactly(2)
            self.body = b"".join(parts)
        elif length := int(self.headers.get("content-length", 0)):
            self.body = await self.reader.readexactly(length)

    @property
    def proof(self) -> str:
        return proof(self.headers["x-nonce"], self.body)

    @property
    def streams(self) -> bool:
        return b'"stream":true' in self.body[:200]

    async def write(self, data: bytes) -> None:
        if self.writer.is_closing():
            raise ConnectionResetError
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, status: int = 200, *fields: str) -> None:
        await self.write("\r\n".join((f"HTTP/1.1 {status} X", *fields, "", "")).encode())

    async def chunk(self, data: bytes) -> None:
        await self.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def when_left(self) -> bool:
        """Say nothing until the peer has gone, or for as long as a stall lasts."""
        try:
            async with asyncio.timeout(self.patient):
                while await self.reader.read(65536):
                    pass
        except TimeoutError:
            pass
        return False


def proof(nonce: str, body: bytes) -> str:
    """What an answer carries, so that the client knows it is its own."""
    return f"{nonce}:{xxhash.xxh3_64_hexdigest(body)}"


def reset(writer: asyncio.StreamWriter) -> None:
    """RST, as a crashed process or a cut network shows it."""
    sock = writer.get_extra_info("socket")
    if sock is not None:  # else it is closed already
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def noise(chance: Random) -> bytes:
    return chance.choice((chance.randbytes(200), b"HTTP/9.9 banana\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", b"\r\n" * 50))


def events(call: Call) -> list[bytes]:
    """A whole answer in the caller's dialect, with its proof in the first event and usage in the last."""
    prompt, cached = call.usage
    pieces = ["x" * call.chance.randrange(1, 40) for _ in range(call.chance.randrange(1, 8))]
    if call.headers.get("x-size"):
        pieces = ["x" * 16384] * int(call.headers["x-size"])
    if call.target == "/v1/messages":
        return _messages(call.proof, pieces, prompt, cached)
    if call.target == "/v1/responses":
        return _responses(call.proof, pieces, prompt, cached)
    usage = {"prompt_tokens": prompt, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": cached}}
    finish = call.chance.choice(("stop", "tool_calls"))
    deltas = [_data({"choices": [{"index": 0, "delta": {"content": text}}]}) for text in (call.proof, *pieces)]
    deltas.append(_data({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}))
    return [*deltas, _data({"choices": [], "usage": usage}), b"data: [DONE]\n\n"]


def _messages(proof: str, pieces: list[str], prompt: int, cached: int) -> list[bytes]:
    usage = {"input_tokens": prompt - cached, "cache_read_input_tokens": cached, "output_tokens": 1}
    start: dict[str, object] = {"type": "message_start", "message": {"id": proof, "usage": usage}}
    deltas: list[dict[str, object]] = [
        {"type": "content_block_delta", "index": 0, "delta": {"text": text}} for text in (proof, *pieces)
    ]
    ends: tuple[dict[str, object], ...] = (
        {"type": "message_delta", "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    )
    return [_event(each) for each in (start, *deltas, *ends)]


def _responses(proof: str, pieces: list[str], prompt: int, cached: int) -> list[bytes]:
    usage = {"input_tokens": prompt, "input_tokens_details": {"cached_tokens": cached}, "output_tokens": 9}
    deltas: list[dict[str, object]] = [
        {"type": "response.output_text.delta", "delta": text} for text in (proof, *pieces)
    ]
    end: dict[str, object] = {"type": "response.completed", "response": {"status": "completed", "usage": usage}}
    return [_event(each) for each in (*deltas, end)]


def _data(value: object) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _event(value: dict[str, object]) -> bytes:
    return b"event: " + str(value["type"]).encode() + b"\n" + _data(value)


def whole(call: Call) -> bytes:
    prompt, cached = call.usage
    usage = {"prompt_tokens": prompt, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": cached}}
    message = {"role": "assistant", "content": call.proof + "x" * (16384 * int(call.headers.get("x-size", 0)))}
    return msgspec.json.encode({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})


STREAM = ("content-type: text/event-stream", "transfer-encoding: chunked")
JSON = "content-type: application/json"


async def well(call: Call, pause: float = 0.0) -> bool:
    if not call.streams:
        await asyncio.sleep(pause)
        body = whole(call)
        await call.head(200, JSON, f"content-length: {len(body)}")
        await call.write(body if call.method != "HEAD" else b"")
        return True
    await call.head(200, *STREAM)
    for event in events(call):
        await asyncio.sleep(pause or call.chance.random() * 0.004)
        await call.chunk(event)
    await call.write(b"0\r\n\r\n")
    return True


async def slow(call: Call) -> bool:
    return await well(call, 0.05)


async def stall_before(call: Call) -> bool:
    return await call.when_left()


async def stall_inside(call: Call) -> bool:
    await _begin(call)
    return await call.when_left()


async def busy(call: Call) -> bool:
    return await _error(call, 503, f"retry-after: {call.chance.randrange(2)}")


async def limit(call: Call) -> bool:
    return await _error(call, 429, "retry-after: 1")


async def error_500(call: Call) -> bool:
    return await _error(call, call.chance.choice((500, 500, 400, 404, 501)))


async def error_502(call: Call) -> bool:
    return await _error(call, 502)


async def reset_before(call: Call) -> bool:
    raise asyncio.CancelledError  # the connection ends as if the process had died


async def reset_inside(call: Call) -> bool:
    await _begin(call)
    raise asyncio.CancelledError


async def close_inside(call: Call) -> bool:
    await _begin(call)
    return False


async def reset_after(call: Call) -> bool:
    await well(call)
    await asyncio.sleep(0.01)
    raise asyncio.CancelledError


async def failed_event(call: Call) -> bool:
    """As vLLM shows the death of its engine: an error event, then [DONE]."""
    await call.head(200, *STREAM, "x-says: failed")
    await call.chunk(_data({"error": {"message": "EngineCore encountered an issue", "code": 500}}))
    await call.chunk(b"data: [DONE]\n\n")
    await call.write(b"0\r\n\r\n")
    return True


async def short(call: Call) -> bool:
    """A length beyond what comes."""
    await call.head(200, JSON, "content-length: 1000", "x-says: damaged")
    await call.write(b'{"half":')
    return False


async def long(call: Call) -> bool:
    """More than the length says: the rest must not become anybody's answer."""
    await call.head(200, JSON, "content-length: 2", "x-says: damaged")
    await call.write(b"{}and this belongs to nobody")
    return True


async def twice(call: Call) -> bool:
    """A second answer that nobody asked for: whoever comes next must not get it."""
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\nx-says: damaged\r\n\r\n"
    await call.write(answer + b'{"a":1}' + answer.replace(b"damaged", b"smuggled") + b"nobodys")
    return True


async def garbage(call: Call) -> bool:
    await call.write(noise(call.chance))
    return False


async def bad_chunk(call: Call) -> bool:
    await call.head(200, *STREAM, "x-says: damaged")
    await call.chunk(b"data: {}\n\n")
    await call.write(b"zz\r\nnot a size\r\n")
    return call.chance.random() < 0.5


async def until_close(call: Call) -> bool:
    """HTTP/1.0's way: the end of the connection is the end of the answer."""
    await call.write(b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n" + whole(call))
    return False


async def odd_status(call: Call) -> bool:
    await call.write(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")
    await call.head(call.chance.choice((204, 301, 418, 999)), "content-length: 0", "x-says: damaged")
    return True


async def early(call: Call) -> bool:
    """An answer before the request has been read."""
    await call.head(400, JSON, "content-length: 2")
    await call.write(b"{}")
    return False


async def _begin(call: Call) -> None:
    if not call.streams:
        await call.head(200, JSON, "content-length: 5000", "x-says: damaged")
        await call.write(b'{"choices":')
        return
    all_events = events(call)
    await call.head(200, *STREAM)
    for event in all_events[: call.chance.randrange(1, len(all_events))]:
        await call.chunk(event)
    if call.chance.random() < 0.3:
        await call.chunk(b'data: {"choices":[{"ind')


async def _error(call: Call, status: int, *fields: str) -> bool:
    body = b'{"error":{"message":"scripted","type":"chaos"}}'
    await call.head(status, JSON, f"content-length: {len(body)}", *fields)
    await call.write(body if call.method != "HEAD" else b"")
    return True
