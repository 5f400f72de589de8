"""`python -m bench.simulate`: policies in virtual time, side by side, as a table and as JSON."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any

from rich.console import Console

from bench.report import Figures, show
from bench.simulation import Simulation, SimulationOptions, simulate
from bench.simulation.console import run_shown
from bench.traces import claude_sessions

__all__ = ["Simulation", "SimulationOptions", "main", "simulate"]


def _arguments() -> argparse.ArgumentParser:
    default = SimulationOptions()
    parser = argparse.ArgumentParser(prog="python -m bench.simulate", description="Policies in virtual time.")
    add = parser.add_argument
    add("policies", nargs="*", default=["round_robin", "session_hash", "locality"], help="names, or module:Class")
    add("--seeds", default="0", help="comma list; each policy runs once per seed")
    add("--json", default="", help="write all figures to this file")
    add("--no-header", action="store_false", dest="header", help="no session header: the conversation names itself")
    add("--no-cached-tokens", action="store_false", dest="report_cached", help="engines do not report cached_tokens")
    add("--no-capacity", action="store_false", dest="report_capacity", help="engines do not report their KV capacity")
    add("--no-share-turns", action="store_false", dest="share_turns", help="routers share placements only")
    for one in fields(default):
        value = getattr(default, one.name)
        flag = f"--{one.name.replace('_', '-')}"
        if isinstance(value, bool):
            if not value:
                add(flag, action="store_true")
        elif isinstance(value, dict | tuple):
            add(flag, type=json.loads, default=value, help="JSON (%(default)s)")
        elif one.name not in ("seed", "policy"):
            add(flag, type=type(value), default=value, help="(%(default)s)")
    return parser


def _runs(given: dict[str, Any]) -> Iterator[SimulationOptions]:
    policies, seeds = given.pop("policies"), given.pop("seeds")
    given = {name: _tuples(value) if isinstance(value, list) else value for name, value in given.items()}
    for policy in policies:
        for seed in seeds.split(","):
            yield SimulationOptions(policy=policy, seed=int(seed), **given)


def _tuples(value: list[Any]) -> tuple[Any, ...]:
    """JSON has lists only."""
    return tuple(_tuples(one) if isinstance(one, list) else one for one in value)


def main(argv: Sequence[str] | None = None) -> int:
    given = vars(_arguments().parse_args(argv))
    json_path = given.pop("json")
    sessions = tuple(claude_sessions())
    console, notes = Console(), Console(stderr=True)
    rows: dict[str, Figures] = {}
    results: list[dict[str, Any]] = []
    for options in _runs(given.copy()):
        name = f"{options.policy.partition(':')[2] or options.policy} (seed {options.seed})"
        result = run_shown(notes, name, Simulation(options, sessions).run)
        rows[name] = result
        results.append(asdict(options) | asdict(result))
    show(console, rows, f"{given['workload']}: {given['lanes']} agents, {given['replicas']} replicas, simulated")
    if json_path:
        with open(json_path, "w") as out:
            json.dump(results, out, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
