"""Whatever clients and engines send, reading it raises nothing."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.keys import Sources
from router.core.request import Request, Usage
from router.dialects import DIALECTS, Head, dialect_of, wants_body

SOURCES = Sources()
VOCABULARY = """
    model messages role user system content text type tools cache_control prompt input input_ids session_id
    session_params conversation id metadata user_id prompt_cache_key stream usage prompt_tokens
    prompt_tokens_details cached_tokens choices finish_reason error response status incomplete_details reason
    message delta stop_reason meta_info timings cache_n output input_tokens output_tokens cache_read_input_tokens
    object stop previous_response_id abort failed
"""
WORDS = st.sampled_from(VOCABULARY.split())
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | WORDS
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(), inner, max_size=5),
    max_leaves=25,
)
OBJECTS = st.dictionaries(WORDS, VALUES, max_size=8)
FRAGMENTS = st.lists(
    st.sampled_from(
        [
            b"data:",
            b"data: ",
            b"event: error",
            b"\n",
            b"\r",
            b"\r\n",
            b"\n\n",
            b"[DONE]",
            b'{"usage":',
            b'"usage"',
            b"{",
            b"}",
            b"[",
            b"]",
            b'"cache_control":',
            b'"cache_control":{"type":"ephemeral"}',
            b",",
            b":",
            b'"',
            b"\\",
            b'\\"',
            b"null",
            b"NaN",
            b"1e999",
            b"\xff",
            b"\xef\xbb\xbf",
            b'{"role":"user","content":[{"type":"text","text":"',
            b'"}]}',
            b'{"messages":[',
            b"\\ud800",
            b'"cch=ab"',
            b" ",
        ]
    )
    | st.binary(max_size=5),
    max_size=30,
).map(b"".join)
BODIES = (
    st.binary(max_size=200)
    | FRAGMENTS
    | VALUES.map(lambda v: json.dumps(v).encode())
    | OBJECTS.map(lambda v: json.dumps(v).encode())
)
NAMES = st.sampled_from([b"x-session-id", b"content-type", b"content-length", b"thread-id", b"x-any"])
HEADS = st.builds(
    Head,
    st.sampled_from([b"POST", b"GET", b""]),
    st.sampled_from(["/v1/chat/completions", "/v1/responses/", "/v1/responses/a", "/v1/conversations/\n", "/", ""])
    | st.text(),
    st.binary(max_size=5),
    st.lists(st.tuples(NAMES, st.binary(max_size=20)), max_size=4),
)


def holds(request: Request) -> bool:
    return (
        len(request.chain) == len(request.sizes)
        and list(request.sizes) == sorted(request.sizes)
        and 0 <= request.opening < max(len(request.chain), 1)
        and 0 <= request.stable < max(len(request.chain), 1)
        and 0 <= request.key < 1 << 64
        and all(0 <= link < 1 << 128 for link in request.chain)
        and request.source in SOURCES.words
        and (request.session == 0 or request.key != 0)
    )


@settings(max_examples=400, deadline=None)
@given(HEADS, BODIES)
def test_reading_a_request_raises_nothing_and_keeps_its_promises(head: Head, body: bytes) -> None:
    wants_body(head)
    for dialect in (*DIALECTS.values(), dialect_of(head.path)):
        request = dialect.read(head, body, SOURCES)
        assert holds(request)
        assert dialect.read(head, memoryview(body), SOURCES) == request
        hash(request)


@settings(max_examples=400, deadline=None)
@given(BODIES | OBJECTS.map(lambda v: b"data: " + json.dumps(v).encode() + b"\n\n"), BODIES, st.booleans())
def test_reading_a_reply_raises_nothing(first: bytes, last: bytes, event_stream: bool) -> None:
    for dialect in DIALECTS.values():
        for windows in ((first, last), (first, first), (first, first + last)):
            found = dialect.usage(*windows, event_stream)
            assert isinstance(found, Usage)
            assert all(
                count is None or count >= 0
                for count in (found.prompt_tokens, found.cached_tokens, found.completion_tokens)
            )


@settings(max_examples=200, deadline=None)
@given(st.text(), st.text())
def test_errors_are_json_whatever_their_words(code: str, message: str) -> None:
    for dialect in DIALECTS.values():
        decoded: dict[str, Any] = json.loads(dialect.error(500, code, message))
        assert decoded["error"]["message"] == message
        assert dialect.error_event(code, message).count(b"\n\n") == 1


def test_deep_nesting_raises_nothing() -> None:
    head = Head(b"POST", "/", b"", ())
    for depth in (500, 900, 1100, 10_000, 1_000_000):
        nested = b"[" * depth + b"]" * depth
        objects = b'{"a":' * depth + b"1" + b"}" * depth
        for body in (
            nested,
            objects,
            b'{"messages":[' + nested + b"]}",
            b'{"prompt":' + objects + b',"session_id":"s"}',
        ):
            for dialect in DIALECTS.values():
                assert holds(dialect.read(head, body, SOURCES))
                for stream in (True, False):
                    dialect.usage(body[:4096], body[-65536:], stream)
                    dialect.usage(b"data: " + body[:4090], b"data: " + body[-65530:], stream)
