"""The chain of hashes over a prompt: equal prefixes have equal links, whoever sends them.

Law: what is hashed is what was sent, byte for byte and in the order of its keys (an engine's chat template renders it
in that order), less the marks that clients move or change every turn. Sampling parameters never enter.

link i = H(link i-1, H(part i)) with xxh3-128: it depends on all parts up to i and on nothing behind it, and since every
part enters as 16 bytes, parts cannot run together. It is not a cryptographic hash: a forged collision costs its maker
affinity, it never mixes state.
"""

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import msgspec
from xxhash import xxh3_128_digest as digest

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

# Messages whose content is a string, and items without blocks: no mark can be inside.
_PLAIN = re.compile(
    rb'\{\s*(?:"role"\s*:\s*"\w+"\s*,\s*)?"content"\s*:\s*(?:"|null)'
    rb'|\{\s*"type"\s*:\s*"(?:function_call|function_call_output|reasoning)"'
)

# A message, or a bare list, whose content is one text block.
_ONE_TEXT = re.compile(
    rb'((?:\{\s*(?:"role"\s*:\s*"\w+"\s*,\s*)?"content"\s*:\s*)?)'
    rb'\[\s*\{\s*"type"\s*:\s*"text"\s*,\s*"text"\s*:\s*(?=")'
)
_ONE_TEXT_END = re.compile(rb'"\s*\}\s*\](\s*(?:(?:,\s*"role"\s*:\s*"\w+"\s*)?\})?\s*)\Z')
_END_REACH = 96  # bytes: the closing brackets and a role
_CLOSING_BRACKET, _CLOSING_BRACE, _LETTER_C, _OPENING_BRACKET, _BACKSLASH = b"]}c[\\"


class Breaker(NamedTuple):
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


# Tuples, not dataclasses: one of each is made per request, at a third of the cost.


class Chain(NamedTuple):
    """Links over a prompt, as `Request` holds them. Empty: there was nothing to hash."""

    links: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    opening: int = 0
    stable: int = 0


class Front(NamedTuple):
    """What comes before the first message: link 0. All of it as sent; absent is empty."""

    scope: tuple[bytes, ...]  # model, salt, LoRA
    tools: Part = b""
    system: Part = b""

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.scope)) + len(self.tools) + len(self.system)


class Turns(NamedTuple):
    """The messages, and what their roles say: how many system or developer messages lead, which one opens."""

    messages: Sequence[Part]
    leading: int
    opening: int  # index of the first user message; where there is none, of the last that leads


def over_messages(front: Front, turns: Turns) -> Chain:
    """One link for `front`, then one per message."""
    messages, leading = turns.messages, turns.leading
    if not messages:
        return Chain()
    link = _first(front)
    links = [link]
    for index, message in enumerate(messages):
        part = plain(steady(message) if index < leading else message)
        link = digest(link + digest(part))
        links.append(link)
    sizes = accumulate(map(len, messages), initial=front.nbytes)
    return _kept(links, list(sizes), turns.opening + 1, _stable(front, turns))


def over_text(front: Front, text: Part) -> Chain:
    """One link for `front`, then one per block; the short block at the end has its own, so no two texts are alike."""
    if not text:
        return Chain()
    link, view, at = _first(front), memoryview(text), 0
    links, sizes = [link], [front.nbytes]
    for end in _cuts(len(text), BLOCK_BYTES, PER_SIZE):
        link = digest(link + digest(view[at:end]))
        at = end
        links.append(link)
        sizes.append(front.nbytes + end)
    last = len(links) - 1
    return Chain(tuple(map(int.from_bytes, links)), tuple(sizes), min(OPENING_BLOCK, last), min(STABLE_BLOCK, last))


def plain(part: Part) -> Part:
    """A message, tools or a system text without breakpoints, in the one form that does not depend on them."""
    if _PLAIN.match(part) is None:
        return one_text(unmark(part))
    # Beside a string content, clients write the mark last: the message then ends with two braces.
    return unmark(part) if part[-2] == _CLOSING_BRACE else part


def is_marked(part: Part) -> bool:
    """Whether a breakpoint is in the part. `rfind`: CPython's backward search takes half the time of the forward."""
    return bytes(part).rfind(MARK) >= 0


def unmark(part: Part) -> Part:
    """The part without its `cache_control` members and their commas."""
    raw = bytes(part)
    if raw.rfind(MARK) < 0:
        return part
    at, kept = 0, list[bytes]()
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
    head = whole = bytes(part[:BREAKER_REACH])
    for breaker in BREAKERS:
        if breaker.marker in head:
            head = breaker.pattern.sub(b"", head)
    return part if head is whole else head + bytes(part[BREAKER_REACH:])


def _first(front: Front) -> bytes:
    tools = unmark(front.tools) if front.tools else b""
    system = steady(one_text(unmark(front.system))) if front.system else b""
    return digest(b"".join(map(digest, (*front.scope, tools, system))))


def _stable(front: Front, turns: Turns) -> int:
    """The last link before the conversation begins that carries a breakpoint; without one, all that leads.

    Breakpoints from the first user message on move with every turn, so they do not count.
    """
    if not (turns.leading or front.tools or front.system):
        return turns.opening + 1  # nothing leads: all such chats would share one link
    for index in range(turns.leading, 0, -1):
        if is_marked(turns.messages[index - 1]):
            return index
    return 0 if is_marked(front.tools) else turns.leading


def _kept(links: Sequence[bytes], sizes: Sequence[int], opening: int, stable: int) -> Chain:
    """The chain, thinned out behind OWN_LINKS. Which links are kept does not depend on how many follow."""
    if len(links) - 1 > OWN_LINKS:
        ends = [0, *_cuts(len(links) - 1, 1, OWN_LINKS)]
        links, sizes = [links[end] for end in ends], [sizes[end] for end in ends]
    return Chain(tuple(map(int.from_bytes, links)), tuple(sizes), opening, stable)


def _cuts(total: int, step: int, each: int) -> list[int]:
    """Ends of the pieces of `total`: `each` pieces of `step`, then PER_SIZE of each doubled size."""
    ends, at, left = list[int](), 0, each
    while at < total:
        if not left:
            step, left = step * 2, PER_SIZE
        at, left = min(at + step, total), left - 1
        ends.append(at)
    return ends


def _is_one_value(raw: Part) -> bool:
    try:
        msgspec.json.decode(raw, type=msgspec.Raw)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True
