"""`python -m bench.chaos --minutes 2`: prints the ledger; exit code 1 on any violation, with its seed."""

import argparse
import asyncio
import sys
from collections.abc import Sequence

import uvloop

from bench.chaos.options import Options
from bench.chaos.run import Report, play


def arguments() -> argparse.ArgumentParser:
    default = Options()
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=default.seconds / 60, help="of storm (%(default)g)")
    add("--sessions", type=int, default=default.sessions, help="alive at one time (%(default)s)")
    add("--replicas", type=int, default=default.replicas, help="(%(default)s)")
    add("--seed", type=int, default=default.seed, help="(%(default)s)")
    add("--lanes", type=int, default=default.lanes, help="clients at one time (%(default)s)")
    add("--rate", type=float, default=default.rate, help="requests begun per second (%(default)g)")
    add("--kv-tokens", type=int, default=default.kv_tokens, help="of a replica; small ones make sessions wait")
    add("--no-blackout", action="store_true", help="leave out the death of everybody at the end")
    add("--log", default=default.log, help="keep the router's log in this file")
    add("router", nargs="*", help="flags for the router, behind --: -- --policy session_hash")
    return parser


def options_from(given: argparse.Namespace) -> Options:
    return Options(
        seconds=given.minutes * 60,
        sessions=given.sessions,
        replicas=given.replicas,
        seed=given.seed,
        lanes=given.lanes,
        rate=given.rate,
        kv_tokens=given.kv_tokens,
        blackout=not given.no_blackout,
        log=given.log,
        router_flags=tuple(given.router),
    )


def show(report: Report, seed: int) -> str:
    lines = [f"{name:>18}  {value}" for name, value in report.figures]
    violations = report.book.violations
    if not violations:
        return "\n".join((*lines, f"{'violations':>18}  none (seed {seed})"))
    counts = [f"{'VIOLATION':>18}  {count} x {kind}" for kind, count in violations.most_common()]
    return "\n".join((*lines, *counts, *report.book.examples, f"see it again: --seed {seed}"))


def main(argv: Sequence[str] | None = None) -> int:
    options = options_from(arguments().parse_args(argv))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = runner.run(play(options))
    print(show(report, options.seed))
    return 1 if report.book.violations else 0


if __name__ == "__main__":
    sys.exit(main())
