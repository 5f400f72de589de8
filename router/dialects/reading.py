"""From the raw spans of a body to a `Request`: the part that all families share."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from router.core.chain import Chain, Front, Part, Turns, over_messages, over_text
from router.core.keys import Named, Sources, hint_key, ring_key, session_key
from router.core.request import Request
from router.dialects.body import Body, elements, parse
from router.dialects.dialect import Head

LEADING_ROLES = frozenset({"system", "developer"})
USER_WITHIN = 64  # messages: who opens later than that is not looked for, each costs a look

_ROLE_FIRST = re.compile(rb'\{\s*"role"\s*:\s*"(\w+)"')


class _Role(msgspec.Struct, gc=False):
    role: str = ""


class Reading(NamedTuple):
    """A request half read: its spans are known, its chain is the dialect's to make."""

    dialect: str
    head: Head
    body_bytes: int
    found: Body
    sources: Sources
    model: str
    scope: tuple[bytes, ...]  # what separates prompts, and sessions, of equal text: model, salt, LoRA

    def front(self, *system: str) -> Front:
        """Link 0 of a chat. `system` names the members that hold what is said before the messages."""
        members = self.found.members
        return Front(self.scope, _joined(members, ("tools", "functions")), _joined(members, system))

    def over_messages(self, front: Front, messages: Sequence[Part]) -> Chain:
        return over_messages(front, turns_of(messages))

    def over_prompt(self, *names: str) -> Chain:
        """A chain over the first of these members that is there, in blocks of its raw bytes, brackets left out."""
        prompt = next((self.found.members[name] for name in names if name in self.found.members), b"")
        return over_text(Front(self.scope), prompt[1:-1] if prompt[:1] in (b'"', b"[") else b"")

    def request(self, chain: Chain, response_id: str = "", named: Named | None = None) -> Request:
        """`named`: what the path says of the session; it is tried after the strong sources."""
        strong, hint = self.sources.find(_naming(self.head, self.sources), self.found.members)
        strong = strong or named
        session, key, source = 0, 0, "none"
        if strong:
            session, source = session_key(self.scope, strong.value), strong.word
            key = ring_key(session)
        elif hint:
            key, source = hint_key(self.scope, hint.value), hint.word
        elif chain.links:
            key, source = ring_key(chain.links[chain.opening]), "conversation"
        return Request(
            dialect=self.dialect,
            model=self.model,
            session=session,
            source=source,
            key=key,
            chain=chain.links,
            sizes=chain.sizes,
            opening=chain.opening,
            stable=chain.stable,
            body_bytes=self.body_bytes or declared_bytes(self.head),
            response_id=response_id,
            stream=self.found.members.get("stream", b"") == b"true",
        )


def reading(
    dialect: str, head: Head, body: bytes | bytearray | memoryview, sources: Sources, listed: str = ""
) -> Reading:
    """Parse a body once. `listed` is the member that holds the list of messages."""
    found = parse(body, listed, sources.members)
    model = found.text("model")
    lora = bytes(_joined(found.members, ("lora_path", "lora")))
    scope = (model.encode("utf-8", "surrogatepass"), bytes(found.members.get("cache_salt", b"")), lora)
    return Reading(dialect, head, len(body), found, sources, model, scope)


def by_header(dialect: str, head: Head, sources: Sources, model: str, body_bytes: int) -> Request | None:
    """The request without its body, if a header names the session; None if the body must be read.

    `model` is the only one that the fleet serves. A body that names it, and neither salt nor LoRA, gives the same key;
    one that does gets another key the day a second model is served, and its session a new home.
    """
    named = sources.by_header(_naming(head, sources))
    if named is None:
        return None
    session = session_key((model.encode("utf-8", "surrogatepass"), b"", b""), named.value)
    return Request(dialect, model, session, named.word, ring_key(session), body_bytes=body_bytes)


def _naming(head: Head, sources: Sources) -> Sequence[tuple[bytes, bytes]]:
    """The fields, if one of them may name the session: most requests have none, and then nothing is looked through."""
    return () if sources.headers.isdisjoint(head.fields) else head.headers


def turns_of(messages: Sequence[Part]) -> Turns:
    """Who leads and who opens. Without a user, the first message after those that lead opens, else the last of them."""
    leading = 0
    for index, message in enumerate(messages[:USER_WITHIN]):
        role = _role(message)
        if role == "user":
            return Turns(messages, leading, index)
        if role in LEADING_ROLES and index == leading:
            leading += 1
    return Turns(messages, leading, min(leading, max(len(messages) - 1, 0)))


def listed_or_text(found: Body, name: str) -> Sequence[Part]:
    """The elements of a member that may also be one string, which then stands for one user message."""
    if found.parts:
        return found.parts
    raw = found.members.get(name, b"")
    if raw[:1] == b'"' and len(raw) > 2:
        return [b'{"role":"user","content":' + bytes(raw) + b"}"]
    return elements(raw)


def declared_bytes(head: Head) -> int:
    """What `content-length` says; 0 if it says nothing."""
    length = head.header(b"content-length")
    return int(length) if length.isdigit() and len(length) < 19 else 0


def _role(message: Part) -> str:
    if match := _ROLE_FIRST.match(message):
        return match[1].decode()
    try:
        return msgspec.json.decode(message, type=_Role).role
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ""


def _joined(members: Mapping[str, Part], names: Sequence[str]) -> Part:
    parts = [members[name] for name in names if name in members]
    return parts[0] if len(parts) == 1 else b"".join(parts)
