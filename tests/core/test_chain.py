"""Equal prefixes have equal links; what clients move about does not enter."""

import json

import pytest

from router.core.chain import (
    BLOCK_BYTES,
    BREAKERS,
    OWN_LINKS,
    Chain,
    Front,
    Turns,
    one_text,
    over_messages,
    over_text,
    plain,
    steady,
    unmark,
)

FRONT = Front((b"m", b"", b""))
USER = b'{"role":"user","content":"hello"}'
REPLY = b'{"role":"assistant","content":"hi"}'


def chat(*messages: bytes, front: Front = FRONT, leading: int = 0) -> Chain:
    return over_messages(front, Turns(messages, leading, leading))


def test_appending_messages_keeps_every_earlier_link() -> None:
    short, long = chat(USER), chat(USER, REPLY, USER)
    assert long.links[:2] == short.links
    assert len(set(long.links)) == 4
    assert long.sizes == (1, 1 + len(USER), 1 + len(USER) + len(REPLY), 1 + 2 * len(USER) + len(REPLY))


def test_parts_cannot_run_together() -> None:
    """F106"""
    assert chat(b"ab", b"c").links[-1] != chat(b"a", b"bc").links[-1]
    assert chat(b"ab").links[-1] != chat(b"a", b"b").links[-1]
    assert chat(b"", b"a").links[-1] != chat(b"a").links[-1]
    fronts = [
        Front((b"a", b"b", b"")),
        Front((b"ab", b"", b"")),
        Front((b"a", b"", b""), b"b"),
        Front((b"a", b"", b""), b"", b"b"),
    ]
    assert len({chat(USER, front=front).links[0] for front in fronts}) == 4


def test_the_order_of_keys_is_part_of_the_prompt() -> None:
    """F104, F103: engines render keys in the order in which they were sent, so another order is another prefix."""
    tools = [b'[{"name":"a","x":1}]', b'[{"x":1,"name":"a"}]']
    assert len({chat(USER, front=Front((b"m",), tool)).links[0] for tool in tools}) == 2


MARKED = [
    # as sent, as hashed
    (b'{"a":1,"cache_control":{"type":"ephemeral"}}', b'{"a":1}'),
    (b'{"a":1,"cache_control":{"type":"ephemeral","ttl":"1h"},"b":2}', b'{"a":1,"b":2}'),
    (b'{"cache_control":{"type":"ephemeral"},"b":2}', b'{"b":2}'),
    (b'{"cache_control": {"type": "ephemeral"}, "b": 2}', b'{"b": 2}'),
    (b'{"a": 1, "cache_control": {"type": "ephemeral"}}', b'{"a": 1}'),
    (b'{"a": 1,\n  "cache_control" : {\n"type": "ephemeral"\n}\n}', b'{"a": 1\n}'),
    (b'{"cache_control":{"type":"ephemeral"}}', b"{}"),
    (b'{"a":1,"cache_control":null}', b'{"a":1}'),
    (b'[{"cache_control":{}},{"a":1,"cache_control":{}}]', b'[{},{"a":1}]'),
]
UNMARKED = [
    b'{"text":"say \\"cache_control\\":{\\"type\\":\\"ephemeral\\"}"}',
    b'{"text":"\\"cache_control":{}}',  # not a key of its own: the quote in front is escaped
    b'{"type":"cache_control"}',
    b'{"properties":{"cache_control":{"type":"object","properties":{}}}}',
    b'["cache_control"]',
]


@pytest.mark.parametrize(("sent", "hashed"), MARKED)
def test_breakpoints_are_left_out(sent: bytes, hashed: bytes) -> None:
    assert unmark(sent) == hashed
    assert unmark(memoryview(sent)) == hashed


@pytest.mark.parametrize("sent", UNMARKED)
def test_text_and_values_that_look_like_breakpoints_stay(sent: bytes) -> None:
    assert unmark(sent) == sent


TEXTS = [b'"hello"', b'""', b'"a\\"}]}"', b'"\\\\"', b'"x\\",\\"y"', b'"{\\"a\\":[{\\"b\\":\\"c\\"}]}"', '"ü"'.encode()]


@pytest.mark.parametrize("text", TEXTS)
def test_one_text_block_is_the_same_as_its_string(text: bytes) -> None:
    for head, tail in [(b'{"role":"user","content":', b"}"), (b'{"content":', b',"role":"user"}'), (b"", b"")]:
        as_string = head + text + tail
        as_block = head + b'[{"type":"text","text":' + text + b"}]" + tail
        marked = head + b'[{"type":"text","text":' + text + b',"cache_control":{"type":"ephemeral"}}]' + tail
        assert plain(as_block) == plain(marked) == plain(as_string) == as_string


