"""A run that says how far it is: a bar at a terminal, one line at its end anywhere else."""

import time
from collections.abc import Callable

from rich.console import Console

from bench.progress import progress_for
from bench.report import Figures


def run_shown(console: Console, name: str, run: Callable[[Callable[[float], None]], Figures]) -> Figures:
    started = time.monotonic()
    if console.is_terminal:
        with progress_for(console, name) as tell:
            return run(lambda done: tell(done, "of virtual time"))
    result = run(lambda done: None)
    console.print(f"{name}: {time.monotonic() - started:.1f} s", highlight=False, soft_wrap=True)
    return result
