"""Who a session is: which header or body member names it, and how that name becomes a key.

Law: a key is a pure function of the model, the salt, the LoRA and the name that the client chose; never of a request
id, a trace id, a credential or an address.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

import msgspec
from xxhash import xxh3_128

Raw: TypeAlias = "bytes | memoryview | msgspec.Raw"  # one JSON value as it was sent
Headers: TypeAlias = Sequence[tuple[bytes, bytes]]  # names in lower case

# The order is the precedence: what names exactly one session comes before what may name a group.
STRONG = (
    "header:x-session-id",  # vLLM 0.32 and most clients
    "header:x-session-affinity",
    "header:x-claude-code-session-id",
    "header:x-dynamo-session-id",
    "header:x-smg-routing-key",  # SGLang
    "header:session-id",
    "header:session_id",  # Codex
    "header:thread-id",
    "header:x-litellm-session-id",
    "body:session_id",
    "body:session_params.session_id",  # SGLang
    "body:conversation",  # Responses: an id or {"id": ...}
    "body:metadata.session_id",
    "claude:metadata.user_id",  # Claude Code hides the session in a longer value
)
# May be one value for a whole application: they choose where the ring starts, never a binding.
HINTS = ("body:prompt_cache_key", "body:user")

MASK_64 = 0xFFFF_FFFF_FFFF_FFFF
_SPEC = re.compile(r"(header|body|claude):([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_CLAUDE = re.compile(r"_session_([0-9A-Za-z-]+)\Z")
_RESERVED = {"conversation": "conversation_id", "none": "none_id"}  # words that already mean something in `source`
_LONGEST = 64 * 1024  # bytes of a member that may be looked into: an id is short, a flood is not parsed


class Place(Enum):
    """Where a rule looks."""

    HEADER = "header"
    BODY = "body"
    CLAUDE = "claude"  # a body member of which only the session part counts


@dataclass(frozen=True, slots=True)
class Rule:
    """One compiled source. `word` is what metrics say when it answered."""

    place: Place
    path: tuple[str, ...]
    header: bytes
    word: str


class Named(NamedTuple):
    """A name that a client gave, and the source it came from."""

    value: bytes
    word: str


@dataclass(frozen=True, slots=True)
class Sources:
    """Where to look for a session's name, in order, compiled once. Raises ValueError for a spec it cannot read."""

    strong: tuple[str, ...] = STRONG
    hints: tuple[str, ...] = HINTS
    strong_rules: tuple[Rule, ...] = field(init=False, repr=False, compare=False)
    hint_rules: tuple[Rule, ...] = field(init=False, repr=False, compare=False)
    headers: frozenset[bytes] = field(init=False, repr=False, compare=False)
    members: frozenset[str] = field(init=False, repr=False, compare=False)  # top level of the body

    def __post_init__(self) -> None:
        strong, hints = tuple(map(_compile, self.strong)), tuple(map(_compile, self.hints))
        put = object.__setattr__  # frozen: this is the one moment of writing
        put(self, "strong", tuple(self.strong))
        put(self, "hints", tuple(self.hints))
        put(self, "strong_rules", strong)
        put(self, "hint_rules", hints)
        put(self, "headers", frozenset(rule.header for rule in strong + hints if rule.header))
        put(self, "members", frozenset(rule.path[0] for rule in strong + hints if not rule.header))

    def find(self, headers: Headers, members: Mapping[str, Raw]) -> tuple[Named | None, Named | None]:
        """The first non-empty, valid strong source; where there is none, the first such hint."""
        wanted = self._wanted(headers)
        if not wanted and self.members.isdisjoint(members):
            return None, None
        strong = _first(self.strong_rules, wanted, members)
        return strong, None if strong else _first(self.hint_rules, wanted, members)

    def by_header(self, headers: Headers) -> Named | None:
        """The session if a header names it and nothing in the body could have come first."""
        if not headers:
            return None
        leading = next((i for i, rule in enumerate(self.strong_rules) if not rule.header), len(self.strong_rules))
        return _first(self.strong_rules[:leading], self._wanted(headers), {})

    @property
    def words(self) -> frozenset[str]:
        """Everything that `Request.source` can say: the label values of one metric."""
        return frozenset(rule.word for rule in self.strong_rules + self.hint_rules) | {"conversation", "none"}

    def _wanted(self, headers: Headers) -> dict[bytes, list[bytes]]:
        found, known = dict[bytes, list[bytes]](), self.headers
        for name, value in headers:
            if name in known:
                found.setdefault(name, []).append(value)
        return found


