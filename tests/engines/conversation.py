"""Conversations that grow turn by turn, as agents hold them, and what each turn found in the replica's cache."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Any

import httpx

from tests.engines.tiny_model import prompt_tokens

REPLY_TOKENS = 12


@dataclass(frozen=True, slots=True)
class Turn:
    replica: str
    reason: str
    source: str
    prompt: int  # tokens, as the engine counts
    cached: int  # of them, found in its cache
    replied: int


class BrokenOff(Exception):
    """The stream carried an error instead of its end."""


class Conversation:
    """A session of its own: from the first word on its text is like no other's, so nothing is shared with others."""

    def __init__(self, name: str, *, named: bool = True, stream: bool = False) -> None:
        self.name = name
        self.headers = {"x-session-id": name} if named else {}
        self.messages = [_message("system", name, 100), _message("user", name, 300)]
        self.turns: list[Turn] = []
        self._stream = stream

    def body(self) -> dict[str, Any]:
        """The next request. Greedy and of fixed length, so that runs are alike."""
        fixed = {"model": "tiny", "max_tokens": REPLY_TOKENS, "temperature": 0}
        streaming = {"stream": True, "stream_options": {"include_usage": True}} if self._stream else {}
        return {"messages": self.messages, **fixed, **streaming}

    def take_turn(self, client: httpx.Client) -> Turn:
        """Ask, and keep the reply. Where it fails (httpx.HTTPError, BrokenOff) the same turn can be tried again."""
        with client.stream("POST", "/v1/chat/completions", json=self.body(), headers=self.headers) as answer:
            if answer.is_error:
                answer.read()
            answer.raise_for_status()
            text, usage = read_stream(answer) if self._stream else _read_whole(answer)
        assert usage["prompt_tokens"] == prompt_tokens(self.messages)
        turn = Turn(
            answer.headers["x-router-replica"],
            answer.headers["x-router-reason"],
            answer.headers["x-router-session-source"],
            usage["prompt_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"],
            usage["completion_tokens"],
        )
        self.turns.append(turn)
        self.messages = [
            *self.messages,
            {"role": "assistant", "content": text},
            _message("user", f"{self.name} {len(self.turns)}", 100),
        ]
        return turn

    @property
    def homes(self) -> list[str]:
        """Where its turns went, in order, each stay once."""
        went = [turn.replica for turn in self.turns]
        return went[:1] + [now for before, now in pairwise(went) if now != before]


def assert_whole_reuse(turns: Sequence[Turn]) -> None:
    """Each turn found all that its predecessor left behind.

    llama.cpp is exact here: it keeps the prompt and the reply, but for the reply's last token, which was drawn and
    never computed.
    """
    for before, now in pairwise(turns):
        assert now.cached == before.prompt + before.replied - 1, turns


def cached_share(conversations: Sequence[Conversation]) -> float:
    turns = [turn for each in conversations for turn in each.turns]
    return sum(turn.cached for turn in turns) / sum(turn.prompt for turn in turns)


def events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    """The JSON of each event of a stream; `[DONE]` is left out."""
    for line in answer.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def read_stream(answer: httpx.Response) -> tuple[str, Mapping[str, Any]]:
    """The text and the usage of a chat stream. Raises BrokenOff."""
    text, usage = "", None
    for event in events(answer):
        if "error" in event:
            raise BrokenOff(event["error"])
        text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
        usage = event.get("usage") or usage
    if usage is None:
        raise BrokenOff("no usage, no end")
    return text, usage


def _read_whole(answer: httpx.Response) -> tuple[str, Mapping[str, Any]]:
    reply = json.loads(answer.read())
    return reply["choices"][0]["message"]["content"], reply["usage"]


def _message(role: str, seed: str, length: int) -> dict[str, str]:
    digests = (sha256(f"{role} {seed} {number}".encode()).hexdigest() for number in range(length // 64 + 1))
    return {"role": role, "content": "".join(digests)[:length]}
