"""What each API family's request becomes."""

import gzip
import json
from typing import Any

import pytest

from router.core.keys import Sources
from router.core.request import Request
from router.dialects import DIALECTS, Head, by_header, dialect_of, wants_body

SOURCES = Sources()
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


def head(path: str, *headers: tuple[bytes, bytes], method: bytes = b"POST") -> Head:
    return Head(method, path, b"", headers)


def read(path: str, body: object, *headers: tuple[bytes, bytes]) -> Request:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return dialect_of(path).read(head(path, *headers), raw, SOURCES)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


PATHS = [
    ("/v1/chat/completions", "chat"),
    ("/openai/deployments/x/chat/completions", "chat"),
    ("/v1/completions", "completions"),
    ("/v1/completions/", "completions"),
    ("/v1/responses", "responses"),
    ("/v1/responses/resp_1/cancel", "responses"),
    ("/v1/conversations/conv_1/items", "responses"),
    ("/v1/messages", "messages"),
    ("/anthropic/v1/messages", "messages"),
    ("/v1/messages/count_tokens", "messages"),
    ("/v1/threads/t/messages", "other"),
    ("/v1/embeddings", "embeddings"),
    ("/generate", "generate"),
    ("/completion", "generate"),
    ("/v1/rerank", "other"),
    ("/", "other"),
    ("", "other"),
    ("/v1/audio/transcriptions", "other"),
]


@pytest.mark.parametrize(("path", "name"), PATHS)
def test_the_path_decides_the_family(path: str, name: str) -> None:
    assert dialect_of(path).name == name
    assert DIALECTS[name].name == name


JSON = (b"content-type", b"application/json; charset=utf-8")
WANTS = [
    (head(CHAT, JSON), True),
    (head(CHAT), True),
    (head(CHAT, (b"content-type", b"text/plain")), True),
    (head(CHAT, (b"content-type", b"application/x-www-form-urlencoded")), True),  # curl -d
    (head(CHAT, (b"content-type", b"application/vnd.api+json")), True),
    (head(CHAT, (b"content-type", b"multipart/form-data; boundary=x")), False),
    (head(CHAT, (b"content-type", b"application/octet-stream")), False),
    (head(CHAT, (b"content-type", b"audio/wav")), False),
    (head(CHAT, (b"content-type", b"application/jsonlines")), False),
    (head(CHAT, JSON, (b"content-encoding", b"gzip")), False),
    (head(CHAT, JSON, (b"content-length", b"0")), False),
    (head("/v1/responses/resp_1", method=b"GET"), False),
    (head("/v1/rerank", JSON, (b"content-length", b"1000")), True),
    (head("/v1/rerank", JSON, (b"content-length", b"100000000")), False),
    (head("/v1/rerank", JSON), False),
]


@pytest.mark.parametrize(("request_head", "wanted"), WANTS)
def test_only_bodies_that_can_say_something_are_held_up(request_head: Head, wanted: bool) -> None:
    """F40"""
    assert wants_body(request_head) is wanted


SAME_SESSION: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [user("a")]}),
    ("/v1/completions", {"prompt": "a"}),
    (RESPONSES, {"input": "a"}),
    (MESSAGES, {"messages": [user("a")]}),
    ("/v1/embeddings", {"input": "a"}),
    ("/generate", {"text": "a"}),
    ("/v1/rerank", {"query": "a"}),
]


def test_a_session_has_one_key_on_every_path_in_body_or_header() -> None:
    """F95"""
    found = [read(path, {"model": "m", "session_id": "s", **body}) for path, body in SAME_SESSION]
    found += [read(path, {"model": "m", **body}, (b"x-session-id", b"s")) for path, body in SAME_SESSION]
    assert len({(request.session, request.key) for request in found}) == 1
    assert {request.source for request in found} == {"session_id", "x-session-id"}
    assert found[0].session > 0


def test_a_session_is_another_one_under_another_model_or_salt() -> None:
    """F97"""
    bodies: list[dict[str, Any]] = [
        {"model": "a"},
        {"model": "b"},
        {"model": "a", "cache_salt": "x"},
        {"model": "a", "lora_path": "l"},
    ]
    assert len({read(CHAT, {"session_id": "s", **body}).key for body in bodies}) == 4


def test_a_hint_only_starts_the_ring() -> None:
    one = read(CHAT, {"model": "m", "prompt_cache_key": "app", "messages": [user("a")]})
    two = read(CHAT, {"model": "m", "prompt_cache_key": "app", "messages": [user("b")]})
    assert one.session == two.session == 0
    assert one.key == two.key
    assert one.source == "prompt_cache_key"
    assert one.chain[-1] != two.chain[-1]


