"""Real conversations, turn by turn: each turn is recognised by the last, and no stranger is."""

import gzip
import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from router.core.keys import Sources
from router.core.request import Request
from router.dialects import Head, dialect_of

DATA = Path(__file__).parent.parent.parent / "bench" / "data"
SOURCES = Sources()


@cache
def sessions(name: str) -> list[list[dict[str, Any]]]:
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line)["messages"] for line in lines]


def turns(messages: list[dict[str, Any]], path: str = "/v1/chat/completions") -> list[Request]:
    """Request i is the messages before the i-th answer."""
    ends = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    head = Head(b"POST", path, b"", ())
    bodies = ({"model": "m", "messages": messages[:end], "temperature": end} for end in ends)
    return [dialect_of(path).read(head, json.dumps(body).encode(), SOURCES) for body in bodies]


@pytest.mark.parametrize("name", ["swe_agent_chats", "tau_airline_chats"])
def test_every_turn_contains_the_last_hash_of_the_turn_before(name: str) -> None:
    for messages in sessions(name):
        read = turns(messages)
        assert all(before.chain[-1] in after.chain for before, after in pairwise(read))


@pytest.mark.parametrize("name", ["swe_agent_chats", "tau_airline_chats"])
def test_all_turns_of_a_session_have_one_key(name: str) -> None:
    for messages in sessions(name):
        assert len({(request.key, request.source, request.session) for request in turns(messages)}) == 1


@pytest.mark.parametrize("name", ["swe_agent_chats", "tau_airline_chats"])
def test_sessions_share_an_opening_only_if_they_open_alike(name: str) -> None:
    """F101"""
    openings: dict[int, str] = {}
    for messages in sessions(name):
        request = turns(messages)[0]
        upto = next(i for i, message in enumerate(messages) if message["role"] == "user") + 1
        assert openings.setdefault(request.chain[request.opening], json.dumps(messages[:upto])) == json.dumps(
            messages[:upto]
        )
    assert len(openings) > 1


def test_one_shared_system_prompt_is_one_stable_prefix() -> None:
    read = [turns(messages)[0] for messages in sessions("tau_airline_chats")]
    assert len({request.chain[request.stable] for request in read}) == 1
    assert len({request.key for request in read}) > 40


def test_no_link_ever_meets_another_prompt() -> None:
    """F106: over every prefix in the recordings, equal links mean equal messages."""
    seen: dict[int, str] = {}
    for name in ("swe_agent_chats", "tau_airline_chats"):
        for messages in sessions(name):
            for i, link in enumerate(turns(messages)[-1].chain):
                assert seen.setdefault(link, json.dumps(messages[:i])) == json.dumps(messages[:i])


def with_breakpoints(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As Claude Code sends them: the last two user messages are lists that carry a breakpoint."""
    users = [i for i, message in enumerate(messages) if message["role"] == "user"][-2:]
    mark = {"type": "ephemeral"}
    return [
        {**message, "content": [{"type": "text", "text": message["content"], "cache_control": mark}]}
        if i in users
        else message
        for i, message in enumerate(messages)
    ]


def test_moving_breakpoints_and_billing_lines_do_not_break_a_conversation() -> None:
    """F103"""
    for messages in sessions("swe_agent_chats"):
        front, talk = messages[0]["content"], messages[1:]
        ends = [i for i, message in enumerate(talk) if message["role"] == "assistant"]
        read = []
        for end in ends:
            billing = (
                f"x-anthropic-billing-header: cc_version=2.1.100.{end:03x}; cc_entrypoint=cli; cch={end * 7919:05x};"
            )
            system = [
                {"type": "text", "text": billing},
                {"type": "text", "text": front, "cache_control": {"type": "ephemeral"}},
            ]
            body = {"model": "m", "system": system, "messages": with_breakpoints(talk[:end])}
            raw = json.dumps(body, separators=(",", ":")).encode()
            read.append(dialect_of("/v1/messages").read(Head(b"POST", "/v1/messages", b"", ()), raw, SOURCES))
        assert all(before.chain[-1] in after.chain for before, after in pairwise(read))
        assert len({(request.key, request.chain[request.stable]) for request in read}) == 1
