"""Failures in the words of each family, tried on the SDKs that must understand them."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import anthropic
import openai
import pytest

from router.dialects import DIALECTS

CODE, MESSAGE = "replica_failed", "the replica went away"
EVENTS, OBJECT = "text/event-stream", "application/json"


@contextmanager
def answering(body: bytes, kind: str = EVENTS, status: int = 200) -> Iterator[str]:
    """One address that answers everything alike; at the socket, because each SDK brings its own HTTP client."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}"
        finally:
            listening.shutdown()
            thread.join()


@contextmanager
def openai_client(body: bytes, kind: str = EVENTS, status: int = 200) -> Iterator[openai.OpenAI]:
    with answering(body, kind, status) as url, openai.OpenAI(api_key="x", base_url=url, max_retries=0) as client:
        yield client


@contextmanager
def anthropic_client(body: bytes, kind: str = EVENTS, status: int = 200) -> Iterator[anthropic.Anthropic]:
    with answering(body, kind, status) as url, anthropic.Anthropic(api_key="x", base_url=url, max_retries=0) as client:
        yield client


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_an_error_body_is_json_of_our_type_with_its_code(name: str) -> None:
    error = json.loads(DIALECTS[name].error(502, CODE, MESSAGE))["error"]
    assert (error["type"], error["code"], error["message"]) == ("router_error", CODE, MESSAGE)


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_a_terminal_event_is_one_event_and_never_done(name: str) -> None:
    """F1"""
    event = DIALECTS[name].error_event(CODE, 'line\nbreak "quoted"')
    assert event.endswith(b"\n\n")
    assert event.count(b"\n\n") == 1
    assert b"[DONE]" not in event
    assert DIALECTS[name].usage(event, event, True).failed


def test_chat_clients_raise() -> None:
    """F2"""
    body = b'data: {"choices":[]}\n\n' + DIALECTS["chat"].error_event(CODE, MESSAGE)
    with openai_client(body) as client, pytest.raises(openai.APIError, match=MESSAGE):
        list(client.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}], stream=True))


def test_completions_clients_raise() -> None:
    """F2"""
    body = DIALECTS["completions"].error_event(CODE, MESSAGE)
    with openai_client(body) as client, pytest.raises(openai.APIError, match=MESSAGE):
        list(client.completions.create(model="m", prompt="a", stream=True))


def test_responses_clients_see_their_response_fail() -> None:
    """F2"""
    body = DIALECTS["responses"].error_event(CODE, MESSAGE)
    with openai_client(body) as client:
        events = list(client.responses.create(model="m", input="a", stream=True))
    assert [event.type for event in events] == ["response.failed"]
    failed = events[0]
    assert failed.type == "response.failed"
    assert failed.response.status == "failed"
    assert failed.response.error is not None
    assert (failed.response.error.code, failed.response.error.message) == (CODE, MESSAGE)


def test_anthropic_clients_raise() -> None:
    """F2"""
    body = DIALECTS["messages"].error_event(CODE, MESSAGE)
    with anthropic_client(body) as client, pytest.raises(anthropic.APIStatusError, match=MESSAGE):
        list(client.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "a"}], stream=True))


def test_clients_read_error_bodies() -> None:
    with openai_client(DIALECTS["chat"].error(503, "overloaded", MESSAGE), OBJECT, 503) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(model="m", messages=[])
        assert (caught.value.code, caught.value.type) == ("overloaded", "router_error")
    body = DIALECTS["messages"].error(503, "overloaded", MESSAGE)
    with anthropic_client(body, OBJECT, 503) as other, pytest.raises(anthropic.APIStatusError, match="overloaded"):
        other.messages.create(model="m", max_tokens=5, messages=[])