def session_key(scope: Iterable[bytes], value: bytes) -> int:
    """128 bits for a session name within its scope (model, salt, LoRA). Never zero."""
    return _digest(b"session", scope, value)


def hint_key(scope: Iterable[bytes], value: bytes) -> int:
    """64 bits: where the ring starts for a hint. Never zero."""
    return ring_key(_digest(b"hint", scope, value))


def ring_key(digest: int) -> int:
    """The 64 bits of a session key or of a chain link that the ring looks at. Never zero: that means "none"."""
    return digest & MASK_64 or 1


def text_of(raw: Raw) -> bytes:
    """The name in one JSON value: a string, an integer, or the `id` of an object; empty if there is none."""
    value = _value(raw)
    return _clean(value.get("id") if isinstance(value, dict) else value)


def _digest(kind: bytes, scope: Iterable[bytes], value: bytes) -> int:
    state = xxh3_128()
    # Each field carries its length: ("ab", "c") must not meet ("a", "bc").
    for part in (kind, *scope, value):
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.intdigest() or 1


def _compile(spec: str) -> Rule:
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise ValueError(f"session source {spec!r} is not header:NAME, body:PATH or claude:PATH")
    place, name = Place(match[1]), match[2]
    if place is Place.HEADER:
        name = name.lower()
        return Rule(place, (), name.encode(), _RESERVED.get(name, name))
    return Rule(place, tuple(name.split(".")), b"", _RESERVED.get(name, name))


def _first(rules: Sequence[Rule], headers: Mapping[bytes, Sequence[bytes]], members: Mapping[str, Raw]) -> Named | None:
    for rule in rules:
        if rule.header:
            value = next((name for name in map(_clean, headers.get(rule.header, ())) if name), b"")
        elif rule.path[0] in members:
            value = _in_body(rule, members)
        else:
            continue
        if value:
            return Named(value, rule.word)
    return None


def _in_body(rule: Rule, members: Mapping[str, Raw]) -> bytes:
    raw = members[rule.path[0]]
    if rule.place is Place.BODY and len(rule.path) == 1:
        return text_of(raw)
    value = _value(raw)
    for step in rule.path[1:]:
        value = value.get(step) if isinstance(value, dict) else None
    if rule.place is Place.CLAUDE:
        value = _claude_session(value)
    elif isinstance(value, dict):
        value = value.get("id")
    return _clean(value)


def _claude_session(value: object) -> object:
    """The session in `user_<hash>_account_<uuid>_session_<uuid>` or, newer, in a string that holds a JSON object."""
    if not isinstance(value, str):
        return None
    if match := _CLAUDE.search(value):
        return match[1]
    inner = _value(value.encode("utf-8", "surrogatepass")) if value.lstrip().startswith("{") else None
    return inner.get("session_id") if isinstance(inner, dict) else None


def _clean(value: object) -> bytes:
    """The bytes of a usable name, else nothing. Length is no matter here: every name is hashed before it is kept."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if value.bit_length() < 256 else ""  # msgspec never gives more; str() of more may raise
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogatepass")
    if not isinstance(value, bytes):
        return b""
    value = value.strip()
    return b"" if _CONTROL.search(value) else value


def _value(raw: Raw) -> object:
    if not 0 < len(raw) <= _LONGEST:
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
