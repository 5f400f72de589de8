"""Failures reach the clients as typed errors: never a hang, never a short answer that looks whole."""

from collections.abc import Callable, Iterator, Sequence

import anthropic
import openai
import pytest

from tests.engines.llamacpp import running_replicas
from tests.mock import Step, json_reply, reset
from tests.running import running_router
from tests.sdk.conftest import anthropic_client, openai_client
from tests.sdk.scripted import broken_stream, scripted_replica

pytestmark = pytest.mark.engine

HELLO: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
ASKED: list[anthropic.types.MessageParam] = [{"role": "user", "content": "hello"}]


def openai_event(text: str) -> str:
    choice = f'{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null}}'
    return f'data: {{"id":"1","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[{choice}]}}\n\n'


ANTHROPIC_EVENTS = (
    'event: message_start\ndata: {"type":"message_start","message":{"id":"1","type":"message","role":"assistant",'
    '"content":[],"model":"tiny","stop_reason":null,"stop_sequence":null,'
    '"usage":{"input_tokens":13,"output_tokens":0}}}\n\n',
    'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
    '"content_block":{"type":"text","text":""}}\n\n',
    'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    '"delta":{"type":"text_delta","text":"one"}}\n\n',
)
RESPONSES_EVENTS = (
    'event: response.created\ndata: {"type":"response.created","sequence_number":0,"response":{"id":"resp_1",'
    '"object":"response","created_at":1,"model":"tiny","status":"in_progress","output":[]}}\n\n',
    'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":1,'
    '"item_id":"msg_1","output_index":0,"content_index":0,"delta":"one","logprobs":[]}\n\n',
)


REFUSED = {"error": {"message": "max_tokens is too large", "type": "BadRequestError", "param": None, "code": 400}}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a router whose one replica fails as the model's name says."""
    replies: dict[str, Sequence[Step]] = {
        "chat-breaks": broken_stream(openai_event("one"), openai_event("two")),
        "chat-breaks-inside": broken_stream(openai_event("one"), openai_event("two")[:40]),
        "messages-break": broken_stream(*ANTHROPIC_EVENTS),
        "responses-break": broken_stream(*RESPONSES_EVENTS),
        "resets": [reset()],
        "refuses": json_reply(REFUSED, 400),
    }
    with scripted_replica(replies) as replica, running_router([replica]) as router:
        yield router.url
        router.until_idle()


def test_a_chat_stream_that_breaks_off_raises(url: str) -> None:
    """F1, F2."""
    got: list[str | None] = []
    with openai_client(url) as client:
        stream = client.chat.completions.create(model="chat-breaks", messages=HELLO, stream=True)
        with pytest.raises(openai.APIError, match="broke off") as caught:
            got.extend(each.choices[0].delta.content for each in stream)
    assert got == ["one", "two"]
    assert (caught.value.type, caught.value.code) == ("router_error", "truncated")


def test_a_chat_stream_that_breaks_off_inside_an_event_raises_an_error_of_the_clients_own(url: str) -> None:
    """F1: half an event cannot be taken back, so the connection is cut; the client calls that APIConnectionError."""
    got: list[str | None] = []
    with openai_client(url) as client:
        stream = client.chat.completions.create(model="chat-breaks-inside", messages=HELLO, stream=True)
        with pytest.raises(openai.APIError):
            got.extend(each.choices[0].delta.content for each in stream)
    assert got == ["one"]


def test_a_messages_stream_that_breaks_off_raises(url: str) -> None:
    """F1, F2."""
    got: list[str] = []
    with (
        anthropic_client(url) as client,
        client.messages.stream(model="messages-break", max_tokens=8, messages=ASKED) as stream,
        pytest.raises(anthropic.APIStatusError, match="broke off"),
    ):
        got.extend(stream.text_stream)
    assert got == ["one"]


def test_a_responses_stream_that_breaks_off_ends_as_failed(url: str) -> None:
    """F1, F2: the event that clients of this family wait for; their SDK hands it on instead of raising."""
    with openai_client(url) as client:
        events = list(client.responses.create(model="responses-break", input="hello", stream=True))
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.status == "failed"
    assert last.response.error is not None
    assert str(last.response.error.code) == "truncated"
    assert "response.completed" not in {event.type for event in events}


def ask_openai(url: str, model: str = "tiny") -> openai.APIStatusError:
    with openai_client(url) as client, pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model=model, messages=HELLO)
    return caught.value


def ask_anthropic(url: str, model: str = "tiny") -> anthropic.APIStatusError:
    with anthropic_client(url) as client, pytest.raises(anthropic.APIStatusError) as caught:
        client.messages.create(model=model, max_tokens=8, messages=ASKED)
    return caught.value


def code_of(error: openai.APIStatusError | anthropic.APIStatusError) -> object:
    """Where a reader of each client's error finds the code."""
    return error.code if isinstance(error, openai.APIStatusError) else error.body["error"]["code"]  # type: ignore[index]


Ask = Callable[..., openai.APIStatusError | anthropic.APIStatusError]
BOTH = pytest.mark.parametrize("ask", [ask_openai, ask_anthropic])


@BOTH
def test_a_replica_that_resets_before_it_answers_is_an_internal_server_error(ask: Ask, url: str) -> None:
    error = ask(url, "resets")
    assert isinstance(error, openai.InternalServerError | anthropic.InternalServerError)
    assert (error.status_code, code_of(error)) == (502, "replica_failed")


@BOTH
def test_the_engines_own_error_keeps_its_status_and_its_words(ask: Ask, url: str) -> None:
    error = ask(url, "refuses")
    assert isinstance(error, openai.BadRequestError | anthropic.BadRequestError)
    assert "max_tokens is too large" in str(error)


@pytest.fixture(scope="module")
def abandoned_router() -> Iterator[str]:
    """All its replicas have been killed."""
    with running_replicas(2) as replicas, running_router([replica.url for replica in replicas]) as router:
        router.until_up()
        for replica in replicas:
            replica.kill()
        yield router.url
        router.until_idle()


@BOTH
def test_with_every_replica_down_the_error_says_so_and_when_to_come_again(ask: Ask, abandoned_router: str) -> None:
    for _ in range(3):  # whether the router learns it now or knew it
        error = ask(abandoned_router)
        assert (error.status_code, code_of(error)) == (503, "no_replica")
        assert int(error.response.headers["retry-after"]) >= 1
