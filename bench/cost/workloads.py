"""What is sent and what comes back: bodies and replies of each workload, built once as bytes.

Law: a request costs the load generator no work on its body. Each is two shared buffers around 16 digits that no other
request of the run has, so every one starts a conversation of its own (or goes on with one, in GROW).
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import msgspec

MODEL = "bench-model"
DIGITS = 16
_PLACE = "@" * DIGITS  # stands in a body where the digits go
_TURNS = 40  # of a session in GROW
_SYSTEM_BYTES, _TOOL_BYTES, _TOOLS = 14_000, 2_000, 18
_MESSAGES, _MESSAGE_BYTES = 86, 5_830  # 570 KB in all: a coding agent late in its session
_LINES = (  # text of an agent's context: words, quotes, newlines and braces, which a parser has to look at
    "    return self.items[key] if key in self.items else default",
    'logger.info("request %s finished in %.3f s", request_id, elapsed)',
    "The test fails because the fixture is torn down before the socket closes.",
    "diff --git a/src/main.py b/src/main.py",
    '{"path": "src/main.py", "line": 42, "kind": "error"}',
    "for name, value in sorted(headers.items()):",
    "I will look at the callers first, then change the signature.",
    "",
)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a replica answers. With `events` it is a stream of them, each written by itself; else `whole`."""

    whole: bytes = b""
    events: tuple[bytes, ...] = ()
    gap: float = 0.0  # seconds between two events; 0 = back to back

    @property
    def body(self) -> bytes:
        return b"".join(self.events) or self.whole


@dataclass(frozen=True, slots=True)
class Body:
    before: bytes
    after: bytes

    @property
    def size(self) -> int:
        return len(self.before) + DIGITS + len(self.after)


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    bodies: tuple[Body, ...]  # the turns of one session; a single one: every request is its own session
    reply: Reply
    connections: int = 16  # enough that no proxy waits for the load
    header: bool = False  # X-Session-ID names the session


def workloads() -> Mapping[str, Workload]:
    """By name, in the order of the table."""
    small, streamed = _small(stream=False), _small(stream=True)
    agent, tokens20 = (_agent(_MESSAGES),), stream_of(20, 142_000)
    all_of_them = (
        Workload("SMALL", (small,), whole_reply()),
        Workload("STREAM", (streamed,), stream_of(50, 256)),
        Workload("PACED", (streamed,), stream_of(50, 256, gap=0.010), connections=32),
        Workload("AGENT", agent, tokens20),
        Workload("AGENT_HEADER", agent, tokens20, header=True),
        Workload("GROW", tuple(_agent(_MESSAGES - 2 * (_TURNS - 1 - turn)) for turn in range(_TURNS)), tokens20),
    )
    return {workload.name: workload for workload in all_of_them}


def requests_of(workload: Workload, port: int) -> Callable[[int, int], list[bytes]]:
    """(session, turn) → the buffers of that request to `port`, head included."""
    heads = [_head(port, body.size, workload.header) for body in workload.bodies]
    bodies = workload.bodies

    def build(session: int, turn: int) -> list[bytes]:
        digits = b"%016x" % session
        body = bodies[turn]
        named = digits + b"\r\n\r\n" if workload.header else b""
        return [heads[turn] + named + body.before + digits, body.after]

    return build


def whole_reply() -> Reply:
    """About 480 bytes of JSON, as vLLM words them."""
    message = {"role": "assistant", "content": "The answer is forty-two. " * 6, "tool_calls": []}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "stop_reason": None}
    reply = {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion", "created": 1764000000, "model": MODEL}
    return Reply(whole=msgspec.json.encode({**reply, "choices": [choice], "usage": _usage(256, 38)}))


def stream_of(count: int, prompt: int, gap: float = 0.0) -> Reply:
    """`count` events, as vLLM sends them: tokens, the reason of the end, usage, the mark that ends it."""
    common = {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 1764000000}
    token = {"index": 0, "delta": {"content": " token"}, "finish_reason": None}
    end = {"index": 0, "delta": {"content": ""}, "finish_reason": "stop", "stop_reason": None}
    events = [_event({**common, "model": MODEL, "choices": [token]})] * (count - 3)
    events.append(_event({**common, "model": MODEL, "choices": [end]}))
    events.append(_event({**common, "model": MODEL, "choices": [], "usage": _usage(prompt, count - 3)}))
    return Reply(events=(*events, b"data: [DONE]\n\n"), gap=gap)


def _event(value: object) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _usage(prompt: int, completion: int) -> dict[str, object]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": None,
    }


def _head(port: int, size: int, header: bool) -> bytes:
    """What the OpenAI SDK sends, less its telemetry. With `header` the value and the end are still to come."""
    lines = (
        "POST /v1/chat/completions HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Accept-Encoding: identity",
        "Accept: application/json",
        "Content-Type: application/json",
        "User-Agent: bench",
        "Authorization: Bearer none",
        f"Content-Length: {size}",
    )
    return ("\r\n".join(lines) + ("\r\nX-Session-ID: " if header else "\r\n\r\n")).encode()


def _small(*, stream: bool) -> Body:
    messages = [
        {"role": "system", "content": _text(1, 400)},
        {"role": "user", "content": _PLACE + _text(2, 400)},
    ]
    return _body({"model": MODEL, "messages": messages, "stream": stream, "max_tokens": 64})


@cache
def _agent(messages: int) -> Body:
    """The head of one and the same session: shorter ones are what the longer ones begin with."""
    history: list[dict[str, object]] = [{"role": "system", "content": _text(3, _SYSTEM_BYTES)}]
    history += (_message(number) for number in range(1, messages))
    tools = [_tool(number) for number in range(_TOOLS)]
    return _body({"model": MODEL, "messages": history, "tools": tools, "stream": True, "max_tokens": 512})


def _message(number: int) -> dict[str, object]:
    text = _text(1_000 + number, _MESSAGE_BYTES)
    if number == 1:
        return {"role": "user", "content": _PLACE + text}
    if number % 2:
        return {"role": "tool", "tool_call_id": f"call_{number - 1}", "content": text}
    call = {"id": f"call_{number}", "type": "function", "function": {"name": "tool_3", "arguments": '{"path": "a.py"}'}}
    return {"role": "assistant", "content": text, "tool_calls": [call]}


def _tool(number: int) -> dict[str, object]:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    description = _text(100 + number, _TOOL_BYTES)
    return {
        "type": "function",
        "function": {"name": f"tool_{number}", "description": description, "parameters": parameters},
    }


def _body(value: object) -> Body:
    before, after = msgspec.json.encode(value).split(_PLACE.encode())
    return Body(before, after)


def _text(seed: int, size: int) -> str:
    draw = random.Random(seed)
    lines: list[str] = []
    left = size
    while left > 0:
        lines.append(draw.choice(_LINES))
        left -= len(lines[-1]) + 1
    return "\n".join(lines)[:size]
