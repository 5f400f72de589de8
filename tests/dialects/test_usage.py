"""What replies of real engines say of themselves, however their bytes were cut."""

import json
import zlib
from pathlib import Path

import pytest

from router.core.request import Usage
from router.dialects import DIALECTS

ENGINES = Path(__file__).parent.parent / "data" / "engines"
FIRST, LAST = 4096, 65536


def body_of(name: str) -> bytes:
    return (ENGINES / name).read_bytes().partition(b"\r\n\r\n")[2]


def usage(dialect: str, body: bytes, stream: bool) -> Usage:
    return DIALECTS[dialect].usage(body[:FIRST], body[-LAST:], stream)


def sse(*events: object, end: str = "\n\n") -> bytes:
    return "".join(f"data: {json.dumps(event)}{end}" for event in events).encode()


RECORDED = [
    ("chat", "vllm/chat_nonstream.http", False, Usage(15, 0, 8, "length")),
    ("chat", "vllm/chat_stream.http", True, Usage(15, 0, 6, "length")),
    ("completions", "vllm/completion_prompt_ids.http", False, Usage(4, 0, 4, "length")),
    ("messages", "vllm/messages_nonstream.http", False, Usage(13, 0, 6, "max_tokens")),
    ("messages", "vllm/messages_stream.http", True, Usage(13, 0, 6, "max_tokens")),
    ("messages", "vllm/count_tokens.http", False, Usage()),
    ("responses", "vllm/responses.http", False, Usage(13, 0, 6, "max_output_tokens", False, "resp_88174cee9849145a")),
    ("chat", "llamacpp/chat_nonstream.http", False, Usage(15, 0, 8, "length")),
    ("chat", "llamacpp/chat_stream.http", True, Usage(15, 14, 4, "length")),
    ("messages", "llamacpp/messages.http", False, Usage(13, 3, 6, "max_tokens")),  # 10 new, 3 from the cache
]


@pytest.mark.parametrize(("dialect", "name", "stream", "expected"), RECORDED)
def test_recorded_replies(dialect: str, name: str, stream: bool, expected: Usage) -> None:
    assert usage(dialect, body_of(name), stream) == expected


@pytest.mark.parametrize("name", ["vllm/sigterm_stream.tail", "vllm/enginekill_stream.tail"])
def test_a_stream_that_an_engine_broke_off_is_a_failure_though_it_says_done(name: str) -> None:
    """F1, F127"""
    tail = (ENGINES / name).read_bytes()
    assert tail.endswith(b"[DONE]\n\n")
    assert usage("chat", tail, True).failed


STREAMS = [(dialect, name, expected) for dialect, name, stream, expected in RECORDED if stream]


@pytest.mark.parametrize(("dialect", "name", "expected"), STREAMS)
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_any_line_end_with_or_without_a_space_or_a_last_blank_line(
    dialect: str, name: str, expected: Usage, end: bytes
) -> None:
    """F133"""
    body = body_of(name).replace(b"\n", end)
    for variant in (body, body.replace(b"data: ", b"data:"), body.rstrip(), b": ping" + end + end + body):
        assert usage(dialect, variant, True) == expected


@pytest.mark.parametrize(("dialect", "name", "expected"), STREAMS)
def test_a_tail_may_begin_anywhere(dialect: str, name: str, expected: Usage) -> None:
    """F133: usage does not depend on where the window was cut, as long as its event is inside."""
    body = body_of(name)
    whole = body.rfind(b'"usage"', 0, len(body))
    event = body.rfind(b"\n\n", 0, whole)
    for cut in range(event + 1):
        found = DIALECTS[dialect].usage(body[:FIRST], body[cut:], True)
        assert (found.prompt_tokens, found.cached_tokens, found.completion_tokens) == (
            expected.prompt_tokens, expected.cached_tokens, expected.completion_tokens,
        )  # fmt: skip


