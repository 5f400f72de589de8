"""What home is believed to hold, and which replies prove that it does not."""

from router.core.decision import Decision, Reason
from router.core.fleet import Fleet
from router.core.replica import Replica
from router.core.request import Request, Usage


def fleet_of(*ids: str) -> Fleet:
    fleet = Fleet(lambda: 1000.0)
    fleet.update([Replica(name, f"http://{name}") for name in ids])
    for load in fleet.loads.values():
        fleet.probed(load, True)
    return fleet


def session(name: int, tokens: int) -> Request:
    """Named by a header, its body unread."""
    return Request("chat", session=name, source="x-session-id", key=name, body_bytes=4 * tokens)


def turn(fleet: Fleet, request: Request, cached: int, output: int = 0) -> None:
    home = fleet.snapshot(request).home
    expected = home.expected_cached if home is not None else 0
    with fleet.lease(request, Decision("a:1", Reason.SESSION, expected)) as lease:
        lease.first_byte()
        lease.settle(Usage(request.prompt_bytes // 4, cached, output))


def is_lost(fleet: Fleet, request: Request) -> bool:
    home = fleet.snapshot(request).home
    assert home is not None
    return home.lost


def test_a_shorter_prompt_that_found_nothing_proves_nothing() -> None:
    """A sub-agent begins, or the conversation was compacted: home never saw this prompt."""
    fleet = fleet_of("a:1", "b:1")
    turn(fleet, session(5, 100_000), 0)
    for _ in range(3):
        turn(fleet, session(5, 20_000), 0)
    assert not is_lost(fleet, session(5, 100_000))


def test_three_prompts_that_went_on_and_found_nothing_are_proof() -> None:
    """After each of them home is warm again: it is left because it cannot keep the session."""
    fleet = fleet_of("a:1", "b:1")
    for tokens in (100_000, 101_000, 102_000):
        turn(fleet, session(5, tokens), 0)
        assert not is_lost(fleet, session(5, tokens + 1000))
    turn(fleet, session(5, 103_000), 0)
    assert is_lost(fleet, session(5, 104_000))


def test_an_unread_session_keeps_the_size_of_its_largest_thread_for_a_while() -> None:
    fleet = fleet_of("a:1")
    load = fleet.loads["a:1"]
    turn(fleet, session(5, 100_000), 0, output=1000)
    assert load.bound_tokens == 101_000
    turn(fleet, session(5, 20_000), 0)
    assert load.bound_tokens == 95_950
    for _ in range(60):
        turn(fleet, session(5, 20_000), 19_000)
    assert load.bound_tokens == 20_000


def test_the_reply_to_another_thread_does_not_shrink_a_session_that_was_read() -> None:
    fleet = fleet_of("a:1")
    main = Request("chat", session=5, key=5, chain=(1, 2, 3), sizes=(4000, 8000, 400_000), opening=1)
    agent = Request("chat", session=5, key=5, chain=(8, 9), sizes=(4000, 8000), opening=1)
    turn(fleet, main, 0)
    turn(fleet, agent, 0, output=500)
    assert fleet.loads["a:1"].bound_tokens == 100_000


def test_what_was_sent_before_is_what_repeats() -> None:
    fleet = fleet_of("a:1")
    before = fleet.estimates.reuse
    for number in range(1, 1000):
        turn(fleet, session(number, 1000), 0)
    assert fleet.estimates.reuse < 0.2 * before
    for _ in range(2000):
        turn(fleet, session(5, 1000), 900)
    assert fleet.estimates.reuse > 0.9
    for number in range(2000):
        chain = (1, 100 + number)
        turn(fleet, Request("chat", key=9, chain=chain, sizes=(2000, 4000), opening=1), 500)
    assert 0.45 < fleet.estimates.reuse < 0.6  # half of each is everybody's system prompt
