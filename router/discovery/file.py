"""Replicas listed in a YAML file that is watched. What was once good stands until something better is written.

The file is a list of objects: `url`, and optionally `id`, `model`, `engine`, `labels`, `api_key_env`.
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from types import MappingProxyType

import yaml

from router.core.replica import Replica
from router.discovery.source import Replicas, SourceError, replica_url
from router.engines import ENGINES

_log = logging.getLogger(__name__)

POLL = 1.0  # seconds between looks: a change is seen at once to a person, and a look is one small read
SETTLE = 0.1  # seconds a new content must stay the same: editors truncate first and write later
MAX_BYTES = 4 << 20  # tens of thousands of replicas; more is not a replica file

_FIELDS = ("url", "id", "model", "engine", "labels", "api_key_env")
_ENGINES = ("auto", "none", *(engine.name for engine in ENGINES))
_NULL = "tag:yaml.org,2002:null"


async def file(path: str | Path, poll: float = POLL, settle: float = SETTLE) -> AsyncGenerator[Replicas, None]:
    """Yield the file's replicas whenever they change; `poll` and `settle` are seconds.

    Raises SourceError if the file is missing or wrong at the start. Later that is one warning per change.
    """
    path = Path(path)
    content = await _look(path)
    replicas = parse(_text(content, path), path)
    yield replicas
    while True:
        await asyncio.sleep(poll)
        seen = await _look(path)
        if seen == content:
            continue
        await asyncio.sleep(settle)
        if await _look(path) != seen:
            continue
        content = seen
        fresh = _parsed_or_none(seen, path)
        if fresh is not None and fresh != replicas:
            replicas = fresh
            yield replicas


async def _look(path: Path) -> bytes | str:
    """The content, or why there is none. Read whole each time: size and time stamp miss a quick second write."""
    return await asyncio.to_thread(_read, path)  # the file may lie on a network


def _read(path: Path) -> bytes | str:
    try:
        if not S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its other end, for ever
            return "not a regular file"
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as exc:
        return exc.strerror or type(exc).__name__
    return content if len(content) <= MAX_BYTES else f"larger than {MAX_BYTES} bytes"


def _parsed_or_none(content: bytes | str, path: Path) -> Replicas | None:
    try:
        replicas = parse(_text(content, path), path)
    except SourceError as exc:
        _log.warning("replica file is broken, the last good one stands: %s", exc)
        return None
    _log.info("replica file read: %s, %d replicas", path, len(replicas))
    return replicas


def _text(content: bytes | str, path: Path) -> str:
    if isinstance(content, str):
        raise SourceError(f"{path}: {content}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise SourceError(f"{path}: not UTF-8 at byte {exc.start}") from None


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where in the file something is, for messages."""

    path: Path
    line: int

    def error(self, what: str, field: str = "") -> SourceError:
        return SourceError(f"{self.path}:{self.line}: {field}{': ' if field else ''}{what}")


def parse(text: str, path: Path) -> Replicas:
    """The replicas of a file's text. Raises SourceError with path, line and field."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        what = getattr(exc, "problem", None) or "not YAML"
        raise _Spot(path, mark.line + 1 if mark else 1).error(what) from None
    except RecursionError:
        raise _Spot(path, 1).error("nested too deeply") from None
    if not isinstance(root, yaml.SequenceNode):
        line = root.start_mark.line + 1 if root else 1
        raise _Spot(path, line).error("expected a list of replicas; write [] for none")
    return _unique([(_replica(node, path), _spot(node, path)) for node in root.value])


def _unique(entries: list[tuple[Replica, _Spot]]) -> Replicas:
    seen: dict[str, tuple[Replica, _Spot]] = {}
    for replica, spot in entries:
        if replica.id in seen:
            first, where = seen[replica.id]
            raise spot.error(f"{replica.id} names {replica.url} and, on line {where.line}, {first.url}", "id")
        seen[replica.id] = (replica, spot)
    return tuple(replica for replica, _ in entries)


def _replica(node: yaml.Node, path: Path) -> Replica:
    spot = _spot(node, path)
    fields = _mapping(node, path, "")
    for name, (_, where) in fields.items():
        if name not in _FIELDS:
            raise where.error(f"unknown field, expected one of {', '.join(_FIELDS)}", name)
    if "url" not in fields:
        raise spot.error("is missing", "url")
    labels = _mapping(fields["labels"][0], path, "labels") if "labels" in fields else {}
    words = {name: _word(value, where, name) for name, (value, where) in fields.items() if name != "labels"}
    try:
        default, url = replica_url(words["url"])
    except ValueError as exc:
        raise fields["url"][1].error(str(exc), "url") from None
    _check(words, {name: where for name, (_, where) in fields.items()})
    return Replica(
        words.get("id") or default,
        url,
        words.get("model", ""),
        words.get("engine") or "auto",
        MappingProxyType({name: _word(value, where, f"labels.{name}") for name, (value, where) in labels.items()}),
        words.get("api_key_env", ""),
    )


def _check(words: dict[str, str], where: dict[str, _Spot]) -> None:
    engine, variable, name = words.get("engine"), words.get("api_key_env"), words.get("id")
    if engine and engine not in _ENGINES:
        raise where["engine"].error(f"unknown engine {engine}, expected one of {', '.join(_ENGINES)}", "engine")
    if variable and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        # The value is not shown: what is no variable's name may be the key itself.
        raise where["api_key_env"].error("must be the name of an environment variable", "api_key_env")
    if name and not re.fullmatch(r"[!-.0-~]{1,128}", name):
        raise where["id"].error("must be 1 to 128 printable ASCII characters without spaces and slashes", "id")


def _mapping(node: yaml.Node, path: Path, field: str) -> dict[str, tuple[yaml.Node, _Spot]]:
    spot = _spot(node, path)
    if field and node.tag == _NULL:
        return {}
    if not isinstance(node, yaml.MappingNode):
        raise spot.error("expected an object with fields" + ("" if field else ", for instance - url: http://…"), field)
    found: dict[str, tuple[yaml.Node, _Spot]] = {}
    for key, value in node.value:
        where = _spot(key, path)
        name = _word(key, where, field or "field name")
        if name in found:
            raise where.error("is there twice", f"{field}.{name}" if field else name)
        found[name] = (value, where)
    return found


def _word(node: yaml.Node, spot: _Spot, field: str) -> str:
    """A scalar as it is written: an id of 0123 or a model called `on` stays what it is."""
    if not isinstance(node, yaml.ScalarNode):
        raise spot.error("expected a single value", field)
    return "" if node.tag == _NULL else str(node.value)


def _spot(node: yaml.Node, path: Path) -> _Spot:
    return _Spot(path, node.start_mark.line + 1)
