"""`python -m bench.sweep`: studies behind the defaults and the pictures. Each is a grid of runs; results go to JSON.

A study names what varies; nothing is chosen here. `docs/locality.md` and `docs/admission.md` show what came out.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from bench.simulation import SimulationOptions
from bench.simulation.outcome import Outcome, outcome
from bench.traces import Session, claude_sessions

ARMS = {
    "session_hash": "session_hash",
    "locality": "locality",
    "bounded-load hash": "bench.arms.haproxy_bounded_hash:HaproxyBoundedHash",
    "longest prefix, gate": "bench.arms.sglang_cache_aware:SglangCacheAware",
    "two hashed candidates": "bench.arms.dual_map:DualMap",
    "per-turn least cost": "bench.arms.dynamo_cost:DynamoCost",
    "fewest sessions": "bench.arms.sticky_fewest_sessions:StickyFewestSessions",
    "round_robin": "round_robin",
}
ADMISSIONS = {
    "residency slices": "router.core.admission:Admission",
    "first turns held": "bench.arms.admission:FirstTurnHolding",
    "AIMD (CONCUR)": "bench.arms.admission:ConcurAimd",
    "pause, smallest first (ThunderAgent)": "bench.arms.admission:ThunderAgentPause",
}
_BASE = SimulationOptions(header=False)


@dataclass(frozen=True, slots=True)
class Point:
    """One set of options, to be run with every seed."""

    name: str
    options: SimulationOptions


def _placement() -> Iterator[Point]:
    """Margin against the price on bound context."""
    for margin, price in product((0.0, 0.4, 0.8, 1.2, 1.6, 2.4), (0.02, 0.05, 0.1, 0.2)):
        yield Point(f"{margin:g} / {price:g}", replace(_BASE, policy_options={"margin": margin, "bound_price": price}))


def _capacity() -> Iterator[Point]:
    """Every policy from too little room to plenty."""
    for (name, policy), capacity in product(ARMS.items(), (0.75, 1.0, 1.25, 1.5, 2.0)):
        yield Point(name, replace(_BASE, policy=policy, capacity=capacity))


def _fifo() -> Iterator[Point]:
    """The same at 1.25x, where engines prefill one prompt after another."""
    for name, policy in ARMS.items():
        yield Point(name, replace(_BASE, policy=policy, quantum_tokens=0))


def _admissions() -> Iterator[Point]:
    """Ways to hold agents back, over capacities and lengths of thought."""
    ways: list[tuple[str, dict[str, Any]]] = [("off", {"admission": False})]
    ways += [(name, {"admission": True, "admission_kind": kind}) for name, kind in ADMISSIONS.items()]
    for (name, way), capacity, think in product(ways, (0.6, 0.75, 1.0), (300.0, 120.0, 0.0)):
        yield Point(name, replace(_BASE, capacity=capacity, max_think=think, **way))


def _slices() -> Iterator[Point]:
    """Each parameter of admission around its default, the others at theirs."""
    grid: dict[str, Sequence[float]] = {
        "slice_seconds": (150, 300, 450, 600, 900),
        "patience_seconds": (60, 120, 180, 240, 300),
        "fill": (0.8, 0.9, 1.0, 1.1),
        "horizon_seconds": (30, 60, 120, 240),
        "backlog_seconds": (2.5, 5, 10, 20),
    }
    for (name, values), think in product(grid.items(), (300.0, 0.0)):
        for value in values:
            options: dict[str, Any] = {"admission_options": {name: value}, "max_think": think}
            yield Point(f"{name} {value:g}", replace(_BASE, admission=True, capacity=0.75, **options))


STUDIES: dict[str, Callable[[], Iterator[Point]]] = {
    "placement": _placement,
    "capacity": _capacity,
    "fifo": _fifo,
    "admissions": _admissions,
    "slices": _slices,
}


@cache
def _sessions() -> tuple[Session, ...]:
    return tuple(claude_sessions())


def _one(options: SimulationOptions) -> Outcome:
    return outcome(options, _sessions())


def _row(study: str, point: Point, options: SimulationOptions, made: Outcome) -> dict[str, Any]:
    """Flat, so that any tool can read it."""
    settings = {name: value for name, value in asdict(options).items() if not isinstance(value, tuple)}
    measured = {name: value for name, value in asdict(made.figures).items() if name != "per_replica"}
    return {"study": study, "name": point.name, **settings, **measured, "at_ring_home": made.at_ring_home}


def _run(study: str, seeds: Sequence[int], jobs: int, console: Console) -> list[dict[str, Any]]:
    work = [(point, replace(point.options, seed=seed)) for point in STUDIES[study]() for seed in seeds]
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(jobs) as pool, Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(study, total=len(work))
        futures: dict[Future[Outcome], tuple[Point, SimulationOptions]] = {
            pool.submit(_one, options): (point, options) for point, options in work
        }
        for future in as_completed(futures):
            point, options = futures[future]
            rows.append(_row(study, point, options, future.result()))
            bar.advance(task)
            if not console.is_terminal:
                console.print(_line(rows[-1], len(rows), len(work)), highlight=False, soft_wrap=True)
    return sorted(rows, key=lambda row: (row["name"], row["capacity"], row["max_think"], row["seed"]))


def _line(row: dict[str, Any], done: int, total: int) -> str:
    which = f"{row['study']} {done}/{total}: {row['name']}, {row['capacity']:g}x, think {row['max_think']:g}"
    return f"{which}, seed {row['seed']}: hit {row['hit_rate']:.4f}, TTFT {row['ttft_mean']:.2f} s"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.sweep", description="The studies behind the defaults.")
    parser.add_argument("studies", nargs="*", help=f"some of: {', '.join(STUDIES)} (default: all)")
    parser.add_argument("--seeds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (%(default)s)")
    parser.add_argument("--out", default="build/sweep", help="directory for one JSON file per study (%(default)s)")
    given = parser.parse_args(argv)
    unknown = [study for study in given.studies if study not in STUDIES]
    if unknown:
        parser.error(f"no such study: {', '.join(unknown)}")
    folder = Path(given.out)
    folder.mkdir(parents=True, exist_ok=True)
    for study in given.studies or STUDIES:
        rows = _run(study, range(given.seeds), given.jobs, Console(stderr=True))
        (folder / f"{study}.json").write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
