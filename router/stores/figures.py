"""What a store counts: `router_store_*`, on the registry of the router. Safe from any thread."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1, 2.5)  # 0.02: who asks leaves


class Figures:
    def __init__(self, registry: CollectorRegistry, store: str) -> None:
        labels = ("store",)
        self._store = store
        self._up = Gauge("router_store_up", "1 while it can be read and written", labels, registry=registry)
        self._queue = Gauge("router_store_queue", "Bindings that wait to be written", labels, registry=registry)
        self._operations = Counter(
            "router_store_operations", "What was asked of it and how that ended",
            (*labels, "operation", "outcome"), registry=registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "router_store_operation_seconds", "How long: a look-up as its request sees it, a batch of writes, a load",
            (*labels, "operation"), buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.up(True)
        self.queue(0)

    def up(self, is_up: bool) -> None:
        self._up.labels(self._store).set(is_up)

    def queue(self, waiting: int) -> None:
        self._queue.labels(self._store).set(waiting)

    def count(self, operation: str, outcome: str, times: int = 1) -> None:
        self._operations.labels(self._store, operation, outcome).inc(times)

    @contextmanager
    def timed(self, operation: str) -> Iterator[None]:
        started = perf_counter()
        try:
            yield
        finally:
            self._seconds.labels(self._store, operation).observe(perf_counter() - started)
