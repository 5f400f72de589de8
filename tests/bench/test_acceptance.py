"""The table of promises: its parts on a small scale. The whole takes minutes: `python -m bench.acceptance`."""

from pathlib import Path

import pytest

from bench.acceptance import main
from bench.footprint import choose_microseconds, map_megabytes
from bench.sweep import STUDIES
from bench.sweep import main as sweep


def test_a_case_of_the_table_says_pass_or_missed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "checks.json"
    assert main(["chat", "--seeds", "1", "--json", str(out)]) in (0, 1)
    printed = capsys.readouterr().out
    assert "Mooncake chat" in printed
    assert "pass" in printed
    assert '"passed"' in out.read_text()


def test_an_unknown_case_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["everything"])
    with pytest.raises(SystemExit):
        sweep(["everything"])


def test_what_remembering_costs_is_measured() -> None:
    assert 0.0 <= map_megabytes(2_000) < 20.0
    assert 0.0 < choose_microseconds(4, 50) < 10_000.0


def test_every_study_is_a_grid_of_named_points() -> None:
    for points in STUDIES.values():
        assert all(point.name for point in points())
