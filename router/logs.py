"""What is written to standard error: one line per event, one line per request. Never prompt text, never a key."""

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping

from router.turn import Turn

_access = logging.getLogger("router.access")


class _Text(logging.Formatter):
    """`time level logger message name=value ...`"""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        fields = _fields(record)
        return line + "".join(f" {name}={_quoted(value)}" for name, value in fields.items() if value not in ("", None))


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


def _quoted(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if text.isprintable() and " " not in text and '"' not in text else json.dumps(text)


def configure(level: str, form: str) -> None:
    """Send everything to standard error, in one form; libraries from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("router").setLevel(level.upper())


def access_log(enabled: bool) -> Callable[[Turn, float], None]:
    """What is told of each request that ended; nothing where nobody would read it."""
    if enabled and _access.isEnabledFor(logging.INFO):
        return _write
    return lambda turn, seconds: None


def _write(turn: Turn, seconds: float) -> None:
    usage = turn.usage
    fields = {
        "method": turn.head.method.decode("latin-1"),
        "path": turn.head.path,  # without the query: some clients put their key there
        "status": turn.status,
        "outcome": turn.outcome.value,
        "replica": turn.replica,
        "reason": turn.decision.reason.value if turn.decision else "",
        "source": turn.request.source,
        "attempts": turn.attempts,
        "phase": "" if turn.complete else turn.phase,
        "seconds": round(seconds, 4),
        "first_byte_seconds": round(turn.first_byte - turn.started, 4) if turn.first_byte else None,
        "prompt_tokens": usage.prompt_tokens if usage else None,
        "cached_tokens": usage.cached_tokens if usage else None,
        "expected_cached_tokens": turn.decision.expected_cached if turn.decision else None,
        "completion_tokens": usage.completion_tokens if usage else None,
        "request_id": turn.request_id.decode("latin-1"),
        "error": turn.error,
    }
    _access.info("request", extra={"fields": fields})
