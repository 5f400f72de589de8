"""The engines' own APIs: SGLang `/generate` (`text`, `input_ids`, `meta_info`), llama.cpp `/completion` (`prompt`)."""

from typing import Any

from router.core.keys import Sources
from router.core.request import Request, Usage
from router.dialects import reply
from router.dialects.dialect import Head
from router.dialects.reading import reading


class Generate:
    name = "generate"

    def read(self, head: Head, body: bytes | bytearray | memoryview, sources: Sources) -> Request:
        it = reading(self.name, head, body, sources)
        return it.request(it.over_prompt("text", "input_ids", "prompt", "token_ids"))

    def usage(self, first: bytes, last: bytes, event_stream: bool) -> Usage:
        return reply.tally((first, last), event_stream, _note).usage()

    def error(self, status: int, code: str, message: str) -> bytes:
        return reply.openai_error(code, message)

    def error_event(self, code: str, message: str) -> bytes:
        return b"data: " + reply.openai_error(code, message) + b"\n\n"


def _note(result: reply.Tally, event: dict[str, Any]) -> None:
    reply.openai_event(result, event)
    meta = event.get("meta_info")
    if isinstance(meta, dict):
        result.count(meta.get("prompt_tokens"), meta.get("cached_tokens"), meta.get("completion_tokens"))
        reason = meta.get("finish_reason")
        result.end(reason.get("type") if isinstance(reason, dict) else reason)
    if event.get("stop") is True:  # llama.cpp; its tokens_cached counts what the slot holds, not what was reused
        result.count(event.get("tokens_evaluated"), None, event.get("tokens_predicted"))
        result.end(event.get("stop_type"))
