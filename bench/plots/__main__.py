"""`python -m bench.plots`: the pictures of docs/locality.md and docs/admission.md, from the JSON of `bench.sweep`."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.plots.pictures import admissions, capacity, placement, slices

_PICTURES: dict[str, Callable[[list[dict[str, Any]], Path], None]] = {
    "capacity": capacity,
    "placement": placement,
    "admissions": admissions,
    "slices": slices,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.plots", description="Pictures of the studies.")
    parser.add_argument("--studies", type=Path, default=Path("build/sweep"), help="(%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"), help="(%(default)s)")
    given = parser.parse_args(argv)
    given.out.mkdir(parents=True, exist_ok=True)
    drawn = 0
    for study, draw in _PICTURES.items():
        source = given.studies / f"{study}.json"
        if source.exists():
            draw(json.loads(source.read_text()), given.out / f"{study}.svg")
            drawn += 1
    if not drawn:
        print(f"nothing in {given.studies}: run `python -m bench.sweep` first", file=sys.stderr)
    return 0 if drawn else 2


if __name__ == "__main__":
    sys.exit(main())
