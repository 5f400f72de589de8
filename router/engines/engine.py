"""What it takes to understand one kind of engine: names and arithmetic as data, no behaviour of its own."""

from dataclasses import dataclass
from enum import StrEnum


class Combine(StrEnum):
    """How the series of one metric become one number. Each way is blind to the order of the series."""

    TOTAL = "total"  # counters: add every series, whatever its labels
    COUNT = "count"  # gauges that count: largest of each rank (its TP shards repeat it), added over the ranks
    SHARE = "share"  # gauges in 0..1: largest of each rank, mean over the ranks


@dataclass(frozen=True, slots=True)
class Signal:
    """Where one signal is found. The first of `names` that a page has is the one read."""

    names: tuple[str, ...] = ()  # newest first; none = this engine does not say
    combine: Combine = Combine.COUNT
    plus: str = ""  # a second metric to add; without it the signal is unknown


@dataclass(frozen=True, slots=True)
class Engine:
    """One kind of engine: what it calls its signals."""

    name: str
    owner: str  # `owned_by` of its entries in /v1/models
    running: Signal
    waiting: Signal
    kv_usage: Signal = Signal()
    kv_capacity: Signal = Signal()  # tokens
    cache_queries: Signal = Signal()
    cache_hits: Signal = Signal()
    hit_ratio: Signal = Signal()
    started_at: Signal = Signal(("process_start_time_seconds",))
    capacity_metric: str = ""  # a metric whose labels say the capacity, ...
    capacity_labels: tuple[tuple[str, ...], ...] = ()  # ... as the product of these; the first complete set counts
    capacity_path: str = ""  # a JSON page that says the capacity, ...
    capacity_fields: tuple[str, ...] = ()  # ... as the product of these, dots descend
    start_header: str = ""  # a header of the metrics page that tells one process from the next
    awake_metric: str = ""  # 0 on a series with `awake_label`: the engine sleeps and must get nothing
    awake_label: tuple[str, str] = ("", "")
    rank_labels: tuple[str, ...] = ("engine", "dp_rank")  # what tells data-parallel ranks apart

    @property
    def own_names(self) -> tuple[str, ...]:
        """Every metric of this engine that is read and that no other program exports."""
        counted = (self.running, self.waiting, self.cache_queries, self.cache_hits)
        sized = (self.kv_usage, self.kv_capacity, self.hit_ratio)
        names = [name for signal in (*counted, *sized) for name in (*signal.names, signal.plus)]
        return tuple(name for name in (*names, self.capacity_metric) if name)
