"""A session's turns find its whole context in the replica's cache: proved by what llama.cpp itself counts."""

from concurrent.futures import ThreadPoolExecutor
from random import Random

import httpx
import pytest

from tests.engines.conversation import Conversation, assert_whole_reuse, cached_share
from tests.engines.llamacpp import LlamaCpp
from tests.running import RunningRouter, running_router

pytestmark = pytest.mark.engine

SESSIONS, TURNS = 12, 6
OPENING = 64  # tokens that two conversations may share by chance: the first role and little more


def talk(client: httpx.Client, conversations: list[Conversation]) -> None:
    """Each its turns in order, half of the conversations at a time."""

    def hold(conversation: Conversation) -> None:
        for _ in range(TURNS):
            conversation.take_turn(client)

    with ThreadPoolExecutor(SESSIONS // 2) as pool:
        list(pool.map(hold, conversations))


def talk_in_order(client: httpx.Client, conversations: list[Conversation]) -> None:
    """One request after the other, in an order that is mixed and always the same."""
    order = [conversation for conversation in conversations for _ in range(TURNS)]
    Random(1).shuffle(order)
    for conversation in order:
        conversation.take_turn(client)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("named", "source", "reason"), [(True, "x-session-id", "session"), (False, "conversation", "prefix")]
)
def test_every_session_keeps_its_replica_and_finds_its_whole_context_there(
    router: RunningRouter, named: bool, source: str, reason: str, stream: bool
) -> None:
    conversations = [
        Conversation(f"{source} {stream} {number}", named=named, stream=stream) for number in range(SESSIONS)
    ]
    talk(router.http, conversations)
    for conversation in conversations:
        assert len(conversation.homes) == 1
        assert conversation.turns[0].cached < OPENING
        assert_whole_reuse(conversation.turns)
        assert {turn.source for turn in conversation.turns} == {source}
        assert {turn.reason for turn in conversation.turns[1:]} == {reason}


def test_the_router_counts_what_the_replicas_counted(replicas: list[LlamaCpp]) -> None:
    conversations = [Conversation(f"counted {number}", stream=bool(number % 2)) for number in range(4)]
    with running_router([replica.url for replica in replicas]) as router:
        talk(router.http, conversations)
        turns = [turn for conversation in conversations for turn in conversation.turns]
        assert router.metric("router_prompt_tokens_total") == sum(turn.prompt for turn in turns)
        assert router.metric("router_cached_tokens_total") == sum(turn.cached for turn in turns)
        assert router.metric("router_requests_total", outcome="ok") == len(turns)
        assert router.metric("router_decisions_total") == len(turns)
        assert router.metric("router_session_source_total", source="x-session-id") == len(turns)
        assert router.fleet()["totals"]["sessions"] == len(conversations)
        router.until_idle()


def test_round_robin_finds_much_less_than_locality(router: RunningRouter, replicas: list[LlamaCpp]) -> None:
    local = [Conversation(f"local {number}") for number in range(SESSIONS)]
    talk_in_order(router.http, local)
    rotated = [Conversation(f"rotated {number}") for number in range(SESSIONS)]
    with running_router([replica.url for replica in replicas], "--policy", "round_robin") as round_robin:
        talk_in_order(round_robin.http, rotated)
        round_robin.until_idle()
    assert {len(conversation.homes) for conversation in local} == {1}
    assert {turn.replica for conversation in rotated for turn in conversation.turns} == {each.id for each in replicas}
    # Three replicas: a turn finds what its session left there some turns ago, or nothing.
    assert cached_share(rotated) < 0.75 * cached_share(local)  # 0.51 and 0.77
