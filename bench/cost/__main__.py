"""`python -m bench.cost`: what the router costs beside others, on one core of this machine."""

import argparse
import os
import sys
from pathlib import Path

from rich.console import Console

from bench.cost.measure import survey
from bench.cost.peers import PEERS, Peer, custom, ours
from bench.cost.plot import picture
from bench.cost.results import Options
from bench.cost.table import as_json, show
from bench.cost.workloads import workloads

_DEFAULTS = Options()


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 if our own rows were measured, 1 if one was not, 2 for wrong arguments."""
    given = _parser().parse_args(arguments)
    if sys.platform != "linux":
        print("bench.cost: reads /proc, so it needs Linux", file=sys.stderr)
        return 2
    try:
        peers = _chosen(given)
    except ValueError as error:
        print(f"bench.cost: {error}", file=sys.stderr)
        return 2
    errors = Console(stderr=True)
    options = Options(given.passes, given.seconds, tuple(given.workloads), given.memory_requests)
    results = survey(peers, options, given.cache.expanduser(), lambda text: errors.print(text, highlight=False))
    show(results, Console(width=None if sys.stdout.isatty() else 160))
    if given.json:
        given.json.write_bytes(as_json(results))
    if given.plot:
        given.plot.write_text(picture(results))
    return int(any(row.failed for row in results.rows if row.kind == "ours"))


def _parser() -> argparse.ArgumentParser:
    known = sorted({group for peer in PEERS for group in peer.selected_by})
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "prefix-router" / "peers"
    parser = argparse.ArgumentParser(prog="python -m bench.cost", description=__doc__)
    add = parser.add_argument
    add("--peers", type=_names, default=None, metavar="A,B", help=f"only these ('none' for none): {', '.join(known)}")
    add("--ours", type=_names, default=["serve", "uvicorn"], metavar="A,B", help="ways to run ours: serve, uvicorn")
    add("--serve-flags", default="", metavar="FLAGS", help="further flags of `prefix-router serve`")
    add(
        "--also",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="a further row: a command with {port} {replicas}",
    )
    add("--workloads", type=_workloads, default=[], metavar="A,B", help=f"only these of {', '.join(workloads())}")
    add("--passes", type=int, default=_DEFAULTS.passes, help="default %(default)s; figures are medians over them")
    add("--seconds", type=float, default=_DEFAULTS.seconds, help="of load per workload and pass (%(default)s)")
    add("--memory-requests", type=int, default=_DEFAULTS.memory_requests, help="0 = leave memory out (%(default)s)")
    add("--cache", type=Path, default=cache, metavar="DIR", help="where peers are installed (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="every pass of every row")
    add("--plot", type=Path, metavar="FILE.svg", help="a picture of the costs")
    return parser


def _chosen(given: argparse.Namespace) -> list[Peer]:
    """Raises ValueError for a name that nobody has."""
    own = [peer for peer in ours(given.serve_flags.split()) if peer.group in given.ours]
    own += map(custom, given.also)
    if given.peers is None:
        return [*own, *PEERS]
    wanted = set(given.peers) - {"none"}
    unknown = wanted - {name for peer in PEERS for name in peer.selected_by}
    if unknown:
        raise ValueError(f"no such peer: {', '.join(sorted(unknown))}")
    return [*own, *(peer for peer in PEERS if wanted & set(peer.selected_by))]


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _workloads(text: str) -> list[str]:
    names = [name.upper() for name in _names(text)]
    unknown = set(names) - set(workloads())
    if unknown:
        raise argparse.ArgumentTypeError(f"no such workload: {', '.join(sorted(unknown))}")
    return names


if __name__ == "__main__":
    sys.exit(main())
