"""A request body as raw spans: one pass of a JSON parser, no deeper than the top level and one list.

Law: never raises. What a strict parser refuses (a byte order mark, NaN, half a surrogate pair, a cut end) is walked
by the standard library's scanner, as far as it goes: engines accept some of it, and a session may be named in it.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from json.decoder import scanstring  # type: ignore[attr-defined]  # typeshed leaves it out
from typing import NamedTuple

import msgspec

from router.core.chain import Part

# Every member that any dialect looks at.
MEMBERS = frozenset({
    "model", "stream", "cache_salt", "lora_path", "lora",
    "messages", "tools", "functions", "system", "instructions",
    "prompt", "suffix", "input", "text", "input_ids", "token_ids", "previous_response_id",
})  # fmt: skip
TOLERANT_BYTES = 4 * 1024 * 1024  # the slow walk builds objects: about 20 ms of the event loop at this size

_LARGE = 640 * 1024  # bytes: below it no list is long enough to matter, and counting costs as much as parsing
_MOST_COMMAS = 200_000  # of a session of some megabytes; a list cannot have more elements than that
_SPACE = re.compile(r"[ \t\r\n]*")
_BOM = b"\xef\xbb\xbf"


class Body(NamedTuple):
    """The top level of a body: its members as sent, and the elements of the list that holds the messages."""

    members: Mapping[str, Part]
    parts: Sequence[Part] = ()

    def text(self, name: str) -> str:
        """A member that should be a string; empty if it is anything else."""
        raw = self.members.get(name, b"")
        if raw[:1] != b'"':
            return ""
        try:
            return msgspec.json.decode(raw, type=str)
        except (msgspec.MsgspecError, ValueError):
            return ""


NOTHING = Body({})


def parse(body: bytes | bytearray | memoryview, listed: str, extra: frozenset[str]) -> Body:
    """The members named in MEMBERS and `extra`; `listed` is the one that is read as a list ("" for none)."""
    if body[:1] != b"{" and not bytes(body[:256]).lstrip(b" \t\r\n\xef\xbb\xbf").startswith(b"{"):
        return NOTHING
    if len(body) > _LARGE and bytes(body).count(b",") > _MOST_COMMAS:
        return _unlisted(body, listed)
    try:
        return _strict(body, listed, extra)
    except msgspec.ValidationError:
        return _loose(body, listed)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _tolerant(body, listed)


def _strict(body: bytes | bytearray | memoryview, listed: str, extra: frozenset[str]) -> Body:
    names, decoder = _decoder(listed, extra)
    *raws, parts = msgspec.structs.astuple(decoder.decode(body))
    members = {name: memoryview(raw) for name, raw in zip(names, raws, strict=True) if raw}
    return Body(members, [memoryview(part) for part in parts])


@lru_cache(maxsize=64)  # one for each pair of dialect and configured sources
def _decoder(listed: str, extra: frozenset[str]) -> tuple[tuple[str, ...], msgspec.json.Decoder[msgspec.Struct]]:
    names = tuple(sorted((MEMBERS | extra) - {listed}))
    fields = {f"m{i}": name for i, name in enumerate(names)}
    struct = msgspec.defstruct(
        "Top",
        [(key, msgspec.Raw, msgspec.Raw()) for key in fields]
        + [("parts", list[msgspec.Raw], msgspec.field(default_factory=list))],
        rename={**fields, "parts": listed or " "},  # a member of that name does not matter
        gc=False,
    )
    return names, msgspec.json.Decoder(struct)


def _unlisted(body: bytes | bytearray | memoryview, listed: str) -> Body:
    """A list of very many small elements is one part: an object for each would stop the loop for seconds."""
    try:
        raws = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return NOTHING
    members = {name: memoryview(raw) for name, raw in raws.items()}
    return Body(members, (members[listed],) if listed in members else ())


def _loose(body: bytes | bytearray | memoryview, listed: str) -> Body:
    """One member is not of the expected kind: all are still read."""
    try:
        raws = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _tolerant(body, listed)
    members = {name: memoryview(raw) for name, raw in raws.items()}
    return Body(members, elements(members.get(listed, b"")))


def elements(raw: Part) -> Sequence[Part]:
    """The elements of a JSON array; none if it is anything else."""
    if raw[:1] != b"[":
        return ()
    try:
        return [memoryview(part) for part in msgspec.json.decode(raw, type=list[msgspec.Raw])]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ()


def _tolerant(body: bytes | bytearray | memoryview, listed: str) -> Body:
    if len(body) > TOLERANT_BYTES:
        return NOTHING
    # Bytes that are not UTF-8 survive the way there and back.
    text = bytes(body).removeprefix(_BOM).decode("utf-8", "surrogateescape")
    members = {name: text[start:end] for name, start, end in _walk_object(text)}
    parts = _walk_array(members.get(listed, ""))
    return Body({name: _bytes(value) for name, value in members.items()}, [_bytes(part) for part in parts])


def _walk_object(text: str) -> Iterator[tuple[str, int, int]]:
    """(name, start, end) of each member. One that cannot be read to its end reaches to the end of the text."""
    at = _skip(text, _skip(text, 0) + 1)
    while text[at : at + 1] == '"':
        try:
            name, at = scanstring(text, at + 1, False)
        except ValueError:
            return
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            return
        start = _skip(text, at + 1)
        end = _value_end(text, start)
        yield name, start, len(text) if end is None else end
        if end is None:
            return
        at = _skip(text, end)
        if text[at : at + 1] != ",":
            return
        at = _skip(text, at + 1)


def _walk_array(text: str) -> Iterator[str]:
    if not text.startswith("["):
        return
    at = _skip(text, 1)
    while (end := _value_end(text, at)) is not None:
        yield text[at:end]
        at = _skip(text, end)
        if text[at : at + 1] != ",":
            return
        at = _skip(text, at + 1)


def _value_end(text: str, start: int) -> int | None:
    # parse_int: a number of 5,000 digits must not be converted.
    decoder = json.JSONDecoder(strict=False, parse_int=len, parse_float=len)
    try:
        return decoder.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
