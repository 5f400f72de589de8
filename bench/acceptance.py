"""`python -m bench.acceptance`: every promise of the policy against what a run measures, as a table.

The promises are in `bench/promises.py`. Exit code 1 if one is missed.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import cache

from rich.console import Console
from rich.table import Table

from bench.promises import PROMISES, Check, Outcomes
from bench.report import widen
from bench.simulation import SimulationOptions
from bench.simulation.outcome import Outcome, outcome
from bench.traces import Session, claude_sessions


@cache
def _sessions() -> tuple[Session, ...]:
    """Read once in each process."""
    return tuple(claude_sessions())


def _one(options: SimulationOptions) -> Outcome:
    return outcome(options, _sessions())


class _Laboratory:
    """Runs each set of options once, whoever asks."""

    def __init__(self, seeds: Sequence[int], jobs: int, console: Console) -> None:
        self._seeds, self._console = seeds, console
        self._pool = ProcessPoolExecutor(jobs) if jobs > 1 else None
        self._known: list[tuple[SimulationOptions, Outcomes]] = []

    def __call__(self, options: SimulationOptions) -> Outcomes:
        for known, outcomes in self._known:
            if known == options:
                return outcomes
        seeded = [replace(options, seed=seed) for seed in self._seeds]
        made = list((self._pool.map if self._pool else map)(_one, seeded))
        self._known.append((options, made))
        times = ", ".join(f"{one.figures.ttft_mean:.2f}" for one in made)
        self._console.print(f"{_words(options)}: TTFT {times} s", highlight=False, soft_wrap=True)
        return made

    def close(self) -> None:
        if self._pool:
            self._pool.shutdown()


def _words(options: SimulationOptions) -> str:
    """What is not as usual."""
    usual = asdict(SimulationOptions())
    return " ".join(f"{name}={value}" for name, value in asdict(options).items() if value != usual[name]) or "default"


def _table(checks: Sequence[Check]) -> Table:
    made = Table("case", "what", "at least / at most", "measured", "", title="What it must reach", title_justify="left")
    for one in checks:
        made.add_row(one.case, one.what, one.target, one.measured, "pass" if one.passed else "[bold red]missed")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.acceptance", description=__doc__)
    parser.add_argument("cases", nargs="*", default=[], help=f"some of: {', '.join(PROMISES)} (default: all)")
    parser.add_argument("--seeds", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (%(default)s)")
    parser.add_argument("--header", action="store_true", help="sessions are named; else the conversation names itself")
    parser.add_argument("--policy-options", type=json.loads, default={}, help="JSON object, for locality")
    parser.add_argument("--fifo", action="store_true", help="engines prefill one prompt after another, not by chunks")
    parser.add_argument("--json", default="", help="write the checks to this file")
    given = parser.parse_args(argv)
    unknown = [case for case in given.cases if case not in PROMISES]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    base = SimulationOptions(
        policy_options=given.policy_options, header=given.header, quantum_tokens=0 if given.fifo else 2048
    )
    laboratory = _Laboratory(range(given.seeds), given.jobs, Console(stderr=True))
    checks = [check for case in given.cases or PROMISES for check in PROMISES[case](base, laboratory)]
    laboratory.close()
    console = Console()
    widen(console)
    console.print(_table(checks))
    if given.json:
        with open(given.json, "w") as out:
            json.dump([asdict(one) for one in checks], out, indent=2)
    return 0 if all(one.passed for one in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