def test_spaced_json_is_the_same_as_well() -> None:
    messages: list[dict[str, object]] = [
        {"role": "user", "content": "hello"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "user", "content": [{"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}]},
    ]
    assert len({bytes(plain(json.dumps(message).encode())) for message in messages}) == 1


@pytest.mark.parametrize(
    "message",
    [
        b'{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}',
        b'{"role":"user","content":[{"type":"text","text":"a","citations":[{"type":"text","text":"b"}]}]}',
        b'{"role":"user","content":[{"type":"text","text":"a"}],"name":[{"x":"y"}]}',
        b'{"role":"user","content":[{"type":"text","text":5}]}',
        b'{"role":"user","content":[{"type":"image","text":"a"}]}',
        b'[{"type":"text","text":"a"}]}',
        b'{"role":"user","content":[]}',
        b"",
        b"[]",
    ],
)
def test_more_than_one_text_block_stays_as_it_is(message: bytes) -> None:
    assert one_text(message) == message


def test_moving_breakpoints_keep_the_chain() -> None:
    tools = b'[{"name":"a"},{"name":"b","cache_control":{"type":"ephemeral"}}]'
    system = b'[{"type":"text","text":"be kind","cache_control":{"type":"ephemeral"}}]'
    before = chat(
        b'{"role":"user","content":[{"type":"text","text":"hello","cache_control":{"type":"ephemeral"}}]}',
        front=Front((b"m",), tools, system),
    )
    after = chat(
        USER,
        REPLY,
        b'{"role":"user","content":[{"type":"tool_result","content":"x","cache_control":{"type":"ephemeral"}}]}',
        front=Front((b"m",), unmark(tools), b'"be kind"'),
    )
    assert after.links[:2] == before.links


BILLING = "x-anthropic-billing-header: cc_version=2.1.100.{}; cc_entrypoint=cli; cch={};"


def test_known_breakers_in_the_system_text_do_not_break_the_chain() -> None:
    """F103: Claude Code's billing line changes with every request."""

    def system(version: str, checksum: str) -> bytes:
        blocks = [{"type": "text", "text": BILLING.format(version, checksum)}, {"type": "text", "text": "You are ..."}]
        return json.dumps(blocks).encode()

    turns = [system("7b4", "eb6c6"), system("01c", "0aaa9"), system("3d9", "7")]
    assert len({chat(USER, front=Front((b"m",), b"", text)).links[-1] for text in turns}) == 1
    leading = [json.dumps({"role": "system", "content": text.decode()}).encode() for text in turns]
    assert len({chat(text, USER, leading=1).links[-1] for text in leading}) == 1


def test_breakers_are_known_marks_and_nothing_else() -> None:
    assert steady(b'"batch=ab cached=ff"') == b'"batch=ab cached=ff"'
    assert steady(b'"no mark"') == b'"no mark"'
    said = b'{"role":"user","content":"cch=eb6c6"}'
    assert chat(said).links[-1] != chat(said.replace(b"eb6c6", b"eb6c7")).links[-1]
    assert all(breaker.what and breaker.marker for breaker in BREAKERS)


def test_an_image_is_hashed_whole() -> None:
    """F100: a hundred prompts that differ in the last characters of a URL are a hundred prompts."""
    image = '{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"https://host/bucket/img{}.jpg"}}}}]}}'
    assert len({chat(image.format(i).encode()).links[-1] for i in range(100)}) == 100


SYSTEM = b'{"role":"system","content":"s"}'
MARKED_SYSTEM = b'{"role":"system","content":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}]}'
STABLE = [
    # front, messages, leading → stable
    (Front((b"m",)), (USER,), 0, 1),  # nothing leads: the opening, or all such chats would be one
    (Front((b"m",), b"[1]"), (USER,), 0, 0),
    (Front((b"m",), b"", b'"s"'), (USER, REPLY), 0, 0),
    (Front((b"m",)), (SYSTEM, USER), 1, 1),
    (Front((b"m",)), (MARKED_SYSTEM, SYSTEM, USER), 2, 1),  # what follows the breakpoint may change
    (Front((b"m",), b'[{"cache_control":{}}]'), (SYSTEM, USER), 1, 0),
    (Front((b"m",), b'[{"cache_control":{}}]'), (MARKED_SYSTEM, USER), 1, 1),
    (Front((b"m",), b"[1]"), (b'{"role":"user","content":[{"cache_control":{}}]}',), 0, 0),  # moves with every turn
]


@pytest.mark.parametrize(("front", "messages", "leading", "stable"), STABLE)
def test_the_stable_prefix_ends_at_the_last_breakpoint_before_the_conversation(
    front: Front, messages: tuple[bytes, ...], leading: int, stable: int
) -> None:
    assert chat(*messages, front=front, leading=leading).stable == stable


def test_very_long_chats_have_bounded_chains_that_still_grow_at_the_end() -> None:
    messages = [b'{"n":%d}' % n for n in range(OWN_LINKS + 40_000)]
    long = chat(*messages)
    assert len(long.links) < 4200
    assert len(long.links) == len(long.sizes) == len(set(long.links))
    assert long.sizes[-1] == 1 + sum(map(len, messages))
    shorter = chat(*messages[:-10_000])
    assert shorter.links[:-1] == long.links[: len(shorter.links) - 1]


def test_a_longer_text_keeps_the_full_blocks_of_the_shorter() -> None:
    text = bytes(i * 7 % 251 for i in range(100_000))
    short, long = over_text(FRONT, text[:5000]), over_text(FRONT, text)
    assert short.sizes == (1, 1025, 2049, 3073, 4097, 5001)
    assert long.links[:5] == short.links[:5]
    assert long.links[5] != short.links[5]
    assert (short.opening, short.stable) == (4, 1)
    assert over_text(FRONT, text[:10]).opening == 1


def test_the_last_short_block_counts() -> None:
    """F100"""
    text = b"x" * BLOCK_BYTES
    assert over_text(FRONT, text + b"a").links[-1] != over_text(FRONT, text + b"b").links[-1]


@pytest.mark.parametrize(("size", "most"), [(1 << 20, 120), (1 << 26, 200)])
def test_long_texts_cost_few_links(size: int, most: int) -> None:
    assert len(over_text(FRONT, bytes(size)).links) < most


def test_nothing_to_hash_is_an_empty_chain() -> None:
    assert chat() == over_text(FRONT, b"") == Chain()
