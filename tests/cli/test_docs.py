"""The generated pages say what the code says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from router.cli import docs
from router.core.decision import Reason
from router.metrics import Outcome

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("page", "render"), [("settings.md", docs.render), ("metrics.md", docs.render_metrics)])
def test_a_generated_page_is_up_to_date(page: str, render: Callable[[], str]) -> None:
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == render(), "run make docs"


def test_every_word_of_a_label_has_its_meaning() -> None:
    page = docs.render_metrics()
    assert [word for word in (*Outcome, *Reason) if f"| `{word}` |" not in page] == []


def test_both_pages_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path)
    assert docs.main() == 0
    assert sorted(page.name for page in (tmp_path / "docs").iterdir()) == ["metrics.md", "settings.md"]


def test_outside_of_the_repository_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert docs.main() == 2
    assert capsys.readouterr().err == "there is no folder docs/ here: run this from the repository\n"
    assert list(tmp_path.iterdir()) == []
