"""Progress on stderr: a bar at a terminal, a line every few seconds anywhere else."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


class Progress(Protocol):
    """Told how much is `done` (0..1) and a few words on it, about every `every` seconds."""

    @property
    def every(self) -> float: ...

    def __call__(self, done: float, words: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _Lines:
    console: Console
    name: str
    every: float = 5.0  # a log is read later: fewer lines

    def __call__(self, done: float, words: str) -> None:
        self.console.print(f"{self.name}: {100 * done:.0f} %, {words}", highlight=False)


@dataclass(frozen=True, slots=True)
class _OnBar:
    bar: Bar
    task: TaskID
    every: float = 0.2  # smooth enough for the eye

    def __call__(self, done: float, words: str) -> None:
        self.bar.update(self.task, completed=done, words=words)


@contextlib.contextmanager
def progress_for(console: Console, name: str) -> Iterator[Progress]:
    if not console.is_terminal:
        yield _Lines(console, name)
        return
    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(24),
        TimeElapsedColumn(),
        TextColumn("{task.fields[words]}"),
    )
    with Bar(*columns, console=console, transient=True) as bar:
        yield _OnBar(bar, bar.add_task(name, total=1.0, words=""))
