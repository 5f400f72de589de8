"""The process under test: started on a core of its own, watched from outside, ended with all it started."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

_STOP_SECONDS = 5.0  # to end in good order; then it is killed
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LAST_LINES = 400  # characters of a log that explain a failure in a table's cell


class StartError(Exception):
    """The process ended, or did not serve in time. Says its last words."""


def cores() -> tuple[set[int], set[int]]:
    """(for the proxy, for load and replicas); the same one where there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    return {usable[0]}, {usable[-1]}


class Watched:
    """A running process and its descendants."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self._log = log

    def cpu_seconds(self) -> float:
        """User and system time of the whole tree since it started."""
        return sum(map(_cpu_seconds, self._tree()))

    def memory_bytes(self) -> int:
        """Resident memory of the whole tree."""
        return sum(map(_resident_bytes, self._tree()))

    def ended(self) -> bool:
        return self._process.poll() is not None

    def last_words(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return (lines[-1] if lines else "no output")[-_LAST_LINES:]

    async def stop(self) -> None:
        tree = self._tree()
        _tell(tree, signal.SIGTERM)
        for _ in range(round(_STOP_SECONDS / 0.05)):
            if self.ended() and not any(map(_alive, tree)):
                return
            await asyncio.sleep(0.05)
        _tell(tree, signal.SIGKILL)
        await asyncio.to_thread(self._process.wait)

    def _tree(self) -> list[int]:
        """Pids; read anew each time, since servers start and replace their own."""
        parents = _parents()
        tree = [self._process.pid]
        for pid in tree:
            tree += (child for child, parent in parents.items() if parent == pid)
        return tree


@asynccontextmanager
async def running(
    command: Sequence[str], environment: Mapping[str, str], log: Path, core: set[int]
) -> AsyncIterator[Watched]:
    """Raises StartError if the program cannot be run at all."""
    with log.open("wb") as output:
        try:
            process = _start(command, environment, output.fileno(), core)
        except OSError as error:
            raise StartError(f"cannot run {command[0]}: {error.strerror}") from None
    watched = Watched(process, log)
    try:
        yield watched
    finally:
        await watched.stop()


async def until(ready: Callable[[], Awaitable[bool]], watched: Watched, seconds: float) -> None:
    """Wait until `ready()` is true. Raises StartError with the process's last words."""
    deadline = time.monotonic() + seconds
    while not await ready():
        if watched.ended():
            raise StartError(f"ended: {watched.last_words()}")
        if time.monotonic() > deadline:
            raise StartError(f"not ready within {seconds:g} s: {watched.last_words()}")
        await asyncio.sleep(0.1)


def _start(
    command: Sequence[str], environment: Mapping[str, str], output: int, core: set[int]
) -> "subprocess.Popen[bytes]":
    """The child inherits our cores, so it sees its own from its first instruction and sizes its threads by them."""
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, core)
    try:
        return subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    finally:
        os.sched_setaffinity(0, ours)


def _parents() -> dict[int, int]:
    found: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                found[int(entry)] = int(_stat(int(entry))[1])
    return found


def _stat(pid: int) -> list[str]:
    """Fields from the third on (state first): the name before them may hold spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _cpu_seconds(pid: int) -> float:
    """The kernel's CPU clock of another process (clock_getcpuclockid(3)): nanoseconds; stat has ticks of 10 ms."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except (OSError, OverflowError):
        pass
    with suppress(OSError):
        fields = _stat(pid)
        return (int(fields[11]) + int(fields[12])) / _TICKS
    return 0.0


def _resident_bytes(pid: int) -> int:
    with suppress(OSError):
        return int(_stat(pid)[21]) * _PAGE
    return 0


def _alive(pid: int) -> bool:
    try:
        return _stat(pid)[0] != "Z"
    except OSError:
        return False


def _tell(tree: Sequence[int], number: int) -> None:
    for pid in tree:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
