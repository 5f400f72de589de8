"""What a replica says reaches the client as it was said: other API families, errors, plain paths."""

import json
from typing import Any

import httpx
import pytest

from tests.engines.conversation import events
from tests.engines.llamacpp import LlamaCpp
from tests.running import RunningRouter

pytestmark = pytest.mark.engine

CHAT, MESSAGES, COMPLETIONS = "/v1/chat/completions", "/v1/messages", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]
FIXED = {"model": "tiny", "max_tokens": 8, "temperature": 0}


def cached(usage: dict[str, Any]) -> int:
    """What the engine had, in either family's words."""
    count = usage.get("cache_read_input_tokens")
    return int(usage["prompt_tokens_details"]["cached_tokens"] if count is None else count)


@pytest.mark.parametrize(
    ("path", "key"),
    [(CHAT, "messages"), (MESSAGES, "messages"), (COMPLETIONS, "prompt")],
)
def test_a_prompt_that_comes_again_without_any_name_goes_where_it_is_cached(
    router: RunningRouter, path: str, key: str
) -> None:
    """llama.cpp computes the last token of a prompt again, however much of it is cached."""
    text = f"a story for {path}, " * 200  # longer than the blocks by which prompts without messages are known
    body = {**FIXED, key: text if key == "prompt" else [{"role": "user", "content": text}]}
    first, again = (router.http.post(path, json=body).raise_for_status() for _ in range(2))
    assert again.headers["x-router-replica"] == first.headers["x-router-replica"]
    usage = again.json()["usage"]
    prompt = usage.get("prompt_tokens") or usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert cached(usage) == prompt - 1
    assert usage.get("completion_tokens", usage.get("output_tokens")) == 8


def test_an_anthropic_stream_keeps_its_events_in_order(router: RunningRouter) -> None:
    with router.http.stream("POST", MESSAGES, json={**FIXED, "messages": HELLO, "stream": True}) as answer:
        kinds = [event["type"] for event in events(answer)]
    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 8,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (CHAT, b'{"model":', 400),
        (MESSAGES, b'{"model":', 400),
        (CHAT, b"", 400),
        (CHAT, json.dumps({**FIXED}).encode(), 400),
        (CHAT, json.dumps({**FIXED, "messages": [{"role": "user", "content": "x" * 9000}]}).encode(), 400),
        (
            CHAT,
            json.dumps({**FIXED, "messages": [{"role": "user", "content": "x" * 9000}], "stream": True}).encode(),
            400,
        ),
        (MESSAGES, json.dumps({**FIXED, "messages": [{"role": "user", "content": "x" * 9000}]}).encode(), 400),
        ("/v1/embeddings", json.dumps({"model": "tiny", "input": "x"}).encode(), 501),
        ("/v1/no/such/path", b"{}", 404),
        ("/tokenize", b'{"content":"hello there"}', 200),
        ("/detokenize", b'{"tokens":[67,68,69]}', 200),
        ("/v1/messages/count_tokens", json.dumps({"model": "tiny", "messages": HELLO}).encode(), 200),
    ],
)
def test_an_answer_is_relayed_verbatim(
    router: RunningRouter, replicas: list[LlamaCpp], path: str, body: bytes, status: int
) -> None:
    """F44, F68: malformed, too long, unknown or merely other: the replica's status, type and bytes."""
    json_type = {"content-type": "application/json"}
    direct = httpx.post(replicas[0].url + path, content=body, headers=json_type, trust_env=False)
    routed = router.http.post(path, content=body, headers=json_type)
    assert (routed.status_code, routed.content) == (direct.status_code, direct.content)
    assert routed.headers["content-type"] == direct.headers["content-type"]
    assert routed.status_code == status


def test_clients_mistakes_eject_nobody(router: RunningRouter) -> None:
    """F59: twenty of each in a row."""
    for _ in range(20):
        assert router.http.post(CHAT, content=b'{"model":').status_code == 400
        assert router.http.post("/v1/no/such/path").status_code == 404
    assert {each["state"] for each in router.fleet()["replicas"]} == {"up"}


def test_an_engine_that_lacks_an_api_is_not_at_fault_for_saying_so(
    router: RunningRouter, replicas: list[LlamaCpp]
) -> None:
    """llama.cpp without --embeddings answers 501: no sign of ill health, however often it is asked."""
    headers = {"x-session-id": "wants embeddings"}  # all to one replica
    for _ in range(20):
        assert router.http.post("/v1/embeddings", json={"input": "x"}, headers=headers).status_code == 501
    assert {(each["state"], each["failures"]) for each in router.fleet()["replicas"]} == {("up", 0)}


def test_a_model_that_nobody_lists_is_the_engines_to_judge(router: RunningRouter) -> None:
    """llama.cpp serves it all the same."""
    answer = router.http.post(CHAT, json={**FIXED, "model": "unheard-of", "messages": HELLO})
    assert answer.status_code == 200
    assert answer.json()["model"] == "tiny"


def test_models_are_the_union_of_the_replicas(router: RunningRouter) -> None:
    answer = router.http.get("/v1/models")
    assert answer.status_code == 200
    assert [model["id"] for model in answer.json()["data"]] == ["tiny"]
