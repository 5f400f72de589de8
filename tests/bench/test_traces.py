"""Recorded workloads: what the trace says is shared is shared, as blocks and as bytes of a body."""

import json

from bench.bodies import chat_asks, session_asks
from bench.prompt import read_prompt
from bench.traces import Session, Turn, claude_sessions, mooncake, prompts


def turn(parent: int, shared: int, blocks: int, **rest: int) -> Turn:
    thread = rest.get("thread", 0)
    tools, system = rest.get("tools", 128), rest.get("system", 64)
    return Turn(thread, 0.0, 1.0, blocks * 64, 70, parent, shared, blocks, tools, system, "tool_calls")


SESSION = Session("s", 0, (turn(-1, 0, 8), turn(0, 8, 12), turn(1, 12, 13), turn(0, 5, 9)))


def test_a_turn_has_its_parents_blocks_and_new_ones() -> None:
    first, second, third, rewritten = (prompt.blocks for prompt in prompts(SESSION))
    assert [len(blocks) for blocks in (first, second, third, rewritten)] == [8, 12, 13, 9]
    assert second[:8] == first
    assert third[:12] == second
    assert rewritten[:5] == first[:5]
    assert not set(rewritten[5:]) & {*first, *second, *third}


def test_parts_cover_the_prompt_behind_the_tools() -> None:
    second = list(prompts(SESSION))[1]
    assert [(part.role, part.start, part.end) for part in second.parts] == [
        ("system", 2, 3),
        ("user", 3, 8),
        ("assistant", 8, 9),
        ("user", 9, 12),
    ]


def test_a_rewritten_prompt_has_other_links_from_where_it_differs() -> None:
    made = list(prompts(SESSION))
    links = [[part.link for part in prompt.parts] for prompt in made]
    assert links[1][:2] == links[0]
    assert links[3][0] == links[0][0]
    assert links[3][1] != links[0][1]


def test_sessions_share_their_tools_and_nothing_else() -> None:
    ours, theirs = (next(prompts(Session("s", index, SESSION.turns))).blocks for index in (0, 1))
    assert ours[:2] == theirs[:2]
    assert not set(ours[2:]) & set(theirs[2:])


def test_bodies_extend_as_their_blocks_do() -> None:
    first, second, third, rewritten = (ask.messages for ask in session_asks(SESSION))
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    assert rewritten[0] == first[0]
    assert rewritten[1] != first[1]


def test_a_body_is_a_chat_request_of_about_the_recorded_size() -> None:
    ask = list(session_asks(SESSION))[1]
    body = json.loads(ask.body("m"))
    assert (body["model"], body["stream"], body["max_tokens"]) == ("m", True, 70)
    assert body["stream_options"] == {"include_usage": True}
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user"]
    assert 12 * 64 <= read_prompt(body, 64).tokens <= 13 * 64 + 64


def test_shrunk_bodies_keep_their_shape() -> None:
    full, small = (list(session_asks(SESSION, size)) for size in (256, 32))
    assert [len(ask.messages) for ask in full] == [len(ask.messages) for ask in small]
    assert small[0].output_tokens == 9
    assert len(small[0].body("m")) < len(full[0].body("m")) / 3


def test_a_real_session_repeats_nearly_all_it_sends() -> None:
    session = next(claude_sessions())
    seen: set[int] = set()
    repeated = total = 0
    for prompt in prompts(session):
        assert len(prompt.blocks) == prompt.turn.blocks
        assert prompt.parts[-1].end == prompt.turn.blocks
        repeated += sum(block in seen for block in prompt.blocks)
        total += len(prompt.blocks)
        seen.update(prompt.blocks)
    assert 0.9 < repeated / total < 1.0


def test_a_recorded_chat_is_asked_before_each_of_its_replies() -> None:
    from bench.traces import Chat

    messages = ({"role": "system"}, {"role": "user"}, {"role": "assistant", "tool_calls": [{}]}, {"role": "tool"})
    asks = list(chat_asks(Chat("c", (*messages, {"role": "assistant", "content": "done"})), think=2.0))
    assert [len(ask.messages) for ask in asks] == [2, 4]
    assert [ask.finish for ask in asks] == ["tool_calls", "stop"]


def test_the_chat_trace_comes_in_order_of_time() -> None:
    first, second = (arrival for arrival, _ in zip(mooncake(), range(2), strict=False))
    assert first.at <= second.at
    assert first.blocks[0] == second.blocks[0]  # every request of it shares block 0
