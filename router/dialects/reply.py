"""What a reply says of itself, from a window at its head and one at its tail.

Law: never raises, never needs the whole. A window may begin or end anywhere, with any line ends; what is compressed
or unknown yields an empty `Usage`.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from router.core.request import Usage

Event: TypeAlias = "dict[str, Any]"  # one JSON object of a reply, whatever the family
FAILED = frozenset({"abort", "error"})  # finish words of replies that broke: vLLM on SIGTERM, on an engine error

NEAR_BYTES = 8 * 1024  # of the tail: holds the last events nearly always, and costs a few us to split
LAST_EVENTS = 16  # from the end: usage, finish and [DONE], for several choices
_SPARE = 4  # events without an object: [DONE], comments
FIRST_EVENTS = 3  # from the start: message_start, response.created

_FIELD = re.compile(rb"(?:data|event|id|retry)?:|(?:data|event|id|retry)?$")
_ID = re.compile(rb'"id"\s*:\s*"([\w.:-]{1,256})"')
_SALVAGED = ("usage", "finish_reason", "stop_reason", "status", "incomplete_details", "meta_info", "timings")


@dataclass(slots=True)
class Tally:
    """A `Usage` in the making: later events overwrite what they know."""

    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    finish: str = ""
    failed: bool = False
    response_id: str = ""

    def count(self, prompt: object = None, cached: object = None, completion: object = None) -> None:
        self.prompt = _count(prompt, self.prompt)
        self.cached = _count(cached, self.cached)
        self.completion = _count(completion, self.completion)

    def end(self, word: object) -> None:
        if isinstance(word, str) and word:
            self.finish = word[:64]  # an engine's word is short; a stranger's may not be
            self.failed = self.failed or word in FAILED

    def usage(self) -> Usage:
        return Usage(self.prompt, self.cached, self.completion, self.finish, self.failed, self.response_id)


Note: TypeAlias = Callable[[Tally, Event], None]


def tally(windows: tuple[bytes, bytes], event_stream: bool, note: Note, at_head: bool = False) -> Tally:
    """Let `note` see the events that matter. `at_head`: this family also says something in its first events."""
    first, last = windows
    result = Tally()
    if not event_stream or first.lstrip()[:1] == b"{":  # announced as a stream, answered as an object
        _whole(last, result, note)
        return result
    if at_head:
        _note_all(events(first)[:FIRST_EVENTS], result, note)
    head = result.prompt
    _note_all(events(_end_of(last[-NEAR_BYTES:]))[-LAST_EVENTS:], result, note)
    if len(last) > NEAR_BYTES and not result.finish and not result.failed:
        _note_all(events(_end_of(last))[-LAST_EVENTS:], result, note)
    if result.prompt == head and not result.finish and (cut := _cut_line(last)):
        _note_all([salvage(cut)], result, note)
    return result


def openai_usage(result: Tally, event: Event) -> None:
    """`usage` under its names in chat, completions and Responses; llama.cpp's `timings` where there is none."""
    usage, timings = _object(event.get("usage")), _object(event.get("timings"))
    if timings and "cache_n" in timings:
        cached, new = _count(timings.get("cache_n"), None), _count(timings.get("prompt_n"), None)
        whole = cached + new if cached is not None and new is not None else None
        result.count(whole, cached, timings.get("predicted_n"))
    details = _object(usage.get("prompt_tokens_details")) or _object(usage.get("input_tokens_details"))
    result.count(
        usage.get("prompt_tokens", usage.get("input_tokens")),
        details.get("cached_tokens"),
        usage.get("completion_tokens", usage.get("output_tokens")),
    )


def openai_event(result: Tally, event: Event) -> None:
    """One chunk, or the whole object, of chat and completions."""
    openai_usage(result, event)
    result.failed = result.failed or bool(event.get("error"))
    result.end(event.get("finish_reason"))
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        result.end(_object(choice).get("finish_reason"))


def openai_error(code: str, message: str) -> bytes:
    """The error object of every OpenAI-like family."""
    return msgspec.json.encode({"error": {"message": message, "type": "router_error", "param": None, "code": code}})


def events(window: bytes) -> Sequence[Event]:
    """The JSON objects in the `data` of a window's events. A first line that was cut belongs to none."""
    found, data = list[Event](), list[bytes]()
    for line in (*window.splitlines(), b""):
        if line.startswith(b"data:"):
            data.append(line[5:].strip())
        elif not line and data:
            found.extend(_objects(data))
            data.clear()
    return found


def _end_of(window: bytes) -> bytes:
    """The last events of a window, and a few to spare: decoding the rest for nothing costs 40 us a stream."""
    if b"\r" in window:
        return window
    blocks = window.rsplit(b"\n\n", LAST_EVENTS + _SPARE)
    return b"\n\n".join(blocks[1:]) if len(blocks) > LAST_EVENTS + _SPARE else window


def salvage(cut: bytes) -> Event:
    """What can be told from a piece of JSON whose beginning is lost: the last of each member that speaks of the end."""
    text = cut.decode("utf-8", "replace")
    return {name: value for name in _SALVAGED if (value := _last_member(text, name)) is not None}


def id_in(first: bytes, prefix: bytes) -> str:
    """The first `id` in a window that starts with `prefix`."""
    return next((match[1].decode() for match in _ID.finditer(first) if match[1].startswith(prefix)), "")


def _whole(last: bytes, result: Tally, note: Note) -> None:
    """A body that is one JSON object. Longer than the window, its tail still has what comes at the end."""
    event = _decoded(last)
    if isinstance(event, dict):
        note(result, event)
    elif event is None and last:
        note(result, salvage(last))


def _note_all(found: Sequence[Event], result: Tally, note: Note) -> None:
    for event in found:
        note(result, event)


def _objects(data: Sequence[bytes]) -> Iterator[Event]:
    """One event's data is one object; where a server forgot the blank lines, each line is one."""
    joined = _decoded(b"\n".join(data))
    for value in (joined,) if joined is not None else map(_decoded, data):
        if isinstance(value, dict):
            yield value


def _cut_line(window: bytes) -> bytes:
    lines = window.splitlines()
    return b"" if not lines or _FIELD.match(lines[0]) else lines[0]


def _last_member(text: str, name: str) -> object:
    quoted, at = f'"{name}"', len(text)
    for _ in range(4):  # "usage" may also be somebody's string
        at = text.rfind(quoted, 0, at)
        if at < 0:
            return None
        rest = text[at + len(quoted) :].lstrip()
        if rest.startswith(":") and text[at - 1 : at] != "\\":
            try:
                value: object = json.JSONDecoder().raw_decode(rest[1:].lstrip())[0]
            except (ValueError, RecursionError):
                continue
            if value is not None:
                return value
    return None


def _decoded(raw: bytes) -> object:
    if raw[:1] != b"{" and raw.lstrip()[:1] != b"{":
        return None  # [DONE], a comment, text
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _object(value: object) -> Event:
    return value if isinstance(value, dict) else {}


def _count(value: object, default: int | None) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53
    return value if is_count and isinstance(value, int) else default
