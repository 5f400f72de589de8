"""What a simulated engine reads in a body and says in a reply: chat, completions and messages, streamed or whole.

Three things are asked by the caller, with names that real engines accept or ignore: how many tokens come back is
`max_tokens`, how the turn ends is `vllm_xargs.finish_reason`, and a usage chunk comes only on `include_usage`.
"""

import time
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from bench.prompt import Prompt, read_prompt
from bench.wire import Reply

_WORD = "tok "  # four bytes: one token, by the same arithmetic as the prompt
_DEFAULT_OUTPUT = 16  # the completions API's own default for max_tokens
_CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "run", "arguments": "{}"}}
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}  # OpenAI's words in Anthropic's


@dataclass(frozen=True, slots=True)
class Asked:
    path: str
    model: str
    prompt: Prompt
    output_tokens: int
    stream: bool
    include_usage: bool
    finish: str  # stop | length | tool_calls


@dataclass(frozen=True, slots=True)
class Answered:
    cached_tokens: int
    output_tokens: int  # so far


class Writer(Protocol):
    """Renders one reply. `tokens` is only called for streams."""

    def tokens(self, answered: Answered, sent: int) -> None: ...

    def finish(self, answered: Answered, sent: int) -> None: ...


def read_asked(path: str, body: dict[str, Any], block_tokens: int) -> Asked:
    """ValueError if the body holds no prompt, or asks for no tokens."""
    limit = body.get("max_tokens") or body.get("max_completion_tokens")
    output = int(limit or _DEFAULT_OUTPUT)
    if output < 1:
        raise ValueError("max_tokens must be at least 1")
    extra = body.get("vllm_xargs") or {}
    finish = str(extra.get("finish_reason") or ("length" if limit else "stop"))
    stream = bool(body.get("stream"))
    include_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    prompt = read_prompt(body, block_tokens)
    return Asked(path, str(body.get("model", "")), prompt, output, stream, include_usage, finish)


def error_body(path: str, status: int, kind: str, message: str) -> bytes:
    if path == "/v1/messages":
        return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": status}})


def reply_for(asked: Asked, reply: Reply, report_cached: bool) -> Writer:
    """The writer for what was asked. `report_cached` False leaves cached tokens out, as engines do by default."""
    if asked.path == "/v1/messages":
        return _Messages(asked, reply, report_cached)
    return _OpenAI(asked, reply, report_cached)


class _OpenAI:
    """Chat and plain completions."""

    def __init__(self, asked: Asked, reply: Reply, report_cached: bool) -> None:
        self._asked, self._reply, self._report_cached = asked, reply, report_cached
        self._chat = asked.path == "/v1/chat/completions"
        prefix = "chatcmpl" if self._chat else "cmpl"
        self._id = f"{prefix}-{time.monotonic_ns():x}"
        kind = "chat.completion" if self._chat else "text_completion"
        suffix = ".chunk" if asked.stream and self._chat else ""
        self._frame = {"id": self._id, "object": kind + suffix, "created": int(time.time()), "model": asked.model}

    def tokens(self, answered: Answered, sent: int) -> None:
        if not self._reply.started:
            self._reply.start()
            if self._chat:
                self._event([self._choice({"role": "assistant", "content": ""}, None)])
        if answered.output_tokens > sent:
            text = _WORD * (answered.output_tokens - sent)
            self._event([self._choice({"content": text} if self._chat else text, None)])

    def finish(self, answered: Answered, sent: int) -> None:
        if not self._asked.stream:
            self._whole(answered)
            return
        self.tokens(answered, sent)
        last: dict[str, Any] = {"tool_calls": [_CALL]} if self._asked.finish == "tool_calls" else {}
        self._event([self._choice(last if self._chat else "", self._asked.finish)])
        if self._asked.include_usage:
            self._event([], self._usage(answered))
        self._reply.chunk(b"data: [DONE]\n\n")
        self._reply.end()

    def _whole(self, answered: Answered) -> None:
        text = _WORD * answered.output_tokens
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if self._asked.finish == "tool_calls":
            message["tool_calls"] = [_CALL]
        choice = {"index": 0, "finish_reason": self._asked.finish}
        choice |= {"message": message} if self._chat else {"text": text}
        self._reply.whole(200, msgspec.json.encode(self._frame | {"choices": [choice], "usage": self._usage(answered)}))

    def _choice(self, delta: object, finish: str | None) -> dict[str, Any]:
        return {"index": 0, "delta" if self._chat else "text": delta, "finish_reason": finish}

    def _usage(self, answered: Answered) -> dict[str, Any]:
        prompt = self._asked.prompt.tokens
        made = answered.output_tokens
        usage: dict[str, Any] = {"prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made}
        if self._report_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": answered.cached_tokens}
        return usage

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> None:
        event = self._frame | {"choices": choices}
        if usage is not None:
            event["usage"] = usage
        self._reply.chunk(b"data: " + msgspec.json.encode(event) + b"\n\n")


class _Messages:
    """Anthropic's messages: input_tokens leaves out what was read from the cache."""

    def __init__(self, asked: Asked, reply: Reply, report_cached: bool) -> None:
        self._asked, self._reply, self._report_cached = asked, reply, report_cached
        self._id = f"msg_{time.monotonic_ns():x}"

    def tokens(self, answered: Answered, sent: int) -> None:
        if not self._reply.started:
            self._reply.start()
            message = self._message([], None, Answered(answered.cached_tokens, 0))
            self._event("message_start", message=message)
            self._event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        if answered.output_tokens > sent:
            text = _WORD * (answered.output_tokens - sent)
            self._event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    def finish(self, answered: Answered, sent: int) -> None:
        reason = _STOP_REASONS.get(self._asked.finish, self._asked.finish)
        if not self._asked.stream:
            content = [{"type": "text", "text": _WORD * answered.output_tokens}]
            self._reply.whole(200, msgspec.json.encode(self._message(content, reason, answered)))
            return
        self.tokens(answered, sent)
        self._event("content_block_stop", index=0)
        delta = {"stop_reason": reason, "stop_sequence": None}
        self._event("message_delta", delta=delta, usage=self._usage(answered))
        self._event("message_stop")
        self._reply.end()

    def _message(self, content: list[Any], reason: str | None, answered: Answered) -> dict[str, Any]:
        message = {"id": self._id, "type": "message", "role": "assistant", "content": content}
        return message | {"model": self._asked.model, "stop_reason": reason, "usage": self._usage(answered)}

    def _usage(self, answered: Answered) -> dict[str, Any]:
        prompt, cached = self._asked.prompt.tokens, answered.cached_tokens
        if not self._report_cached:
            return {"input_tokens": prompt, "output_tokens": answered.output_tokens}
        usage = {"input_tokens": prompt - cached, "output_tokens": answered.output_tokens}
        return usage | {"cache_creation_input_tokens": 0, "cache_read_input_tokens": cached}

    def _event(self, kind: str, **fields: object) -> None:
        data = msgspec.json.encode({"type": kind} | fields)
        self._reply.chunk(b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n")
