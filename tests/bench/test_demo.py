"""`make demo` end to end, made short: it plays, or it says what broke, and it leaves nothing behind."""

import io
import socket
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from bench.demo import Broken, Scene, main, outcome, play
from bench.fleet import running_fleet
from bench.report import Sample, figures

SHORT = Scene(arms=("locality",), replicas=2, agents=4, capacity=9.0, wall_seconds=2.0, warm_up=0.0, time_scale=200.0)


def test_an_arm_is_played_through_the_real_router() -> None:
    rows = play(SHORT, Console(file=io.StringIO()))
    assert rows["locality"].requests > 0
    assert rows["locality"].errors == 0
    assert sum(rows["locality"].per_replica.values()) == rows["locality"].requests


def test_a_router_that_does_not_start_is_shown_with_its_last_words() -> None:
    with pytest.raises(Broken, match=r"(?s)the router ended with .*last words:.*nonsense"):
        play(replace(SHORT, arms=("nonsense",)), Console(file=io.StringIO()))


def test_a_broken_demo_ends_with_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("bench.demo.Scene", lambda: replace(SHORT, arms=("nonsense",)))
    assert main() == 1
    assert capsys.readouterr().err.startswith("demo: the router ended")


def test_the_fleet_ends_with_the_process_that_started_it() -> None:
    command = [sys.executable, "-m", "bench.fleet", "--replicas", "1", "--base-port", "0", "--end-with-stdin"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline().startswith("http://127.0.0.1:")
    process.stdin.close()
    assert process.wait(10.0) == 0
    process.stdout.close()


def test_a_fleet_that_cannot_start_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with (
            pytest.raises(RuntimeError, match="did not start"),
            running_fleet(["--replicas", "1", "--base-port", port]),
        ):
            pass


def test_the_table_compares_the_last_arm_with_the_first() -> None:
    slow = figures([Sample(100, 20, 10, 4.0, 5.0, "a"), Sample(100, 20, 10, 4.0, 5.0, "b")], 0, 10.0)
    fast = figures([Sample(100, 80, 10, 1.0, 2.0, "a")] * 4, 0, 10.0, replicas=2)
    out = io.StringIO()
    Console(file=out, width=120).print(outcome({"round_robin": slow, "locality": fast}))
    ratio = out.getvalue().splitlines()[-2]
    assert [cell.strip() for cell in ratio.strip("│").split("│")][1:] == [
        "x 2.00",
        "x 4.00",
        "÷ 4.00",
        "÷ 4.00",
        "x 2.00",
        "x 2.00",
    ]
