"""A replica dies, or restarts, or is drained: its own sessions move once, and nobody else notices."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby

import httpx
import pytest

from tests.engines.conversation import BrokenOff, Conversation, Turn, assert_whole_reuse
from tests.engines.llamacpp import LlamaCpp
from tests.running import RunningRouter, running_router, until

pytestmark = pytest.mark.engine


@dataclass
class Talk:
    """A conversation held by a thread until it is told to stop; failures are kept with the time they were sent at."""

    conversation: Conversation
    failures: list[tuple[float, Exception]] = field(default_factory=list)

    def hold(self, client: httpx.Client, stop: threading.Event) -> None:
        while not stop.is_set() and len(self.conversation.turns) < 40:  # its slot holds 60
            sent = time.monotonic()
            try:
                self.conversation.take_turn(client)
            except (httpx.HTTPError, BrokenOff) as error:
                self.failures.append((sent, error))
            stop.wait(0.01)  # a tool runs

    def stays(self) -> list[list[Turn]]:
        return [list(turns) for _, turns in groupby(self.conversation.turns, lambda turn: turn.replica)]


def test_killed_replicas_sessions_move_once_and_nobody_else_moves(replicas: list[LlamaCpp]) -> None:
    """F64, F71: kill -9 under load. What was running there may fail, with an error that says so; nothing sent later."""
    talks = [Talk(Conversation(f"outage {number}", stream=bool(number % 2))) for number in range(9)]
    stop = threading.Event()
    with running_router([replica.url for replica in replicas]) as router, ThreadPoolExecutor(len(talks)) as pool:
        router.until_up()
        try:
            for talk in talks:
                talk.conversation.take_turn(router.http)
            dead = next(each for each in replicas if each.id == talks[0].conversation.homes[0])
            running = [pool.submit(talk.hold, router.http, stop) for talk in talks]
            until(lambda: all(len(talk.conversation.turns) >= 4 for talk in talks))
            dead.kill()
            killed = time.monotonic()
            served = [len(talk.conversation.turns) for talk in talks]
            until(lambda: all(len(t.conversation.turns) >= n + 4 for t, n in zip(talks, served, strict=True)))
            assert router.http.get("/v1/models").status_code == 200
        finally:
            stop.set()
        for each in running:
            each.result()
        for talk in talks:
            assert_moved_only_from(dead.id, talk, killed)
        router.until_idle()

        dead.start()
        router.until_up(dead.id)
        homes = {talk.conversation.name: talk.conversation.homes[-1] for talk in talks}
        assert all(talk.conversation.take_turn(router.http).replica == homes[talk.conversation.name] for talk in talks)
        until(lambda: Conversation(f"newcomer {time.monotonic()}").take_turn(router.http).replica == dead.id)
        router.until_idle()


def assert_moved_only_from(dead: str, talk: Talk, killed: float) -> None:
    first, *later = stays = talk.stays()
    assert len(stays) == (2 if first[0].replica == dead else 1)
    assert not later or later[0][0].replica != dead
    for turns in stays:
        assert_whole_reuse(turns)
    assert all(sent < killed for sent, _ in talk.failures), talk.failures
    for _, error in talk.failures:
        assert first[0].replica == dead
        assert_is_proper(error)


def assert_is_proper(error: Exception) -> None:
    """An error of ours in the dialect's own form, in the answer or in the stream; or a cut that no client can miss."""
    if isinstance(error, httpx.HTTPStatusError):
        assert error.response.status_code == 502
        assert error.response.json()["error"]["code"] == "replica_failed"
    elif isinstance(error, BrokenOff):
        assert error.args[0]["type"] == "router_error"
    else:
        assert isinstance(error, httpx.RemoteProtocolError)


def test_a_restarted_replica_is_known_to_have_lost_its_sessions(
    router: RunningRouter, replicas: list[LlamaCpp]
) -> None:
    """F85: nobody asked it anything while it was away, so only its own counters tell."""
    conversation = Conversation("slept through a restart")
    for _ in range(3):
        turn = conversation.take_turn(router.http)
    home = next(each for each in replicas if each.id == turn.replica)
    until(lambda: home.metric("prompt_tokens_total") > 0)
    before = router.replica(home.id)["incarnation"]
    time.sleep(0.25)  # two scrapes
    home.restart()
    until(lambda: router.replica(home.id)["incarnation"] == before + 1, lambda: str(router.fleet()))
    router.until_up(home.id)
    verdict = router.explain("/v1/chat/completions", conversation.body(), conversation.headers)
    assert verdict["home_lost"] is True
    assert verdict["expected_cached_tokens"] == 0
    again = conversation.take_turn(router.http)
    assert again.reason in ("ring", "spread")
    assert conversation.take_turn(router.http).replica == again.replica


def test_explain_says_where_a_known_session_goes_and_sends_nothing(router: RunningRouter) -> None:
    for named in (True, False):
        conversation = Conversation(f"explained {named}", named=named)
        home = conversation.take_turn(router.http).replica
        before = router.fleet()["totals"]["tick"]
        verdict = router.explain("/v1/chat/completions", conversation.body(), conversation.headers)
        assert router.fleet()["totals"]["tick"] == before
        assert (verdict["replica"], verdict["reason"]) == (home, "session" if named else "prefix")
        assert 0 < verdict["expected_cached_tokens"] <= verdict["prompt_tokens"]
        turn = conversation.take_turn(router.http)
        assert (turn.replica, turn.reason) == (verdict["replica"], verdict["reason"])


def test_a_drained_replicas_session_moves_with_its_next_turn_and_stays_where_it_went(router: RunningRouter) -> None:
    conversation = Conversation("drained")
    first = [conversation.take_turn(router.http) for _ in range(2)]
    home = first[0].replica
    router.drain(home)
    try:
        moved = [conversation.take_turn(router.http) for _ in range(3)]
        assert router.replica(home)["state"] == "draining"
    finally:
        router.undrain(home)
    back = [conversation.take_turn(router.http) for _ in range(2)]
    assert len(conversation.homes) == 2
    assert moved[0].cached < first[1].prompt / 2
    assert_whole_reuse(moved + back)


def test_a_drained_replica_ends_what_it_has_begun(router: RunningRouter) -> None:
    body = {"model": "tiny", "max_tokens": 500, "stream": True, "prompt": "a long story"}
    with router.http.stream("POST", "/v1/completions", json=body) as answer:
        chunks = answer.iter_bytes()
        text = next(chunks)
        router.drain(answer.headers["x-router-replica"])
        text += b"".join(chunks)
    router.undrain(answer.headers["x-router-replica"])
    assert text.endswith(b"data: [DONE]\n\n")
    assert text.count(b'"finish_reason":null') == 500
