"""OpenAI Responses: `input` is text or items, state may be kept by the engine and named by an id."""

import re
from typing import Any

import msgspec

from router.core.keys import Named, Sources
from router.core.request import Request, Usage
from router.dialects import reply
from router.dialects.dialect import Head
from router.dialects.reading import listed_or_text, reading

_RESPONSE_PATH = re.compile(r"/responses/([^/]+)")
_CONVERSATION_PATH = re.compile(r"/conversations/([\w.:-]{1,256})(?:/|\Z)")
_NOT_IDS = frozenset({"input_tokens", "compact"})  # /v1/responses/input_tokens asks about a prompt
_CALLS = frozenset({  # output items that the client must answer; the engine only says "completed"
    "function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "computer_call",
})  # fmt: skip


class Responses:
    name = "responses"

    def read(self, head: Head, body: bytes | bytearray | memoryview, sources: Sources) -> Request:
        it = reading(self.name, head, body, sources, listed="input")
        chain = it.over_messages(it.front("instructions"), listed_or_text(it.found, "input"))
        named = _named_in(head.path)
        earlier = _id_in(head.path) or it.found.text("previous_response_id")
        return it.request(chain, earlier or (named.value.decode() if named else ""), named)

    def usage(self, first: bytes, last: bytes, event_stream: bool) -> Usage:
        result = reply.tally((first, last), event_stream, _note)
        result.response_id = result.response_id or reply.id_in(first, b"resp") or reply.id_in(first, b"conv")
        return result.usage()

    def error(self, status: int, code: str, message: str) -> bytes:
        return reply.openai_error(code, message)

    def error_event(self, code: str, message: str) -> bytes:
        """`response.failed`: what clients of this family wait for. The id and the number of the event are not known."""
        failed = {
            "id": "",
            "object": "response",
            "created_at": 0,
            "status": "failed",
            "error": {"code": code, "message": message},
            "incomplete_details": None,
            "model": "",
            "output": [],
            "usage": None,
        }
        event = {"type": "response.failed", "sequence_number": 0, "response": failed}
        return b"event: response.failed\ndata: " + msgspec.json.encode(event) + b"\n\n"


def _named_in(path: str) -> Named | None:
    match = _CONVERSATION_PATH.search(path)
    return Named(match[1].encode(), "conversation_id") if match else None


def _id_in(path: str) -> str:
    match = _RESPONSE_PATH.search(path)
    return "" if match is None or match[1] in _NOT_IDS else match[1]


def _note(result: reply.Tally, event: dict[str, Any]) -> None:
    kind = event.get("type")
    response = event.get("response")
    held = response if isinstance(response, dict) else event
    result.failed = result.failed or kind in ("error", "response.failed") or bool(held.get("error"))
    reply.openai_usage(result, held)
    if held.get("object") in ("response", "conversation") and isinstance(held.get("id"), str):
        result.response_id = held["id"][:256]
    status = held.get("status")
    if status in ("completed", "incomplete", "failed", "cancelled") and "item" not in event:
        result.end(_finish(held, status))
        result.failed = result.failed or status == "failed"


def _finish(response: dict[str, Any], status: str) -> str:
    """Why it ended: the detail if it is incomplete, `tool_calls` if the client's tools are asked for."""
    details, output = response.get("incomplete_details"), response.get("output")
    if isinstance(details, dict) and isinstance(details.get("reason"), str):
        return str(details["reason"])
    items = output if isinstance(output, list) else []
    called = any(isinstance(item, dict) and item.get("type") in _CALLS for item in items)
    return "tool_calls" if called and status == "completed" else status
