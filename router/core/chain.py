"""The chain of hashes over a prompt: equal prefixes have equal links, whoever sends them.

Law: what is hashed is what was sent, byte for byte and in the order of its keys (an engine's chat template renders it
in that order), less the marks that clients move or change every turn. Sampling parameters never enter.

One xxh3-128 runs over the length-prefixed parts and is read after each, so link i depends on all parts up to i and on
nothing behind it. It is not a cryptographic hash: a forged collision costs its maker affinity, it never mixes state.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
from xxhash import xxh3_128

Part: TypeAlias = "bytes | memoryview"

OWN_LINKS = 4000  # messages with a link of their own; later ones share links, so a chain stays under 4,200
BLOCK_BYTES = 1024  # of a prompt without messages: about 256 tokens, 16 blocks of an engine
PER_SIZE = 16  # blocks of one size before the size doubles: 1 MB is about 100 links, 64 MiB under 200
OPENING_BLOCK = 4  # about 4 KiB: past what the prompts of one application share, well before they end
STABLE_BLOCK = 1  # 1 KiB: what they are likely to share

MARK = b'"cache_control"'  # inside a string its quotes would be escaped
_MARK_MEMBER = re.compile(rb'"cache_control"\s*:\s*(?:\{[^{}]*\}|null)')
_COMMA = re.compile(rb"\s*,\s*")
_WHITESPACE = b" \t\r\n"

# A message, or a bare list, whose content is one text block.
_ONE_TEXT = re.compile(
    rb'((?:\{\s*(?:"role"\s*:\s*"\w+"\s*,\s*)?"content"\s*:\s*)?)'
    rb'\[\s*\{\s*"type"\s*:\s*"text"\s*,\s*"text"\s*:\s*(?=")'
)
_ONE_TEXT_END = re.compile(rb'"\s*\}\s*\](\s*(?:(?:,\s*"role"\s*:\s*"\w+"\s*)?\})?\s*)\Z')
_END_REACH = 96  # bytes: the closing brackets and a role
_CLOSING_BRACKET, _LETTER_C, _OPENING_BRACKET, _BACKSLASH = b"]c[\\"


@dataclass(frozen=True, slots=True)
class Breaker:
    """Something that a client writes into the head of its prompt and changes every turn."""

    name: str
    what: str
    marker: bytes  # the pattern is tried only where these bytes are
    pattern: re.Pattern[bytes]  # what it matches is left out


# Looked for in the system text alone, in its first BREAKER_REACH bytes. Add yours here.
BREAKERS = (
    Breaker(
        "claude-code-cch",
        "checksum of the request, in the billing line that is Claude Code's first system block",
        b"cch=",
        re.compile(rb"(?<=\bcch=)[0-9A-Fa-f]+"),
    ),
    Breaker(
        "claude-code-version",
        "the last part of cc_version, in the same line, is also computed from the request",
        b"cc_version=",
        re.compile(rb"(?<=\bcc_version=)[0-9A-Za-z.+-]+"),
    ),
)
BREAKER_REACH = 2048  # bytes: the known ones are in the first line


@dataclass(frozen=True, slots=True)
class Chain:
    """Links over a prompt, as `Request` holds them. Empty: there was nothing to hash."""

    links: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    opening: int = 0
    stable: int = 0


@dataclass(frozen=True, slots=True)
class Front:
    """What comes before the first message: link 0. All of it as sent; absent is empty."""

    scope: tuple[bytes, ...]  # model, salt, LoRA
    tools: Part = b""
    system: Part = b""

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.scope)) + len(self.tools) + len(self.system)


@dataclass(frozen=True, slots=True)
class Turns:
    """The messages, and what their roles say: how many system or developer messages lead, which one opens."""

    messages: Sequence[Part]
    leading: int
    opening: int  # index of the first user message; where there is none, of the last that leads


def over_messages(front: Front, turns: Turns, marked: bool) -> Chain:
    """One link for `front`, then one per message. `marked`: a cache breakpoint is somewhere in this body."""
    if not turns.messages:
        return Chain()
    state = _begin(front, marked)
    size = front.nbytes
    links, sizes, at = [state.intdigest()], [size], 0
    for end in _cuts(len(turns.messages), 1, OWN_LINKS):
        for index in range(at, end):
            message = turns.messages[index]
            size += len(message)
            part = steady(message) if index < turns.leading else message
            part = one_text(unmark(part) if marked else part)
            state.update(len(part).to_bytes(8, "little"))
            state.update(part)
        at = end
        links.append(state.intdigest())
        sizes.append(size)
    return Chain(tuple(links), tuple(sizes), turns.opening + 1, _stable(front, turns, marked))


def over_text(front: Front, text: Part) -> Chain:
    """One link for `front`, then one per block; the short block at the end has its own, so no two texts are alike."""
    if not text:
        return Chain()
    state = _begin(front, marked=False)
    view, at = memoryview(text), 0
    links, sizes = [state.intdigest()], [front.nbytes]
    for end in _cuts(len(text), BLOCK_BYTES, PER_SIZE):
        part = view[at:end]
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
        at = end
        links.append(state.intdigest())
        sizes.append(front.nbytes + end)
    last = len(links) - 1
    stable = 0 if front.tools or front.system else STABLE_BLOCK
    return Chain(tuple(links), tuple(sizes), min(OPENING_BLOCK, last), min(stable, last))


def is_marked(body: bytes | bytearray) -> bool:
    """Whether a cache breakpoint is in the body. `rfind`: CPython's backward search takes half the time here."""
    return body.rfind(MARK) >= 0