def test_a_conversation_without_a_name_names_itself_over_all_its_turns() -> None:
    """F101"""
    turn = [system("shared"), user("a")]
    first = read(CHAT, {"model": "m", "messages": turn, "temperature": 0.1})
    second = read(
        CHAT, {"messages": [*turn, {"role": "assistant", "content": "b"}, user("c")], "model": "m", "stream": True}
    )
    other = read(CHAT, {"model": "m", "messages": [system("shared"), user("z")]})
    assert first.source == "conversation"
    assert first.key == second.key != other.key
    assert first.chain[-1] in second.chain
    assert other.chain[: other.opening] == first.chain[: first.opening]
    assert (first.opening, first.stable, first.session) == (2, 1, 0)
    assert (first.stream, second.stream) == (False, True)


def test_equal_first_requests_have_one_key_whatever_their_ids() -> None:
    """F94"""
    body = {"model": "m", "messages": [user("a")]}
    found = [
        read(CHAT, body, (b"x-request-id", str(i).encode()), (b"authorization", str(i).encode())) for i in range(20)
    ]
    assert len({request.key for request in found}) == 1


def test_sampling_parameters_never_enter() -> None:
    """F107"""
    plain = read(CHAT, {"model": "m", "messages": [user("a")]})
    tuned = read(
        CHAT, {"model": "m", "temperature": 1, "max_tokens": 5, "seed": 7, "messages": [user("a")], "stream": True}
    )
    assert plain.chain == tuned.chain


@pytest.mark.parametrize("member", ["model", "cache_salt", "tools", "functions", "lora_path"])
def test_what_shapes_the_cache_enters_the_first_link(member: str) -> None:
    plain = read(CHAT, {"messages": [user("a")]})
    shaped = read(CHAT, {"messages": [user("a")], member: "x"})
    assert plain.chain[0] != shaped.chain[0]


def test_an_anthropic_system_text_is_in_front_of_the_messages() -> None:
    one = read(MESSAGES, {"model": "m", "system": "s", "messages": [user("a")]})
    two = read(MESSAGES, {"model": "m", "system": "t", "messages": [user("a")]})
    assert one.chain[0] != two.chain[0]
    assert (one.opening, one.stable) == (1, 0)


def test_responses_read_text_as_one_user_message_and_instructions_as_system() -> None:
    text = read(RESPONSES, b'{"model":"m","instructions":"i","input":"hello"}')
    items = read(
        RESPONSES,
        b'{"model":"m","instructions":"i","input":[{"role":"user","content":"hello"},{"role":"user","content":"b"}]}',
    )
    assert len(text.chain) == 2
    assert text.chain == items.chain[:2]
    assert text.chain[0] != read(RESPONSES, b'{"model":"m","input":"hello"}').chain[0]


EARLIER = [
    ("/v1/responses", {"input": "a", "previous_response_id": "resp_1"}, "resp_1"),
    ("/v1/responses/resp_2", {}, "resp_2"),
    ("/v1/responses/resp_2/cancel", {}, "resp_2"),
    ("/v1/responses/input_tokens", {"input": "a"}, ""),
    ("/v1/responses", {"input": "a", "previous_response_id": 5}, ""),
    ("/v1/conversations/conv_3/items", {}, "conv_3"),
    ("/v1/chat/completions", {"previous_response_id": "resp_1"}, ""),
]


@pytest.mark.parametrize(("path", "body", "response_id"), EARLIER)
def test_an_earlier_response_is_named_by_member_or_path(path: str, body: object, response_id: str) -> None:
    assert read(path, body).response_id == response_id


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x" * 9000}),
        ("/v1/completions", {"prompt": ["x" * 9000]}),
        ("/v1/completions", {"prompt": list(range(3000))}),
        ("/generate", {"text": "x" * 9000}),
        ("/generate", {"input_ids": list(range(3000))}),
        ("/completion", {"prompt": "x" * 9000}),
        ("/v1/embeddings", {"input": "x" * 9000}),
    ],
)
def test_prompts_without_messages_are_read_in_blocks(path: str, body: dict[str, Any]) -> None:
    request = read(path, body)
    longer = read(path, {name: value * 2 for name, value in body.items()})
    assert len(request.chain) == len(request.sizes) > 8
    assert request.opening == 4
    assert request.chain[:-1] == longer.chain[: len(request.chain) - 1]
    assert request.key == longer.key != 0


