"""A client that leaves in the middle gives back everything: the replica's slot, the lease, the connection."""

from typing import Any

import httpx
import pytest

from tests.engines.conversation import Conversation
from tests.engines.llamacpp import LlamaCpp
from tests.running import RunningRouter, until

pytestmark = pytest.mark.engine

LONG = 8000  # tokens: seconds of streaming, of which a client here reads the first few
ASK = {"model": "tiny", "max_tokens": LONG, "stream": True}
CHAT = {**ASK, "messages": [{"role": "user", "content": "go on"}]}


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", CHAT), ("/v1/messages", CHAT), ("/v1/completions", {**ASK, "prompt": "go on"})],
)
def test_a_stream_that_its_client_leaves_frees_the_replicas_slot(
    router: RunningRouter, replicas: list[LlamaCpp], path: str, body: dict[str, Any]
) -> None:
    """F10, F14: eight clients read a little and hang up."""
    gone = router.metric("router_requests_total", outcome="client_gone")
    made = sum(replica.metric("tokens_predicted_total") for replica in replicas)
    for _ in range(8):
        with router.http.stream("POST", path, json=body) as answer:
            assert answer.status_code == 200
            next(answer.iter_bytes())
    router.until_idle()
    until(lambda: not any(replica.busy_slots() for replica in replicas))
    assert router.metric("router_requests_total", outcome="client_gone") == gone + 8
    assert sum(replica.metric("tokens_predicted_total") for replica in replicas) - made < 8 * LONG
    assert {each["failures"] for each in router.fleet()["replicas"]} == {0}


def test_a_client_that_leaves_before_the_answer_gives_back_its_place(
    router: RunningRouter, replicas: list[LlamaCpp]
) -> None:
    """F16: llama.cpp never cancels a request that is not streamed; ours ends all the same."""
    gone = router.metric("router_requests_total", outcome="client_gone")
    with httpx.Client(base_url=router.url, timeout=0.1, trust_env=False) as client, pytest.raises(httpx.ReadTimeout):
        client.post("/v1/chat/completions", json={**CHAT, "stream": False, "max_tokens": 3000})
    until(lambda: router.metric("router_requests_total", outcome="client_gone") == gone + 1)
    router.until_idle()
    until(lambda: not any(replica.busy_slots() for replica in replicas))


def test_a_session_whose_stream_was_left_is_still_at_home(router: RunningRouter) -> None:
    conversation = Conversation("left once")
    home = conversation.take_turn(router.http).replica
    with router.http.stream(
        "POST", "/v1/chat/completions", json={**conversation.body(), **ASK}, headers=conversation.headers
    ) as answer:
        next(answer.iter_bytes())
    router.until_idle()
    assert conversation.take_turn(router.http).replica == home
