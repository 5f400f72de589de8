"""What a run came to: passes, cells, rows. Values only; medians are taken here, once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median


@dataclass(frozen=True, slots=True)
class Options:
    passes: int = 3  # medians of three: one disturbed pass does not count
    seconds: float = 3.0  # per workload; the CPU clock is exact, so this is for steadiness
    workloads: tuple[str, ...] = ()  # none named: all
    memory_requests: int = 2_000
    idle_seconds: float = 2.0  # two scrapes of every replica


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload in one pass."""

    cpu_us: float  # per request
    per_second: float
    arrivals: float  # how often something of a reply came; a stream of 50 events held back by nobody: 50 and more


@dataclass(frozen=True, slots=True)
class Latency:
    """At concurrency 1, in microseconds, the replica's own time included."""

    p50: float
    p99: float
    first_p50: float  # to the first byte of the body


@dataclass(frozen=True, slots=True)
class Memory:
    before_mb: float
    after_mb: float
    requests: int


@dataclass(slots=True)
class Row:
    name: str
    kind: str
    group: str = ""
    failed: str = ""  # why there is nothing, or nothing more
    verbatim: bool = True  # replies pass byte for byte
    idle_ms: list[float] = field(default_factory=list)  # CPU per second while nothing is asked
    cells: dict[str, list[Cell]] = field(default_factory=dict)
    latency: dict[str, list[Latency]] = field(default_factory=dict)
    memory: Memory | None = None

    def cpu_us(self, workload: str) -> float | None:
        return _median([cell.cpu_us for cell in self.cells.get(workload, ())])

    def per_second(self, workload: str) -> float | None:
        return _median([cell.per_second for cell in self.cells.get(workload, ())])

    def arrivals(self, workload: str) -> float | None:
        return _median([cell.arrivals for cell in self.cells.get(workload, ())])

    def idle(self) -> float | None:
        return _median(self.idle_ms)

    def over(self, direct: "Row", workload: str, what: str) -> float | None:
        """Median over the passes of the added p50, p99 or first_p50, in microseconds."""
        pairs = zip(self.latency.get(workload, ()), direct.latency.get(workload, ()), strict=False)
        return _median([getattr(mine, what) - getattr(bare, what) for mine, bare in pairs])


@dataclass(slots=True)
class Results:
    direct: Row  # no proxy at all: what load and replicas can do
    rows: list[Row]
    workloads: tuple[str, ...]
    options: Options


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
