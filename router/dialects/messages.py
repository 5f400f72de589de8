"""Anthropic messages: `system` and `tools` in front, breakpoints inside, usage at both ends of a stream."""

from typing import Any

import msgspec

from router.core.keys import Sources
from router.core.request import Request, Usage
from router.dialects import reply
from router.dialects.dialect import Head
from router.dialects.reading import reading


class Messages:
    name = "messages"

    def read(self, head: Head, body: bytes | bytearray | memoryview, sources: Sources) -> Request:
        it = reading(self.name, head, body, sources, listed="messages")
        return it.request(it.over_messages(it.front("system"), it.found.parts))

    def usage(self, first: bytes, last: bytes, event_stream: bool) -> Usage:
        counts = dict[str, Any]()

        def note(result: reply.Tally, event: dict[str, Any]) -> None:
            _note(result, event, counts)

        return reply.tally((first, last), event_stream, note, at_head=True).usage()

    def error(self, status: int, code: str, message: str) -> bytes:
        error = {"type": "router_error", "message": message, "code": code}
        return msgspec.json.encode({"type": "error", "error": error})

    def error_event(self, code: str, message: str) -> bytes:
        return b"event: error\ndata: " + self.error(500, code, message) + b"\n\n"


def _note(result: reply.Tally, event: dict[str, Any], counts: dict[str, Any]) -> None:
    """Usage comes in pieces, and the later piece may correct the earlier.

    `input_tokens` leaves out what was read from the cache or written to it: Anthropic's rule, kept by llama.cpp and,
    where it reports cached tokens, by vLLM (whose message_start still gives the whole prompt, without cache members).
    """
    result.failed = result.failed or event.get("type") == "error" or bool(event.get("error"))
    for holder in (event, event.get("message"), event.get("delta")):
        if not isinstance(holder, dict):
            continue
        result.end(holder.get("stop_reason"))
        usage = holder.get("usage")
        if isinstance(usage, dict):
            counts.update({name: value for name, value in usage.items() if _is_count(value)})
    if "input_tokens" in counts:
        read, written = counts.get("cache_read_input_tokens"), counts.get("cache_creation_input_tokens", 0)
        result.count(counts["input_tokens"] + (read or 0) + written, read)
    result.count(completion=counts.get("output_tokens"))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53
