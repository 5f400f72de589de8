"""Recorded workloads as values: Claude Code sessions (block ids, no text), Kimi chat, and real chats with text.

Block ids are made global here: equal id, equal content. Nothing is drawn at random.
"""

import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from router.core.ring import mix

DATA = Path(__file__).resolve().parent / "data"
BLOCK_TOKENS = 64  # of the Claude Code trace
_NEW = 1 << 40  # ids below are tool blocks, shared between sessions; above, a session's own
_ARRIVAL_BLOCK = 512  # tokens: of the Kimi trace
_TAIL = 2  # blocks: a cut this near the end of a prompt is the unfinished block, not a rewrite


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a recorded session: its first `shared` blocks are those of turn `parent`."""

    thread: int
    start: float  # seconds since the session began
    think: float  # seconds from the last reply to this request
    prompt_tokens: int
    output_tokens: int
    parent: int  # index in the session; -1 = none
    shared: int
    blocks: int  # of 64 tokens
    tool_tokens: int
    system_tokens: int
    finish: str  # tool_calls: a machine answers; stop: a person does


@dataclass(frozen=True, slots=True)
class Session:
    id: str
    index: int  # place in the trace
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Chat:
    """A recorded chat with its real messages."""

    id: str
    messages: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of an arrival trace; blocks are of 512 tokens, ids shared by all."""

    at: float  # seconds
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]


def claude_sessions(path: Path = DATA / "claude_code_sessions.jsonl.gz") -> Iterator[Session]:
    for index, row in enumerate(_rows(path)):
        yield Session(row["id"], index, tuple(_turns(row)))


def recorded_chats(name: str) -> Iterator[Chat]:
    """`swe_agent` or `tau_airline`."""
    for row in _rows(DATA / f"{name}_chats.jsonl.gz"):
        yield Chat(row["sid"], tuple(row["messages"]))


def mooncake(path: Path = DATA / "mooncake_conversation.jsonl.gz") -> Iterator[Arrival]:
    for row in _rows(path):
        at, blocks = row["timestamp"] / 1000, tuple(row["hash_ids"])
        yield Arrival(at, row["input_length"], row["output_length"], blocks)


def azure(kind: str) -> Iterator[Arrival]:
    """`code` or `conv`: arrivals with lengths only, so no block is like another."""
    begin: datetime | None = None
    with gzip.open(DATA / f"azure_llm_2023_{kind}.csv.gz", "rt") as lines:
        for number, row in enumerate(csv.DictReader(lines)):
            when = datetime.fromisoformat(row["TIMESTAMP"][:26])  # the seventh digit is below a microsecond
            begin = begin or when
            prompt, output = int(row["ContextTokens"]), int(row["GeneratedTokens"])
            first = number << 12
            blocks = tuple(range(first, first + -(-prompt // _ARRIVAL_BLOCK)))
            yield Arrival((when - begin).total_seconds(), prompt, max(1, output), blocks)


@dataclass(frozen=True, slots=True)
class Part:
    """One message of a prompt, as blocks. The tools come before the first part."""

    role: str
    start: int
    end: int
    link: int  # names the whole prompt up to here: equal link, equal text


@dataclass(frozen=True, slots=True)
class Prompted:
    """A turn with what it sends: `parts` extend those of its parent as far as the trace says they share blocks."""

    turn: Turn
    blocks: tuple[int, ...]
    parts: tuple[Part, ...]


def prompts(session: Session) -> Iterator[Prompted]:
    """Each turn's prompt, in order. Only prompts that later turns refer to are kept."""
    last_use = {turn.parent: index for index, turn in enumerate(session.turns)}
    kept: dict[int, Prompted] = {}
    spoke: dict[int, int] = {}  # thread → output of its last turn, which the next one repeats as its own words
    fresh = _NEW * (session.index + 1)
    tools_seen: set[int] = set()
    for index, turn in enumerate(session.turns):
        parent = kept.get(turn.parent)
        known = parent.blocks[: turn.shared] if parent else ()
        if parent is None and turn.tool_tokens not in tools_seen:
            tools_seen.add(turn.tool_tokens)
            known = _tool_blocks(turn)
        blocks = known + tuple(range(fresh, fresh + turn.blocks - len(known)))
        fresh += turn.blocks - len(known)
        parts = tuple(part for part in parent.parts if part.end <= turn.shared) if parent else ()
        made = Prompted(turn, blocks, (*parts, *_new_parts(parts, turn, blocks, spoke.get(turn.thread, 0))))
        spoke[turn.thread] = turn.output_tokens
        if last_use.get(index, -1) > index:
            kept[index] = made
        for old in [old for old in kept if last_use[old] <= index]:
            del kept[old]
        yield made


def _tool_blocks(turn: Turn) -> tuple[int, ...]:
    """Sessions with the same count of tool tokens share their tools' blocks."""
    first = turn.tool_tokens << 16
    return tuple(range(first, first + min(turn.tool_tokens // BLOCK_TOKENS, turn.blocks)))


def _new_parts(parts: tuple[Part, ...], turn: Turn, blocks: tuple[int, ...], spoke: int) -> Iterator[Part]:
    """After the parts that are shared: the system prompt once, the assistant's last words, then what came back."""
    total = len(blocks)
    at = parts[-1].end if parts else min(turn.tool_tokens // BLOCK_TOKENS, total)
    link = parts[-1].link if parts else mix("tools", *blocks[:at][-1:])
    cuts = [("user", total)]
    if not parts:
        cuts.insert(0, ("system", min(at + max(1, turn.system_tokens // BLOCK_TOKENS), total)))
    elif spoke and total - at > 1:
        cuts.insert(0, ("assistant", min(at + max(1, spoke // BLOCK_TOKENS), total - 1)))
    for role, end in cuts:  # a turn without a new block still says something
        link = mix(link, role, *blocks[at:end][:1], end)
        yield Part(role, at, max(at, end), link)
        at = max(at, end)


def _turns(row: dict[str, Any]) -> Iterator[Turn]:
    threads = {thread: (tools, system) for thread, _, tools, system, _ in row["th"]}
    sizes: list[int] = []
    for thread, start, think, _, prompt, output, parent, shared, blocks, stop in row["r"]:
        tools, system = threads[thread]
        if parent >= 0 and 0 < sizes[parent] - shared <= _TAIL:
            shared = min(sizes[parent], blocks)
        sizes.append(blocks)
        finish = "tool_calls" if stop == "u" else "stop"
        output = max(1, output)  # a few were recorded as empty
        yield Turn(thread, start, think, prompt, output, parent, shared, blocks, tools, system, finish)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path) as lines:
        for line in lines:
            row: dict[str, Any] = msgspec.json.decode(line)
            yield row
