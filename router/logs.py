"""What is written to standard error: one line per event, one line per request. Never prompt text, never a key."""

import asyncio
import json
import logging
import re
import sys
import time
from collections.abc import Callable, Mapping
from functools import lru_cache

import msgspec

from router.turn import Turn

FLUSH_SECONDS = 0.05  # nobody reads faster; a write per request would cost a system call each
_PLAIN = re.compile(r"[!#-~]+")  # printable, no space, no quote: needs no quoting


class _Text(logging.Formatter):
    """`time level logger message name=value ...`"""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        return line + _pairs(_fields(record))


class _Json(logging.Formatter):
    """One object a line; the fields of a request are its members."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields: Mapping[str, object] = record.__dict__.get("fields", {})
    return fields


def configure(level: str, form: str) -> None:
    """Send everything to standard error, in one form; libraries from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("router").setLevel(level.upper())


class AccessLog:
    """One line per request that ended, in the same form as the rest.

    Written past the logging module, whose machinery costs as much as choosing a replica (90 us a line against 8),
    and in batches; a line is at most `FLUSH_SECONDS` late.
    """

    def __init__(self, level: str, form: str, write: Callable[[str], object]) -> None:
        self._enabled = level in ("debug", "info")
        self._line = _json_line if form == "json" else _text_line
        self._write = write
        self._lines: list[str] = []

    def __call__(self, turn: Turn, seconds: float) -> None:
        if not self._enabled:
            return
        if not self._lines:
            asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)
        self._lines.append(self._line(time.time(), turn, seconds))

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            self._write("".join(lines))


def _json_line(now: float, turn: Turn, seconds: float) -> str:
    usage, decision = turn.usage, turn.decision
    line = {
        "time": _stamp(now),
        "level": "info",
        "logger": "router.access",
        "message": "request",
        "method": turn.head.method.decode("latin-1"),
        "path": turn.head.path,  # without the query: some clients put their key there
        "status": turn.status,
        "outcome": turn.outcome.value,
        "replica": turn.replica,
        "reason": decision.reason.value if decision else "",
        "source": turn.request.source,
        "attempts": turn.attempts,
        "phase": "" if turn.complete else turn.phase,
        "seconds": round(seconds, 4),
        "first_byte_seconds": round(turn.first_byte - turn.started, 4) if turn.first_byte else None,
        "prompt_tokens": usage.prompt_tokens if usage else None,
        "cached_tokens": usage.cached_tokens if usage else None,
        "expected_cached_tokens": decision.expected_cached if decision else None,
        "completion_tokens": usage.completion_tokens if usage else None,
        "request_id": turn.request_id.decode("latin-1"),
        "error": turn.error,
    }
    return msgspec.json.encode(line).decode() + "\n"


def _text_line(now: float, turn: Turn, seconds: float) -> str:
    """The same fields, those that say nothing left out. Written out: a loop over them costs three times as much."""
    usage, decision, head, outcome = turn.usage, turn.decision, turn.head, turn.outcome
    line = f"{_stamp(now)} INFO    router.access request method={_word(head.method)} path={_kept(head.path)}"
    line += f" status={turn.status} outcome={outcome}"
    if decision is not None:
        line += f" replica={_kept(decision.replica or '')} reason={decision.reason}"
    line += f" source={_kept(turn.request.source)} attempts={turn.attempts}"
    if not turn.complete:
        line += f" phase={turn.phase}"
    line += f" seconds={seconds:.4f}"
    if turn.first_byte:
        line += f" first_byte_seconds={turn.first_byte - turn.started:.4f}"
    if usage is not None:
        line += _number("prompt_tokens", usage.prompt_tokens) + _number("cached_tokens", usage.cached_tokens)
    if decision is not None:
        line += f" expected_cached_tokens={decision.expected_cached}"
    if usage is not None:
        line += _number("completion_tokens", usage.completion_tokens)
    line += f" request_id={_word(turn.request_id)}"
    return f"{line} error={_quoted(turn.error)}\n" if turn.error else f"{line}\n"


def _number(name: str, value: int | None) -> str:
    return "" if value is None else f" {name}={value}"


def _word(raw: bytes) -> str:
    text = raw.decode("latin-1")
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _stamp(now: float) -> str:
    whole = int(now)
    return f"{_second(whole)}.{int((now - whole) * 1000):03d}Z"


@lru_cache(maxsize=2)
def _second(whole: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))


def _pairs(fields: Mapping[str, object]) -> str:
    return "".join(
        [
            f" {name}={value if type(value) is int else _quoted(value)}"
            for name, value in fields.items()
            if value not in ("", None)
        ]
    )


def _kept(text: str) -> str:
    """Paths, replicas and sources come again and again."""
    return _quoted_once(text) if len(text) <= 256 else _quoted(text)


@lru_cache(maxsize=1024)
def _quoted_once(text: str) -> str:
    return _quoted(text)


def _quoted(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
