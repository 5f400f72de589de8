"""A short storm over few replicas: the ledger closes, and what would be a violation is found."""

import asyncio

import uvloop

from bench.chaos import misdeeds
from bench.chaos.__main__ import show
from bench.chaos.book import Book
from bench.chaos.client import ANY, Answer, Ending, Session, _judge
from bench.chaos.misdeeds import proof
from bench.chaos.options import Options
from bench.chaos.replica import MOODS
from bench.chaos.run import Report, Run, play


def test_ten_seconds_of_chaos_leave_nothing_unaccounted() -> None:
    options = Options(seconds=10, sessions=100, replicas=6, lanes=16, rate=80, blackout=False)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = runner.run(play(options))
    assert not report.book.violations, show(report, options.seed)
    assert len(report.book.endings) > 200
    assert report.book.seen["ok"] > 100


def _line(nonce: str, outcome: str) -> str:
    return f'{{"logger":"router.access","request_id":"{nonce}","outcome":"{outcome}"}}'


def test_the_book_finds_what_does_not_add_up() -> None:
    book = Book()
    book.enter(Ending("a", frozenset(("ok",)), what="ok"))
    book.enter(Ending("b", frozenset(("ok",)), what="ok"))
    book.enter(Ending("c", ANY, reached=False, what="left: head"))
    book.enter(Ending("d", ANY, reached=None, what="left: wait"))
    book.enter(Ending("e", frozenset(("ok",)), what="ok"))
    lines = [_line("a", "ok"), _line("b", "timeout"), _line("b", "timeout"), _line("c", "ok"), _line("x", "ok")]
    assert book.compare(lines) == {"ok": 3, "timeout": 2}
    assert book.violations == {
        "outcome": 2, "entered twice": 1, "a request without a whole head": 1, "nobody's request": 1, "not entered": 1,
    }  # fmt: skip


def test_an_answer_to_somebody_else_is_noticed() -> None:
    ending, answer = Ending("s1.2", ANY), Answer(200, body=bytearray(proof("s9.9", b"body").encode()), clean=True)
    _judge(ending, answer, "s1.2", b"body")
    assert "somebody else's answer" in ending.wrong


def test_a_session_that_leaves_an_untouched_replica_is_a_violation(tmp_path) -> None:
    run = Run(Options(replicas=3), tmp_path)
    for port, replica in enumerate(run._replicas, 1):
        replica.port = port
    kind, touched = run._kind[0].id, run._replicas[-1].id
    session = Session("s", True, "/v1/chat/completions", 5, home=kind)
    run._follow(session, Ending("s.1", ANY, status=200, replica=kind))
    assert not run.book.violations
    run._follow(session, Ending("s.2", ANY, status=200, replica=touched))
    assert run.book.violations == {"moved away from an untouched replica": 1}
    run._follow(session, Ending("s.3", ANY, status=200, replica=kind))  # whoever leaves a touched one may
    assert run.book.violations.total() == 1


def test_every_deed_of_every_mood_exists() -> None:
    assert {deed for deeds in MOODS.values() for deed in deeds} <= set(vars(misdeeds))


def test_a_violation_names_the_seed() -> None:
    report = Report(Book())
    report.book.violate("sum", "1 and 2")
    assert "see it again: --seed 7" in show(report, 7)
