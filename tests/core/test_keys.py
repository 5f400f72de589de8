"""Which source names a session, and what a session's key depends on."""

import json

import pytest

from router.core.keys import HINTS, STRONG, Named, Sources, hint_key, ring_key, session_key, text_of


def members(body: dict[str, object]) -> dict[str, bytes]:
    return {name: json.dumps(value).encode() for name, value in body.items()}


def strong(headers: list[tuple[bytes, bytes]], body: dict[str, object], sources: Sources | None = None) -> Named | None:
    return (sources or Sources()).find(headers, members(body))[0]


UUID = "0b26a6f5-0d2b-4f3e-9f6e-0c8a5a1c9d11"

NAMED = [
    # headers, body → word, value
    ([(b"x-session-id", b"a")], {"session_id": "b"}, "x-session-id", b"a"),
    ([(b"x-session-id", b"")], {"session_id": "b"}, "session_id", b"b"),
    ([(b"x-session-id", b" \t")], {"session_id": "b"}, "session_id", b"b"),
    ([(b"x-session-id", b"a\x01b")], {"session_id": "b"}, "session_id", b"b"),
    ([(b"x-session-id", b""), (b"x-session-id", b"second")], {}, "x-session-id", b"second"),
    ([(b"x-litellm-session-id", b"l"), (b"thread-id", b"t")], {}, "thread-id", b"t"),
    ([(b"session_id", b"codex")], {}, "session_id", b"codex"),
    ([(b"x-smg-routing-key", b"k")], {}, "x-smg-routing-key", b"k"),
    ([], {"session_id": 7}, "session_id", b"7"),
    ([], {"session_id": True, "conversation": "c"}, "conversation_id", b"c"),
    ([], {"session_id": None, "conversation": {"id": "conv_1"}}, "conversation_id", b"conv_1"),
    ([], {"session_id": ["x"], "session_params": {"session_id": "p"}}, "session_params.session_id", b"p"),
    ([], {"session_params": "odd", "metadata": {"session_id": "m"}}, "metadata.session_id", b"m"),
    ([], {"metadata": {"user_id": f"user_ab12_account_{UUID}_session_{UUID}"}}, "metadata.user_id", UUID.encode()),
    ([], {"metadata": {"user_id": json.dumps({"device": "d", "session_id": UUID})}}, "metadata.user_id", UUID.encode()),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "body", "word", "value"), NAMED)
def test_the_first_valid_strong_source_names_the_session(
    headers: list[tuple[bytes, bytes]], body: dict[str, object], word: str, value: bytes
) -> None:
    """F95, F98"""
    assert strong(headers, body) == Named(value, word)


@pytest.mark.parametrize(
    "name",
    [
        b"x-request-id",
        b"x-correlation-id",
        b"traceparent",
        b"x-trace-id",
        b"authorization",
        b"x-forwarded-for",
        b"cookie",
    ],
)
def test_request_ids_traces_credentials_and_addresses_name_nobody(name: bytes) -> None:
    """F94"""
    assert Sources().find([(name, b"value")], {}) == (None, None)


@pytest.mark.parametrize(
    "user_id", ["someone@example.org", "user_1_account_2", "", "{not json", '{"session_id": []}', 5]
)
def test_a_user_id_without_a_session_part_names_nobody(user_id: object) -> None:
    assert strong([], {"metadata": {"user_id": user_id}}) is None


def test_hints_answer_only_where_nothing_strong_does() -> None:
    sources = Sources()
    assert sources.find([], members({"prompt_cache_key": "p", "user": "u"})) == (None, Named(b"p", "prompt_cache_key"))
    assert sources.find([], members({"prompt_cache_key": " ", "user": "u"})) == (None, Named(b"u", "user"))
    assert sources.find([], members({"user": "u", "session_id": "s"})) == (Named(b"s", "session_id"), None)


def test_the_lists_are_settings_and_their_order_is_the_precedence() -> None:
    """F98: a gateway that stamps a new header on every request is beaten by putting the body first."""
    sources = Sources(strong=("body:meta.thread-key", "header:X-My-Key"), hints=())
    assert strong([(b"x-my-key", b"h")], {"meta": {"thread-key": "b"}}, sources) == Named(b"b", "meta.thread-key")
    assert strong([(b"x-my-key", b"h"), (b"x-session-id", b"s")], {}, sources) == Named(b"h", "x-my-key")


@pytest.mark.parametrize(
    "spec", ["", "x-session-id", "cookie:a", "header:", "body:a..b", "body:a.", "header:a b", "body:\n"]
)
def test_a_spec_that_cannot_be_read_is_an_error_that_quotes_it(spec: str) -> None:
    with pytest.raises(ValueError, match="session source") as caught:
        Sources(strong=(spec,))
    assert repr(spec) in str(caught.value)


def test_words_are_bounded_by_the_lists() -> None:
    """F130"""
    assert Sources().words >= {"x-session-id", "conversation_id", "metadata.user_id", "user", "conversation", "none"}
    assert len(Sources().words) <= len(STRONG) + len(HINTS) + 2
    assert "conversation" not in {rule.word for rule in Sources(strong=("header:conversation",)).strong_rules}


def test_only_a_header_that_nothing_in_the_body_precedes_spares_the_body() -> None:
    head = [(b"x-session-id", b"a")]
    assert Sources().by_header(head) == Named(b"a", "x-session-id")
    assert Sources().by_header([]) is None
    assert Sources(strong=("body:session_id", "header:x-session-id")).by_header(head) is None


def test_a_key_is_scoped_by_model_salt_and_lora() -> None:
    """F97"""
    scopes = [(b"a", b"", b""), (b"b", b"", b""), (b"", b"a", b""), (b"", b"", b"a"), (b"", b"", b"")]
    keys = {session_key(scope, b"s") for scope in scopes}
    assert len(keys) == len(scopes)
    assert session_key((b"a", b"", b""), b"s") == session_key((b"a", b"", b""), b"s")


def test_fields_cannot_run_together() -> None:
    """F106"""
    assert session_key((b"ab", b"", b""), b"c") != session_key((b"a", b"", b""), b"bc")
    assert session_key((b"a", b"b", b""), b"c") != session_key((b"a", b"", b"b"), b"c")
    assert hint_key((b"m", b"", b""), b"x") != ring_key(session_key((b"m", b"", b""), b"x"))


def test_no_key_is_ever_zero() -> None:
    assert ring_key(1 << 64) == 1
    assert ring_key(5 << 64 | 3) == 3


def test_long_and_hostile_names_are_just_hashed_or_ignored() -> None:
    assert text_of(json.dumps("x" * 5000).encode()) == b"x" * 5000
    assert text_of(b'"' + b"x" * 100_000 + b'"') == b""
    assert text_of(b"9" * 5000) == b""
    assert text_of(b'"\\ud800"') == b""
    assert text_of(b"1.5") == b""
    assert text_of(b'{"id": {"id": "x"}}') == b""
    assert text_of('"ключ"'.encode()) == "ключ".encode()
