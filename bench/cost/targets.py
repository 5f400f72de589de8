"""What this project wants to reach, and whether a run reached it. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from bench.cost.results import Results, Row

# CPU per request over that of the best Rust LLM router in the same run.
FAST: Mapping[str, float] = MappingProxyType(
    {"SMALL": 0.60, "STREAM": 0.70, "PACED": 1.0, "AGENT": 0.40, "AGENT_HEADER": 0.25, "GROW": 0.40}
)
STANDARD: Mapping[str, float] = MappingProxyType(
    {"SMALL": 1.0, "STREAM": 1.1, "PACED": 1.3, "AGENT": 0.75, "AGENT_HEADER": 0.6, "GROW": 0.65}
)
_ON_ANY_SERVER = frozenset({"uvicorn"})  # groups of ours that run without our own protocol class
_GROWTH_MB = 50.0  # after 2,000 distinct AGENT bodies
_FIRST_CHUNK_US = 500.0
_EVENTS = 50


@dataclass(frozen=True, slots=True)
class Verdict:
    what: str
    ours: float
    theirs: float | None  # None: the limit is absolute
    whose: str
    limit: float
    unit: str

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs if self.theirs else self.ours

    @property
    def met(self) -> bool:
        return self.ratio <= self.limit


def best(rows: Sequence[Row], workload: str) -> Row | None:
    """The Rust LLM router that costs least."""
    able = [row for row in rows if row.kind == "rust" and row.cpu_us(workload) is not None]
    return min(able, key=lambda row: row.cpu_us(workload) or 0.0, default=None)


def verdicts(row: Row, results: Results) -> list[Verdict]:
    """Every target that this run has the figures for."""
    return [*_costs(row, results), *_latencies(row, results), *_absolute(row, results)]


def _costs(row: Row, results: Results) -> Iterator[Verdict]:
    limits = STANDARD if row.group in _ON_ANY_SERVER else FAST
    for workload in results.workloads:
        mine, theirs = row.cpu_us(workload), best(results.rows, workload)
        if mine is not None and theirs is not None:
            yield Verdict(workload, mine, theirs.cpu_us(workload), theirs.name, limits[workload], "us")
    nginx = next((each for each in results.rows if each.name == "nginx"), None)
    mine, theirs_us = row.cpu_us("AGENT_HEADER"), nginx.cpu_us("AGENT_HEADER") if nginx else None
    if limits is FAST and mine is not None and theirs_us is not None:
        yield Verdict("AGENT_HEADER", mine, theirs_us, "nginx", 1.0, "us")


def _latencies(row: Row, results: Results) -> Iterator[Verdict]:
    for workload, limit in (("SMALL", 1.0), ("AGENT", 0.5)):
        mine = row.over(results.direct, workload, "p99")
        rust = [(each.over(results.direct, workload, "p99"), each.name) for each in results.rows if each.kind == "rust"]
        known = [(value, name) for value, name in rust if value is not None]
        if mine is not None and known:
            theirs, name = min(known)
            # Noise may leave less than nothing of a difference.
            yield Verdict(f"{workload} added p99", max(mine, 1.0), max(theirs, 1.0), name, limit, "us")


def _absolute(row: Row, results: Results) -> Iterator[Verdict]:
    first = row.over(results.direct, "STREAM", "first_p50")
    if first is not None:
        yield Verdict("first chunk, added p50", first, None, "", _FIRST_CHUNK_US, "us")
    if row.memory is not None:
        growth = row.memory.after_mb - row.memory.before_mb
        yield Verdict(f"growth, {row.memory.requests} AGENT bodies", growth, None, "", _GROWTH_MB, "MB")
    arrivals = row.arrivals("PACED")
    if arrivals is not None:
        yield Verdict("events held back, PACED", max(_EVENTS - arrivals, 0.0), None, "", 0.5, "of 50")
