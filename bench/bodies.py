"""Chat bodies for recorded turns: every turn's messages extend those of the turn it continues.

Text is seeded by block id: equal block, equal text. `block_bytes` shrinks every context alike, so a small
machine can replay sessions of half a megabyte; hit rates stay, sizes and rates scale with it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from xxhash import xxh3_128_digest

from bench.prompt import BYTES_PER_TOKEN
from bench.traces import BLOCK_TOKENS, Chat, Session, prompts

FULL_BLOCK_BYTES = BLOCK_TOKENS * BYTES_PER_TOKEN
_WORDS = tuple(a + b + c + " " for a in "bdfghjklmnprstvw" for b in "aeio" for c in "dnrt")  # one per byte value
_TOOLS = 16  # coding agents declare 15-20; the recorded tool part is cut into so many


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to send: how long the caller thinks first, its JSON body without the model's name."""

    think: float
    output_tokens: int
    finish: str
    tools: bytes  # JSON array, or nothing
    messages: tuple[bytes, ...]  # JSON objects

    def body(self, model: str) -> bytes:
        """A streamed chat request that asks for usage and for exactly the recorded number of tokens."""
        head = {
            "model": model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": self.output_tokens,
            "ignore_eos": True,
            "vllm_xargs": {"finish_reason": self.finish},
        }
        tools = b',"tools":' + self.tools if self.tools else b""
        return msgspec.json.encode(head)[:-1] + tools + b',"messages":[' + b",".join(self.messages) + b"]}"


def session_asks(session: Session, block_bytes: int = FULL_BLOCK_BYTES) -> Iterator[Ask]:
    """The requests of one recorded session, in order."""
    written: dict[int, bytes] = {}  # link → message
    scale = block_bytes / FULL_BLOCK_BYTES
    for prompted in prompts(session):
        turn, blocks = prompted.turn, prompted.blocks
        for part in prompted.parts:
            if part.link not in written:
                text = _text(blocks[part.start : part.end], block_bytes) or "go on "
                written[part.link] = msgspec.json.encode({"role": part.role, "content": text})
        messages = tuple(written[part.link] for part in prompted.parts)
        tools = _tools(blocks[: prompted.parts[0].start], block_bytes)
        yield Ask(turn.think, max(1, round(turn.output_tokens * scale)), turn.finish, tools, messages)


def chat_asks(chat: Chat, think: float) -> Iterator[Ask]:
    """Request i: the messages before the i-th assistant message, which says how long the reply is."""
    encoded: list[bytes] = []
    for message in chat.messages:
        text = msgspec.json.encode(message)
        if message["role"] == "assistant" and encoded:
            finish = "tool_calls" if message.get("tool_calls") else "stop"
            output = max(1, len(text) // BYTES_PER_TOKEN)
            yield Ask(think, output, finish, b"", tuple(encoded))
        encoded.append(text)


def _tools(blocks: tuple[int, ...], block_bytes: int) -> bytes:
    if not blocks:
        return b""
    size = -(-len(blocks) // _TOOLS)
    parts = [blocks[start : start + size] for start in range(0, len(blocks), size)]
    functions = [
        {"name": f"tool_{number}", "description": _text(part, block_bytes)} for number, part in enumerate(parts)
    ]
    return msgspec.json.encode([{"type": "function", "function": function} for function in functions])


def _text(blocks: tuple[int, ...], block_bytes: int) -> str:
    return "".join(_block_text(block, block_bytes) for block in blocks)


def _block_text(block: int, size: int) -> str:
    """`size` bytes of made-up words, the same for the same block everywhere."""
    digests = (xxh3_128_digest(block.to_bytes(8, "little"), part) for part in range(-(-size // 64)))
    return "".join(_WORDS[byte] for digest in digests for byte in digest)[:size]