GOOD = b'{"role":"user","content":"a"}'
ODD = [
    (b'{"model":7,"session_id":"s","messages":[%b]}' % GOOD, 2),
    (b'{"model":"m","session_id":"s","messages":null}', 0),
    (b'{"model":"m","session_id":"s","messages":"text"}', 0),
    (b'{"model":"m","session_id":"s","messages":5}', 0),
    (b'{"model":"m","session_id":"s","messages":{}}', 0),
    (b'{"session_id":"s","messages":[1,null,"x",[],{}]}', 6),
    (b'{"session_id":"s","messages":[{"role":"user","content":null}]}', 2),
    (b'{"session_id":"x","session_id":"s","messages":[%b]}' % GOOD, 2),
    (b'{"session_id":"s","temperature":NaN,"messages":[%b]}' % GOOD, 2),
    (b'{"session_id":"s","temperature":1e400,"seed":%b,"messages":[%b]}' % (b"9" * 6000, GOOD), 2),
    (b'\xef\xbb\xbf{"session_id":"s","messages":[%b]}' % GOOD, 2),
    (b'  \r\n{"session_id":"s","messages":[%b]}' % GOOD, 2),
    (b'{"session_id":"s","messages":[{"role":"user","content":"\\ud83d"}]}', 2),
    (b'{"session_id":"s","messages":[{"role":"user","content":"a\x01\xff"}]}', 2),
    (b'{"session_id":"s","messages":[%b,{"role":"us' % GOOD, 2),
    (b'{"session_id":"s","messages":[%b]} trailing' % GOOD, 2),
    (b'{"session_id":"s","x":%b%b}' % (b"[" * 10_000, b"]" * 10_000), 0),
    (b'{"session_id":"s","messages":[%b,%b%b]}' % (GOOD, b"[" * 10_000, b"]" * 10_000), 2),
]


@pytest.mark.parametrize(("body", "links"), ODD)
def test_an_odd_body_is_read_as_far_as_it_goes(body: bytes, links: int) -> None:
    """F38, F68, F95"""
    request = read(CHAT, body)
    assert request.source == "session_id"
    assert len(request.chain) == len(request.sizes) == links
    assert request.body_bytes == len(body)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"[1,2]", b"null", b"\x00", b"--boundary\r\n", gzip.compress(b"{}"), b"{", b'{"']
)
def test_what_is_no_object_still_passes_keyed_by_its_headers(body: bytes) -> None:
    """F40"""
    assert read(CHAT, body).source == "none"
    assert read(CHAT, body).key == 0
    assert read(CHAT, body, (b"x-session-id", b"s")).source == "x-session-id"


def test_a_strict_and_a_tolerant_reading_hash_alike() -> None:
    strict = read(CHAT, b'{"model":"m","messages":[{"role":"user", "content":"\xc3\xbc\xff"}],"temperature":0}')
    tolerant = read(CHAT, b'{"model":"m","messages":[{"role":"user", "content":"\xc3\xbc\xff"}],"temperature":NaN}')
    assert strict.chain == tolerant.chain != ()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(kind: type) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"a"}]}'
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/completions"):
        assert dialect_of(path).read(head(path), kind(body), SOURCES) == read(path, body)


def test_a_body_that_is_not_read_counts_by_its_declared_length() -> None:
    upload = head("/v1/audio/transcriptions", (b"content-length", b"123456"))
    assert dialect_of(upload.path).read(upload, b"", SOURCES).body_bytes == 123456


def test_a_header_can_spare_the_body() -> None:
    named = head(CHAT, (b"x-session-id", b"s"))
    request = by_header("chat", named, SOURCES, "m", 1000)
    assert request is not None
    assert (request.source, request.body_bytes, request.prompt_bytes) == ("x-session-id", 1000, 1000)
    assert request.key == read(CHAT, b'{"model":"m"}', (b"x-session-id", b"s")).key
    assert by_header("chat", head(CHAT), SOURCES, "m", 1000) is None


def test_who_opens_is_looked_for_behind_those_who_lead() -> None:
    developer = {"role": "developer", "content": "d"}
    assistant = {"content": "welcome", "role": "assistant"}
    cases = [
        ([user("a")], 1),
        ([system("s"), developer, user("a")], 3),
        ([system("s"), assistant, user("a")], 3),
        ([system("s")], 1),
        ([system("s"), assistant], 2),
        ([assistant], 1),
    ]
    for messages, opening in cases:
        assert read(CHAT, {"messages": messages}).opening == opening
