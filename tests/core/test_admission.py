"""Places in a KV cache: who has one, who waits, who gives way. And that nobody waits for ever."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.admission import Admission, AdmissionOptions, kind_of
from router.core.replica import Load, Signals
from router.core.returns import NEVER_SECONDS, Returns
from router.testing import load as a_load

OPTIONS = AdmissionOptions(
    fill=1.0, backlog_seconds=10.0, slice_seconds=300.0, patience_seconds=100.0, horizon_seconds=60.0, keep_above=0.5
)


def replica(name: str = "a", capacity: float | None = 1000.0, **counters: object) -> Load:
    return a_load(name, signals=Signals(kv_capacity_tokens=capacity), **counters)


def turn(admission: Admission, session: int, load: Load, tokens: int, now: float, kind: str = "tool") -> None:
    """One whole turn in no time."""
    admission.enter(session, load, tokens, now)
    admission.rest(session, load, kind, now)


def may(admission: Admission, session: int, tokens: int, *loads: Load, now: float = 0.0, first: bool = False) -> object:
    """Where it may go, as a word: `anywhere` is what somebody with a place hears."""
    room = admission.room(session, tokens, loads, now, first=first)
    return "anywhere" if room is None else " ".join(sorted(room)) or "nowhere"


@pytest.mark.parametrize(
    ("placed", "tokens", "answer"),
    [(0, 500, "a"), (500, 500, "a"), (501, 500, "nowhere"), (0, 5000, "a"), (1, 5000, "nowhere")],
)
def test_a_newcomer_needs_room_and_alone_it_may_try_anyway(placed: int, tokens: int, answer: str) -> None:
    admission, load = Admission(OPTIONS), replica()
    if placed:
        admission.enter(1, load, placed, 0.0)
    assert may(admission, 2, tokens, load) == answer


def test_unknown_capacity_holds_nobody() -> None:
    admission, load = Admission(OPTIONS), replica(capacity=None)
    admission.enter(1, load, 10**9, 0.0)
    assert may(admission, 2, 10**9, load) == "a"


@pytest.mark.parametrize(
    ("placed", "queued", "answer"), [(900, 10_001, "nowhere"), (900, 9_999, "a"), (100, 10_001, "a")]
)
def test_at_a_full_replica_a_queue_of_prefill_holds_newcomers(placed: int, queued: int, answer: str) -> None:
    """Below its capacity nobody is held, however busy it is."""
    admission, load = Admission(OPTIONS), replica(queued_tokens=queued, prefill_rate=1000.0)
    turn(admission, 1, load, placed, 0.0, "end")
    assert may(admission, 2, 500, load, now=100.0) == answer


def test_room_of_those_who_will_rather_never_return_is_room() -> None:
    """One-off questions of a chat fill every cache; nobody waits for their sake."""
    admission, load = Admission(OPTIONS), replica(queued_tokens=10_001, prefill_rate=1000.0)
    turn(admission, 1, load, 900, 0.0, "end")
    assert may(admission, 2, 500, load, now=100.0) == "nowhere"
    for _ in range(1000):
        admission.stayed_away("end")
    assert may(admission, 2, 500, load, now=100.0) == "a"


def test_who_has_a_place_is_not_held_and_newcomers_stand_behind_those_who_wait() -> None:
    admission, load = Admission(OPTIONS), replica()
    turn(admission, 1, load, 900, 0.0)
    admission.first_waiting_since = 0.0
    assert may(admission, 1, 900, load, now=1.0) == "anywhere"
    assert may(admission, 2, 50, load, now=1.0) == "nowhere"
    assert may(admission, 2, 50, load, now=1.0, first=True) == "a"


@pytest.mark.parametrize(
    ("held", "waited", "answer"),
    [(299, 200, "anywhere"), (301, 99, "anywhere"), (301, 101, "nowhere")],
)
def test_a_session_gives_way_after_its_slice_once_the_first_has_been_patient(
    held: float, waited: float, answer: str
) -> None:
    admission, load = Admission(OPTIONS), replica()
    turn(admission, 1, load, 900, 0.0)
    admission.first_waiting_since = held - waited
    assert may(admission, 1, 900, load, now=held) == answer


def test_nobody_gives_way_in_the_middle_of_a_turn() -> None:
    admission, load = Admission(OPTIONS), replica()
    admission.enter(1, load, 900, 0.0)
    admission.first_waiting_since = 0.0
    assert may(admission, 1, 900, load, now=5000.0) == "anywhere"


def test_the_idle_session_least_likely_to_return_makes_room_first() -> None:
    admission, load = Admission(OPTIONS), replica()
    turn(admission, 1, load, 500, 0.0, "tool")
    turn(admission, 2, load, 500, 0.0, "end")
    assert may(admission, 3, 500, load, now=100.0) == "a"
    assert load.placed_tokens == 1000  # asking changes nothing
    turn(admission, 3, load, 500, 100.0)
    assert load.placed_tokens == 1000
    assert may(admission, 1, 500, load, now=100.0) == "anywhere"  # a tool answers soon: it stayed


def test_places_are_counted_once_and_given_back() -> None:
    admission, a, b = Admission(OPTIONS), replica("a"), replica("b")
    admission.enter(1, a, 100, 0.0)
    admission.enter(1, a, 150, 0.0)
    assert a.placed_tokens == 150
    admission.resize(1, a, 180)
    assert a.placed_tokens == 180
    admission.rest(1, a, "tool", 1.0)
    admission.enter(1, b, 200, 2.0)
    assert (a.placed_tokens, b.placed_tokens) == (0, 200)
    admission.rest(1, a, "tool", 3.0)  # late, from where it no longer is
    assert admission.running(1)
    admission.gone(b)
    assert b.placed_tokens == 0
    admission.leave(1)


@pytest.mark.parametrize(
    ("finish", "kind"), [("tool_calls", "tool"), ("tool_use", "tool"), ("stop", "end"), ("", "unknown")]
)
def test_how_a_turn_ended_in_three_words(finish: str, kind: str) -> None:
    assert kind_of(finish) == kind


def test_gaps_are_learned_and_forgotten() -> None:
    returns = Returns("tool")
    assert returns.probability(0.0, 300.0) > 0.9
    for _ in range(1000):
        returns.came_back(600.0)
    assert returns.probability(0.0, 300.0) < 0.2
    assert returns.probability(500.0, 300.0) > 0.8
    for _ in range(5000):
        returns.stayed_away()
    assert returns.probability(500.0, 300.0) < 0.3
    assert returns.probability(1e9, 300.0) == 0.0
    for _ in range(5000):
        returns.came_back(NEVER_SECONDS + 1)
    assert returns.probability(0.0, 1e9) > 0.9


CLIENT = st.tuples(
    st.integers(50, 1500),  # tokens of its context
    st.integers(1, 60),  # seconds a turn takes
    st.lists(st.integers(1, 400), min_size=1, max_size=8),  # seconds between turns, over and over
    st.integers(1, 60),  # turns until it is never seen again
)


class Line:
    """Clients, a line and a clock of whole seconds; every rule but the line's is Admission's."""

    def __init__(self, clients: list[tuple[int, int, list[int], int]], replicas: int) -> None:
        self.admission = Admission(OPTIONS)
        self.loads = [replica(f"r{number}", queued_tokens=0) for number in range(replicas)]
        self.clients = clients
        self.next = dict.fromkeys(range(len(clients)), 0)  # client → second of its next turn
        self.ends: dict[int, tuple[int, Load]] = {}  # client → when its turn ends, and where
        self.home: dict[int, Load] = {}
        self.turns = dict.fromkeys(range(len(clients)), 0)
        self.line: list[tuple[int, int]] = []  # (client, since)
        self.longest = 0

    def second(self, now: int) -> None:
        for client, (end, load) in list(self.ends.items()):
            if end <= now:
                self.end(client, load, now)
        for client, when in list(self.next.items()):
            if when <= now:
                del self.next[client]
                if not self.dispatch(client, now, first=False):
                    self.admission.leave(client + 1)
                    self.line.append((client, now))
                    self.tell()
        while self.line and self.dispatch(self.line[0][0], now, first=True):
            self.longest = max(self.longest, now - self.line.pop(0)[1])
            self.tell()

    def tell(self) -> None:
        self.admission.first_waiting_since = self.line[0][1] if self.line else None

    def dispatch(self, client: int, now: int, first: bool) -> bool:
        tokens, seconds, _, _ = self.clients[client]
        room = self.admission.room(client + 1, tokens, self.loads, now, first=first)
        load = self.home.get(client) if room is None else next((each for each in self.loads if each.id in room), None)
        if load is None:
            return False
        self.home[client] = load
        self.admission.enter(client + 1, load, tokens, now)
        self.ends[client] = (now + seconds, load)
        return True

    def end(self, client: int, load: Load, now: int) -> None:
        del self.ends[client]
        self.admission.rest(client + 1, load, "tool", now)
        _, _, gaps, last = self.clients[client]
        self.turns[client] += 1
        if self.turns[client] < last:
            self.next[client] = now + gaps[self.turns[client] % len(gaps)]


@settings(max_examples=40, deadline=None)
@given(st.lists(CLIENT, min_size=1, max_size=12), st.integers(1, 3))
def test_nobody_waits_for_ever_however_clients_behave(
    clients: list[tuple[int, int, list[int], int]], replicas: int
) -> None:
    line = Line(clients, replicas)
    for now in range(6_000):
        line.second(now)
        # One after another: a slice, patience, the longest turn and the longest gap until somebody gives way.
        assert not line.line or now - line.line[0][1] <= len(clients) * (300 + 100 + 60 + 400)
    assert all(load.placed_tokens >= 0 for load in line.loads)


@settings(max_examples=40, deadline=None)
@given(st.lists(CLIENT, min_size=1, max_size=12), st.integers(1, 3))
def test_places_never_exceed_the_room_but_for_one_alone(
    clients: list[tuple[int, int, list[int], int]], replicas: int
) -> None:
    line = Line(clients, replicas)
    largest = max(tokens for tokens, *_ in clients)
    for now in range(2_000):
        line.second(now)
        assert all(load.placed_tokens <= max(1000, largest) for load in line.loads)