def unmark(part: Part) -> Part:
    """The part without its `cache_control` members and their commas."""
    raw = bytes(part)
    at, kept = 0, list[bytes]()
    if raw.rfind(MARK) < 0:
        return part
    while (found := raw.find(MARK, at)) >= 0:
        member = _MARK_MEMBER.match(raw, found)
        if member is None or raw[found - 1] == _BACKSLASH:
            kept.append(raw[at : found + len(MARK)])
            at = found + len(MARK)
            continue
        before, at = raw[at:found], member.end()
        trimmed = before.rstrip(_WHITESPACE)
        if trimmed.endswith(b","):
            before = trimmed[:-1]
        elif comma := _COMMA.match(raw, at):
            at = comma.end()
        kept.append(before)
    kept.append(raw[at:])
    return b"".join(kept)


def one_text(part: Part) -> Part:
    """`[{"type":"text","text":"x"}]` as `"x"`: clients switch between the two when a breakpoint moves.

    Only in the order in which every SDK writes it, type before text, and only where nothing else is in the block.
    """
    if len(part) < 3 or (part[-2] != _CLOSING_BRACKET and part[2] != _LETTER_C and part[0] != _OPENING_BRACKET):
        return part
    head = _ONE_TEXT.match(part)
    if head is None:
        return part
    tail_at = max(head.end(), len(part) - _END_REACH)
    tail = _ONE_TEXT_END.search(part[tail_at:])
    if tail is None or bool(head[1]) != (b"}" in tail[1]):
        return part
    text = part[head.end() : tail_at + tail.start() + 1]
    if not _is_one_value(text):
        return part
    return b"".join((head[1], text, tail[1]))


def steady(part: Part) -> Part:
    """A system text without what the known breakers change every turn."""
    head = bytes(part[:BREAKER_REACH])
    found = [breaker for breaker in BREAKERS if breaker.marker in head]
    if not found:
        return part
    for breaker in found:
        head = breaker.pattern.sub(b"", head)
    return head + bytes(part[BREAKER_REACH:])


def _begin(front: Front, marked: bool) -> xxh3_128:
    state = xxh3_128()
    tools = unmark(front.tools) if marked else front.tools
    system = one_text(unmark(front.system) if marked else front.system)
    for part in (*front.scope, tools, steady(system)):
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state


def _stable(front: Front, turns: Turns, marked: bool) -> int:
    """The last link before the conversation begins that carries a breakpoint; without one, all that leads.

    Breakpoints from the first user message on move with every turn, so they do not count.
    """
    if marked:
        for index in range(turns.leading, 0, -1):
            if MARK in bytes(turns.messages[index - 1]):
                return index
        if MARK in bytes(front.tools) or MARK in bytes(front.system):
            return 0
    if turns.leading or front.tools or front.system:
        return turns.leading
    return turns.opening + 1  # nothing leads: all such chats would share one link


def _cuts(total: int, step: int, each: int) -> Iterator[int]:
    """Ends of the pieces of `total`: `each` pieces of `step`, then PER_SIZE of each doubled size."""
    at, left = 0, each
    while at < total:
        if not left:
            step, left = step * 2, PER_SIZE
        at, left = min(at + step, total), left - 1
        yield at


def _is_one_value(raw: Part) -> bool:
    try:
        msgspec.json.decode(raw, type=msgspec.Raw)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True
