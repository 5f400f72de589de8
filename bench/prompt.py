"""Tokens by arithmetic: what a simulated engine makes of a request body, without a tokenizer.

One token is four bytes of rendered text, and a block's id is the hash of all text up to its end, so caching
follows content exactly as it does in a real engine.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from xxhash import xxh3_64_intdigest

BYTES_PER_TOKEN = 4  # English and code come to 3.5-4.5


@dataclass(frozen=True, slots=True)
class Prompt:
    blocks: tuple[int, ...]  # full ones only
    tokens: int


def read_prompt(body: dict[str, Any], block_tokens: int) -> Prompt:
    """The prompt of a chat, completions or messages body. ValueError if there is none."""
    text = b"".join(_parts(body))
    if not text:
        raise ValueError("Field required: messages or prompt")
    salt = str(body.get("cache_salt") or "")
    return Prompt(_chain(text, salt, block_tokens * BYTES_PER_TOKEN), -(-len(text) // BYTES_PER_TOKEN))


def _chain(text: bytes, salt: str, size: int) -> tuple[int, ...]:
    ids = []
    link = xxh3_64_intdigest(salt.encode())
    view = memoryview(text)
    for end in range(size, len(text) + 1, size):
        link = xxh3_64_intdigest(view[end - size : end], link)
        ids.append(link)
    return tuple(ids)


def _parts(body: dict[str, Any]) -> Iterator[bytes]:
    """Rendered in the order of most chat templates: tools, system, then the messages."""
    if tools := body.get("tools"):
        yield msgspec.json.encode(tools)
    if system := body.get("system"):
        yield b"<|system|>" + _text(system)
    for message in body.get("messages") or ():
        yield b"<|%b|>" % str(message.get("role", "")).encode()
        yield _text(message.get("content"))
        if calls := message.get("tool_calls"):
            yield msgspec.json.encode(calls)
    if prompt := body.get("prompt"):
        yield _text(prompt)


def _text(content: object) -> bytes:
    if content is None:
        return b""
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    return msgspec.json.encode(content)
