"""The page of all faults is what the tests say, and no row of this release is without one."""

from tests.faults.page import PAGE, covering, render
from tests.faults.rows import GROUPS

ROWS = [row for group in GROUPS.values() for row in group]
NUMBERS = [number for number in range(1, 197) if number % 3]  # every third was never given out


def test_every_number_is_there_once_and_in_order() -> None:
    assert [row.number for row in ROWS] == NUMBERS
    assert len(ROWS) == 131


def test_every_row_has_a_test_or_says_why_not_yet() -> None:
    tests = covering()
    assert [row.number for row in ROWS if row.number not in tests and not row.later] == []


def test_no_test_names_a_row_that_does_not_exist() -> None:
    known = {row.number for row in ROWS}
    assert {number: tests for number, tests in covering().items() if number not in known} == {}


def test_the_page_is_up_to_date() -> None:
    """`python -m tests.faults.page` writes it."""
    assert PAGE.read_text(encoding="utf-8") == render(covering())
