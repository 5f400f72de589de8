"""What OpenAI's client asks through the router it gets as from the engine itself."""

import openai
import pytest
from openai.types.chat import ChatCompletionToolParam

from tests.engines.llamacpp import LlamaCpp
from tests.running import RunningRouter

pytestmark = pytest.mark.engine

TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look into a file",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}


def test_chat(openai_sdk: openai.OpenAI) -> None:
    reply = openai_sdk.chat.completions.create(
        model="tiny", max_tokens=8, messages=[{"role": "user", "content": "hello"}]
    )
    assert reply.choices[0].finish_reason == "length"
    assert len(reply.choices[0].message.content or "") == 8
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == len("user: hello\nassistant: ")


def test_chat_stream_with_usage(openai_sdk: openai.OpenAI) -> None:
    stream = openai_sdk.chat.completions.create(
        model="tiny",
        max_tokens=8,
        messages=[{"role": "user", "content": "hello"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert len("".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)) == 8
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8


def test_a_stream_without_usage_gets_none_added(openai_sdk: openai.OpenAI) -> None:
    """F43."""
    stream = openai_sdk.chat.completions.create(
        model="tiny", max_tokens=8, messages=[{"role": "user", "content": "hello"}], stream=True
    )
    assert all(chunk.choices and chunk.usage is None for chunk in stream)


def test_a_request_with_tools_passes_and_its_result_comes_back(openai_sdk: openai.OpenAI) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"path":"a"}'}}
    reply = openai_sdk.chat.completions.create(
        model="tiny",
        max_tokens=8,
        tools=[TOOL],
        messages=[
            {"role": "user", "content": "look into a"},
            {"role": "assistant", "content": "", "tool_calls": [call]},  # type: ignore[list-item]
            {"role": "tool", "tool_call_id": "call_1", "content": "it is empty"},
        ],
    )
    assert reply.choices[0].message.role == "assistant"


def test_completions(openai_sdk: openai.OpenAI) -> None:
    whole = openai_sdk.completions.create(model="tiny", prompt="once upon", max_tokens=8)
    assert len(whole.choices[0].text) == 8
    stream = openai_sdk.completions.create(model="tiny", prompt="once upon", max_tokens=8, stream=True)
    assert len("".join(chunk.choices[0].text for chunk in stream)) == 8


def test_responses(openai_sdk: openai.OpenAI) -> None:
    reply = openai_sdk.responses.create(model="tiny", input="hello", max_output_tokens=8)
    assert len(reply.output_text) == 8
    stream = openai_sdk.responses.create(model="tiny", input="hello", max_output_tokens=8, stream=True)
    kinds = [event.type for event in stream]
    assert kinds[0] == "response.created"
    assert kinds.count("response.output_text.delta") == 8
    assert kinds[-1] == "response.completed"


def test_embeddings(openai_sdk: openai.OpenAI) -> None:
    reply = openai_sdk.embeddings.create(model="tiny", input=["one", "two"])
    assert [len(each.embedding) for each in reply.data] == [64, 64]


def test_models(openai_sdk: openai.OpenAI) -> None:
    assert [model.id for model in openai_sdk.models.list()] == ["tiny"]


def test_where_it_went_is_in_the_raw_response(openai_sdk: openai.OpenAI, replicas: list[LlamaCpp]) -> None:
    raw = openai_sdk.chat.completions.with_raw_response.create(
        model="tiny",
        max_tokens=1,
        messages=[{"role": "user", "content": "hello"}],
        extra_headers={"x-session-id": "raw", "x-request-id": "req-7"},
    )
    assert raw.headers["x-router-replica"] in {replica.id for replica in replicas}
    assert raw.headers["x-router-session-source"] == "x-session-id"
    assert raw.headers["x-request-id"] == "req-7"


def test_the_engines_refusal_is_a_bad_request_error(openai_sdk: openai.OpenAI) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="exceeds the available context size") as caught:
            openai_sdk.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "x" * 9000}], stream=stream
            )
        assert caught.value.type == "exceed_context_size_error"


def test_leaving_a_stream_leaves_nothing_behind(openai_sdk: openai.OpenAI, router: RunningRouter) -> None:
    with openai_sdk.chat.completions.create(
        model="tiny", max_tokens=5000, messages=[{"role": "user", "content": "hello"}], stream=True
    ) as stream:
        next(iter(stream))
    router.until_idle()
