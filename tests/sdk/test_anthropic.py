"""What Anthropic's client asks through the router it gets as from the engine itself."""

import anthropic
import pytest

from tests.engines.llamacpp import LlamaCpp

pytestmark = pytest.mark.engine


def test_messages(anthropic_sdk: anthropic.Anthropic) -> None:
    reply = anthropic_sdk.messages.create(
        model="tiny", max_tokens=8, system="be brief", messages=[{"role": "user", "content": "hello"}]
    )
    assert reply.stop_reason == "max_tokens"
    assert reply.usage.output_tokens == 8
    assert [block.type for block in reply.content] == ["text"]


def test_messages_stream(anthropic_sdk: anthropic.Anthropic) -> None:
    with anthropic_sdk.messages.stream(
        model="tiny", max_tokens=8, messages=[{"role": "user", "content": "hello"}]
    ) as stream:
        text = "".join(stream.text_stream)
        whole = stream.get_final_message()
    assert len(text) == 8
    assert whole.stop_reason == "max_tokens"
    assert whole.usage.output_tokens == 8


def test_a_request_with_tools_and_a_breakpoint_passes(anthropic_sdk: anthropic.Anthropic) -> None:
    reply = anthropic_sdk.messages.create(
        model="tiny",
        max_tokens=8,
        system=[{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
        tools=[{"name": "look", "description": "Look", "input_schema": {"type": "object", "properties": {}}}],
        messages=[{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
    )
    assert reply.role == "assistant"


def test_count_tokens(anthropic_sdk: anthropic.Anthropic) -> None:
    count = anthropic_sdk.messages.count_tokens(model="tiny", messages=[{"role": "user", "content": "hello"}])
    assert count.input_tokens == len("user: hello\nassistant: ")


def test_the_next_turn_reads_the_cache(anthropic_sdk: anthropic.Anthropic, replicas: list[LlamaCpp]) -> None:
    assert len(replicas) > 1
    messages: list[anthropic.types.MessageParam] = [{"role": "user", "content": "a first question of some length"}]
    first = anthropic_sdk.messages.create(model="tiny", max_tokens=8, messages=messages)
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": "and a second"}]
    second = anthropic_sdk.messages.create(model="tiny", max_tokens=8, messages=messages)
    before = first.usage.input_tokens + (first.usage.cache_read_input_tokens or 0)
    assert (second.usage.cache_read_input_tokens or 0) >= before - 1


def test_the_engines_refusal_is_a_bad_request_error(anthropic_sdk: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="exceeds the available context size"):
        anthropic_sdk.messages.create(model="tiny", max_tokens=8, messages=[{"role": "user", "content": "x" * 9000}])
