"""Clients of all kinds on one lane each: patient and rude ones, whole and chunked uploads, quick and slow readers.

Every request ends in one `Ending`: what the client saw, and so which outcomes the router may have entered for it.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from random import Random

import msgspec

from bench.chaos.misdeeds import proof, reset

ANSWER_SECONDS = 30.0  # beyond it the request has no terminal answer, which is a violation
ANY = frozenset(("ok", "client_error", "replica_error", "truncated", "client_gone", "rejected", "timeout"))
_BROKE = frozenset(("truncated", "timeout"))
_PATHS = ("/v1/chat/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions")


@dataclass(slots=True)
class Session:
    """One conversation; `home` is where its last good answer came from, "" if that is not known."""

    id: str
    named: bool
    path: str
    turns: int
    messages: list[dict[str, str]] = field(default_factory=list)
    home: str = ""
    busy: bool = False


@dataclass(slots=True)
class Ending:
    """How one request ended for its client. `reached`: the router must have entered it; None: it may have."""

    nonce: str
    possible: frozenset[str]
    reached: bool | None = True
    status: int = 0
    replica: str = ""
    reason: str = ""
    wrong: str = ""  # a violation that the client itself saw
    what: str = ""  # for people
    at: float = 0.0


@dataclass(slots=True)
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    clean: bool = False


class Left(Exception):
    """The client hangs up now."""


class Lane:
    """One client at a time, on a connection that it keeps as long as both sides like."""

    def __init__(self, port: int, chance: Random) -> None:
        self._port, self._chance = port, chance
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._count = 0

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def turn(self, session: Session, nonce: str) -> Ending:
        """One request of the session, in whatever way the die falls."""
        chance = self._chance
        body, fields = _request(session, chance)
        rude = chance.choices(("", "head", "upload", "wait", "stream"), (84, 2, 4, 5, 5))[0]
        ending = Ending(nonce, ANY, at=time.time())
        answer = Answer()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._ask(session.path, [*fields, f"x-nonce: {nonce}", f"x-request-id: {nonce}"], body, rude)
                await self._read(answer, rude)
            _judge(ending, answer, nonce, body)
        except Left:
            ending.reached, ending.what = self._hang_up(rude), f"left: {rude}"
        except TimeoutError:
            ending.wrong = f"no end within {ANSWER_SECONDS:g} s (status {answer.status})"
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            ending.what = f"no answer: {error!r}"
            ending.wrong = f"a connection that ended without an answer ({rude or 'patient'}): {error!r}"
        if ending.wrong or not answer.clean or chance.random() < 0.2 or answer.headers.get("connection") == "close":
            self.close()
        return ending

    def _hang_up(self, rude: str) -> bool | None:
        """FIN or RST; after RST the router may never have read what was sent."""
        assert self._writer is not None
        orderly = self._chance.random() < 0.5
        if orderly:
            self._writer.close()
        else:
            reset(self._writer)
        self._reader = self._writer = None
        if rude == "head":
            return False
        return True if orderly or rude == "stream" else None

    async def _ask(self, path: str, fields: list[str], body: bytes, rude: str) -> None:
        chance = self._chance
        if self._writer is None or self._writer.is_closing():
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**17)
        chunked = chance.random() < 0.25
        framing = "transfer-encoding: chunked" if chunked else f"content-length: {len(body)}"
        head = "\r\n".join((f"POST {path} HTTP/1.1", "host: router", *fields, framing, "", "")).encode()
        if rude == "head":
            await self._write(head[: chance.randrange(1, len(head) - 1)])
            raise Left
        await self._write(head)
        step = chance.choice((len(body), 4096, max(len(body) // 3, 1)))
        pause = chance.choice((0.0, 0.0, 0.0, 0.002))
        for start in range(0, len(body), step):
            part = body[start : start + step]
            if rude == "upload" and start + step >= len(body):
                await self._write(part[: len(part) // 2] if not chunked else b"%x\r\n" % len(part))
                raise Left
            await self._write(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
            await asyncio.sleep(pause)
        if chunked:
            await self._write(b"0\r\n\r\n")
        if rude == "wait":
            await asyncio.sleep(chance.random() ** 2 * 0.5)
            raise Left

    async def _write(self, data: bytes) -> None:
        """An answer may come, and the connection end, before all is sent: then the answer counts."""
        assert self._writer is not None
        if self._writer.is_closing():
            return
        self._writer.write(data)
        with contextlib.suppress(OSError):
            await self._writer.drain()

    async def _read(self, answer: Answer, rude: str) -> None:
        assert self._reader is not None
        reader = self._reader
        while answer.status < 200:
            raw = await reader.readuntil(b"\r\n\r\n")
            line, *lines = raw[:-4].decode("latin-1").split("\r\n")
            answer.status = int(line.split(" ")[1])
            pairs = (each.partition(":") for each in lines)
            answer.headers = {name.lower(): value.strip() for name, _, value in pairs}
        slow = self._chance.random() < 0.05
        with contextlib.suppress(OSError, EOFError):
            await self._body(reader, answer, rude, slow)
            answer.clean = True

    async def _body(self, reader: asyncio.StreamReader, answer: Answer, rude: str, slow: bool) -> None:
        if answer.status in (204, 304):
            return
        if "transfer-encoding" in answer.headers:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                await self._piece(reader, answer, size, rude, slow)
                await reader.readexactly(2)
            await reader.readexactly(2)
            return
        left = int(answer.headers["content-length"])
        while left:
            left -= await self._piece(reader, answer, min(left, 65536), rude, slow)

    async def _piece(self, reader: asyncio.StreamReader, answer: Answer, size: int, rude: str, slow: bool) -> int:
        answer.body += await reader.readexactly(size)
        if rude == "stream":
            raise Left
        if slow:
            await asyncio.sleep(0.02)
        return size


def _request(session: Session, chance: Random) -> tuple[bytes, list[str]]:
    """The next body of the session, and its fields."""
    text = chance.choice(("a short word ", "a longer line of the conversation ")) * chance.randrange(1, 60)
    session.messages.append({"role": "user", "content": f"{len(session.messages)} {session.id} {text}"})
    stream = {"stream": True} if chance.random() < 0.7 else {}
    if session.path == "/v1/responses":
        content: dict[str, object] = {"input": session.messages}
    elif session.path == "/v1/completions":
        # Long from the start: below OPENING_BLOCK blocks a prompt that grows may move, and is cheap to move.
        content = {"prompt": f"{session.id} " * 1500 + "\n".join(each["content"] for each in session.messages)}
    elif session.path == "/v1/audio/transcriptions":
        sizes = (1000, 200_000, 1_500_000, 5_000_000)  # held whole, passed through, beyond the limit
        return chance.randbytes(chance.choice(sizes)), ["content-type: audio/wav", f"x-session-id: {session.id}"]
    else:
        content = {"messages": session.messages}
    fields = ["content-type: application/json"]
    if session.named:
        fields.append(f"x-session-id: {session.id}")
    if chance.random() < 0.02:
        fields.append(f"x-size: {chance.randrange(10, 60)}")
    return msgspec.json.encode({"model": "m", **stream, **content}), fields


def new_session(name: str, chance: Random) -> Session:
    path = "/v1/audio/transcriptions" if chance.random() < 0.02 else chance.choice(_PATHS)
    # A completion's growing prompt has no parts that a conversation could be known by.
    named = path in ("/v1/completions", "/v1/audio/transcriptions") or chance.random() < 0.6
    return Session(name, named, path, chance.randrange(4, 20))


def _judge(ending: Ending, answer: Answer, nonce: str, body: bytes) -> None:
    """Which outcomes fit what came."""
    ending.status = answer.status
    ending.replica = answer.headers.get("x-router-replica", "")
    ending.reason = answer.headers.get("x-router-reason", "")
    says = answer.headers.get("x-says", "")
    code = _own_code(bytes(answer.body[-2000:]))
    if says == "smuggled":
        ending.wrong = "an answer that nobody asked for"
    if not answer.clean:
        ending.possible, ending.what = _BROKE, "broke off"
    elif code:
        ending.possible, ending.what = _of_own(answer, code), code
    elif answer.status >= 400:
        ending.possible, ending.what = frozenset((_of_status(answer.status),)), str(answer.status)
    elif says == "failed":
        ending.possible, ending.what = frozenset(("replica_error",)), "failed inside"
    else:
        ending.possible, ending.what = frozenset(("ok",)), "ok"
        if not says and answer.status == 200 and proof(nonce, body).encode() not in answer.body:
            ending.wrong = f"somebody else's answer, or to another body: {bytes(answer.body[:200])!r}"


def _of_own(answer: Answer, code: str) -> frozenset[str]:
    if answer.status == 200:  # the last event of a stream that broke
        return frozenset(("timeout",)) if code.endswith("_timeout") else frozenset(("truncated",))
    if code == "no_replica" and b"cannot be reached" in answer.body:
        return frozenset(("replica_error",))
    if code.endswith("_timeout"):
        return frozenset(("timeout",))
    if code == "replica_failed":
        return frozenset(("replica_error",))
    return frozenset(("rejected",)) if answer.status == 503 else frozenset(("client_error",))


def _of_status(status: int) -> str:
    if status in (429, 503):
        return "rejected"
    return "replica_error" if status >= 500 and status != 501 else "client_error"


def _own_code(tail: bytes) -> str:
    """The code of a router_error at the end of an answer; "" if there is none."""
    if b'"router_error"' not in tail and b'"response.failed"' not in tail:
        return ""
    _, found, rest = tail.rpartition(b'"code":"')
    return rest.partition(b'"')[0].decode() if found else ""