def test_usage_is_found_in_an_event_larger_than_the_window() -> None:
    """F133: response.completed repeats the whole output."""
    response = {
        "id": "resp_9",
        "object": "response",
        "status": "completed",
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "x\n" * 1_000_000}]}],
        "usage": {"input_tokens": 50, "input_tokens_details": {"cached_tokens": 40}, "output_tokens": 7},
    }
    created = {
        "type": "response.created",
        "response": {"id": "resp_9", "object": "response", "instructions": "i" * 9000},
    }
    body = sse(created, {"type": "response.completed", "response": response})
    found = usage("responses", body, True)
    assert (found.prompt_tokens, found.cached_tokens, found.completion_tokens) == (50, 40, 7)
    assert found.response_id == "resp_9"


def test_usage_is_found_in_an_object_larger_than_the_window() -> None:
    reply = {
        "id": "chatcmpl-1",
        "choices": [{"message": {"content": 'a "usage": {} ' * 20_000}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 6, "prompt_tokens_details": None},
    }
    assert usage("chat", json.dumps(reply).encode(), False) == Usage(5, None, 6, "stop")


def response_event(kind: str, **members: object) -> dict[str, object]:
    counts = {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 3}
    return {
        "type": f"response.{kind}",
        "response": {"object": "response", "id": "resp_1", "status": kind, "usage": counts, **members},
    }


RESPONSES = [
    (response_event("completed"), Usage(5, 4, 3, "completed", False, "resp_1")),
    (response_event("completed", output=[{"type": "function_call"}]), Usage(5, 4, 3, "tool_calls", False, "resp_1")),
    (
        response_event("incomplete", incomplete_details={"reason": "max_output_tokens"}),
        Usage(5, 4, 3, "max_output_tokens", False, "resp_1"),
    ),
    (response_event("failed", error={"code": "server_error"}), Usage(5, 4, 3, "failed", True, "resp_1")),
]


@pytest.mark.parametrize(("event", "expected"), RESPONSES)
def test_every_terminal_event_of_responses_counts(event: dict[str, object], expected: Usage) -> None:
    """F134"""
    item = {"type": "response.output_item.done", "item": {"type": "message", "status": "completed"}}
    assert (
        usage("responses", sse({"type": "response.created", "response": {"id": "resp_1"}}, item, event), True)
        == expected
    )


def test_a_response_that_only_began_is_known_by_its_id() -> None:
    begun = sse(
        {"type": "response.created", "response": {"object": "response", "id": "resp_7", "status": "in_progress"}}
    )
    item = {"type": "response.output_item.done", "item": {"id": "msg_1", "status": "completed"}}
    assert usage("responses", begun + sse(item), True) == Usage(response_id="resp_7")


FAILURES = [
    ("chat", sse({"choices": [], "error": {"message": "m"}}) + b"data: [DONE]\n\n", True),
    ("chat", b'{"error":{"message":"m","code":500}}', False),
    ("chat", b'{"error":{"message":"m","code":500}}', True),  # announced as a stream, answered as an object
    ("chat", sse({"choices": [{"finish_reason": "stop"}, {"finish_reason": "abort"}]}), True),
    ("completions", sse({"choices": [{"finish_reason": "error"}]}), True),
    ("responses", sse({"type": "error", "code": "server_error", "message": "m"}), True),
    ("responses", sse({"type": "response.failed", "response": {"status": "failed"}}), True),
    ("messages", b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n', True),
    ("generate", sse({"text": "", "meta_info": {"finish_reason": {"type": "abort", "message": "m"}}}), True),
    ("generate", sse({"error": {"message": "m"}}), True),
    ("other", b'{"error":"m"}', False),
]


@pytest.mark.parametrize(("dialect", "body", "stream"), FAILURES)
def test_a_failure_inside_a_200_is_a_failure(dialect: str, body: bytes, stream: bool) -> None:
    """F127"""
    assert usage(dialect, body, stream).failed


def test_an_error_that_is_null_is_none() -> None:
    assert usage("responses", b'{"object":"response","status":"completed","error":null}', False) == Usage(
        finish="completed"
    )
    assert not usage("chat", b'{"error":null,"choices":[]}', False).failed


def message_start(**counts: int) -> dict[str, object]:
    return {"type": "message_start", "message": {"usage": {"output_tokens": 1, **counts}}}


def message_delta(**counts: int) -> dict[str, object]:
    return {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": counts}


ANTHROPIC = [
    # as Anthropic: three disjoint parts at the start, output at the end
    (
        message_start(input_tokens=10, cache_read_input_tokens=70, cache_creation_input_tokens=20),
        message_delta(output_tokens=5),
        Usage(100, 70, 5, "tool_use"),
    ),
    # as vLLM: the whole prompt at the start, corrected at the end
    (
        message_start(input_tokens=100),
        message_delta(input_tokens=30, cache_read_input_tokens=70, cache_creation_input_tokens=0, output_tokens=5),
        Usage(100, 70, 5, "tool_use"),
    ),
    # as an engine that does not report cached tokens
    (message_start(input_tokens=100), message_delta(output_tokens=5), Usage(100, None, 5, "tool_use")),
]


@pytest.mark.parametrize(("start", "delta", "expected"), ANTHROPIC)
def test_an_anthropic_prompt_is_the_sum_of_its_parts(
    start: dict[str, object], delta: dict[str, object], expected: Usage
) -> None:
    filler = [{"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x" * 100}}] * 1000
    assert usage("messages", sse(start, *filler, delta, {"type": "message_stop"}), True) == expected


def test_engines_own_replies() -> None:
    meta = {
        "id": "x",
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "cached_tokens": 8,
        "finish_reason": {"type": "stop", "matched": 2},
    }
    assert usage("generate", json.dumps({"text": "t", "meta_info": meta}).encode(), False) == Usage(9, 8, 2, "stop")
    assert usage(
        "generate",
        sse({"text": "", "meta_info": {**meta, "finish_reason": None}}, {"text": "t", "meta_info": meta}),
        True,
    ) == Usage(9, 8, 2, "stop")
    native = {
        "stop": True,
        "stop_type": "eos",
        "tokens_evaluated": 9,
        "tokens_predicted": 2,
        "tokens_cached": 10,
        "timings": {"cache_n": 8, "prompt_n": 1, "predicted_n": 2},
    }
    assert usage("generate", json.dumps(native).encode(), False) == Usage(9, 8, 2, "eos")


def test_timings_stand_in_for_usage() -> None:
    """llama.cpp without include_usage."""
    last = {
        "choices": [{"finish_reason": "stop", "delta": {}}],
        "timings": {"cache_n": 14, "prompt_n": 1, "predicted_n": 4},
    }
    assert usage("chat", sse(last) + b"data: [DONE]\n\n", True) == Usage(15, 14, 4, "stop")


def test_a_stream_without_usage_still_says_how_it_ended() -> None:
    chunks = [{"choices": [{"delta": {"content": "x"}, "finish_reason": None}]}] * 500
    assert usage("chat", sse(*chunks, {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}), True) == Usage(
        finish="tool_calls"
    )


@pytest.mark.parametrize(
    "body", [b"", b"not json", b"\x00\xff" * 100, zlib.compress(sse({"usage": {"prompt_tokens": 5}}))]
)
@pytest.mark.parametrize("stream", [True, False])
def test_what_cannot_be_read_is_unknown_never_zero(body: bytes, stream: bool) -> None:
    """F7"""
    for dialect in DIALECTS:
        assert usage(dialect, body, stream) == Usage()


@pytest.mark.parametrize("value", [-1, 1.5, True, "5", None, [], 10**30])
def test_counts_that_are_none_are_unknown(value: object) -> None:
    for dialect in DIALECTS:
        body = json.dumps(
            {"usage": {"prompt_tokens": value, "input_tokens": value, "completion_tokens": value}}
        ).encode()
        assert usage(dialect, body, False).prompt_tokens is None
