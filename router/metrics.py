"""The ledger: every decision and every outcome, on a registry of its own.

Law: label values come from the configuration or from fixed words, never from a client; each request
is entered exactly once; gauges of replicas are read off the fleet when asked, so none outlives its replica.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from itertools import accumulate
from typing import Protocol

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from router.core.decision import Decision
from router.core.replica import Load
from router.core.request import Usage

_FIRST_TOKEN = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)  # a warm turn to a collapsed fleet
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_DURATION = (0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)
_OVERHEAD = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25)


class Outcome(StrEnum):
    """How a request ended. One per request, on every path."""

    OK = "ok"
    CLIENT_ERROR = "client_error"  # a 4xx, the engine's or ours
    REPLICA_ERROR = "replica_error"  # a 5xx, a reset before the answer, an error inside a 200
    TRUNCATED = "truncated"  # the answer broke off
    CLIENT_GONE = "client_gone"  # hung up, in whichever phase
    REJECTED = "rejected"  # nobody took it: no replica, overload, engines that push back
    TIMEOUT = "timeout"


class FleetView(Protocol):
    @property
    def loads(self) -> Mapping[str, Load]: ...
    @property
    def sessions(self) -> int: ...
    @property
    def prefixes(self) -> int: ...
    def now(self) -> float: ...


class Count:
    """One counter. Read when the page is rendered; `n` is added to in place, as only the event loop does that."""

    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0

    def inc(self) -> None:
        self.n += 1


class Spread:
    """One histogram's counts per bucket."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: tuple[str, ...]) -> None:
        names = (*map(floatToGoString, self._bounds), "+Inf")
        family.add_metric(labels, list(zip(names, accumulate(self._counts), strict=True)), self._sum)


class _Counts(Collector):
    """A family of counters. Not the client library's own: its locks and checks are 8 % of a small request."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...] = ()) -> None:
        self._about = name, text, labels
        self._children: dict[tuple[str, ...], Count] = {} if labels else {(): Count()}

    def labels(self, *values: str) -> Count:
        child = self._children.get(values)
        if child is None:
            self._children[values] = child = Count()
        return child

    def remove(self, *values: str) -> None:
        self._children.pop(values, None)

    def collect(self) -> Iterable[Metric]:
        name, text, labels = self._about
        family = CounterMetricFamily(name, text, labels=labels)
        for values, child in self._children.items():
            family.add_metric(values, child.n)
        yield family


class _Spreads(Collector):
    """A family of histograms, likewise."""

    def __init__(self, name: str, text: str, bounds: tuple[float, ...], labels: tuple[str, ...] = ()) -> None:
        self._about, self._bounds = (name, text, labels), bounds
        self._children: dict[tuple[str, ...], Spread] = {} if labels else {(): Spread(bounds)}

    def labels(self, *values: str) -> Spread:
        child = self._children.get(values)
        if child is None:
            self._children[values] = child = Spread(self._bounds)
        return child

    def collect(self) -> Iterable[Metric]:
        name, text, labels = self._about
        family = HistogramMetricFamily(name, text, labels=labels)
        for values, child in self._children.items():
            child.add_to(family, values)
        yield family


class Ledger:
    """Counters and histograms of the request path. Children are looked up once per label set."""

    def __init__(self, fleet: FleetView) -> None:
        self.fleet = fleet
        self.registry = registry = CollectorRegistry()
        registry.register(_FleetGauges(fleet))
        ProcessCollector(registry=registry)
        arm = ("policy", "arm")
        self._requests = _Counts("router_requests", "Requests by how they ended", (*arm, "replica", "outcome"))
        self._decisions = _Counts("router_decisions", "Choices by the branch that chose", (*arm, "reason"))
        self._passed_over = _Counts(
            "router_passed_over", "Replicas that came first and were not taken, by cause", ("reason",)
        )
        self._sources = _Counts("router_session_source", "Requests by what named their session", ("source",))
        self._prompt = _Counts("router_prompt_tokens", "Prompt tokens, as engines report", arm)
        self._expected = _Counts(
            "router_expected_cached_tokens", "Prompt tokens expected to be cached at the choice", arm
        )
        self._cached = _Counts("router_cached_tokens", "Prompt tokens really cached, as engines report", arm)
        self._first_token = _Spreads(
            "router_time_to_first_token_seconds", "Receipt to first body byte", _FIRST_TOKEN, arm
        )
        self._per_token = _Spreads("router_time_per_output_token_seconds", "After the first one", _PER_TOKEN, arm)
        self._durations = _Spreads("router_request_duration_seconds", "Receipt to last byte", _DURATION)
        self._overheads = _Spreads("router_overhead_seconds", "Own time from the body's receipt to dispatch", _OVERHEAD)
        self._retries = _Counts("router_retries", "Attempts after the first, by cause", ("reason",))
        self._retries_refused = _Counts("router_retries_refused", "Retries that the budget did not allow")
        self._waits = _Spreads("router_waiting_seconds", "In the waiting room, of those held", _DURATION)
        for family in (
            self._requests, self._decisions, self._passed_over, self._sources, self._prompt, self._expected,
            self._cached, self._first_token, self._per_token, self._durations, self._overheads, self._retries,
            self._retries_refused,
        ):  # fmt: skip
            registry.register(family)
        self.waiting = Gauge("router_waiting_requests", "Held by admission", registry=registry)
        registry.register(self._waits)
        self.loop_lag = Gauge("router_loop_lag_seconds", "How late the event loop runs a timer", registry=registry)
        self.duration, self.overhead = self._durations.labels().observe, self._overheads.labels().observe
        self.waited, self.retry_refused = self._waits.labels().observe, self._retries_refused.labels().inc
        self._arms: dict[tuple[str, str], _Arm] = {}

    def render(self) -> tuple[bytes, str]:
        """The page and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def arm(self, policy: str, arm: str) -> "_Arm":
        found = self._arms.get((policy, arm))
        if found is None:
            self._arms[policy, arm] = found = _Arm(self, policy, arm)
        return found

    def source(self, source: str) -> None:
        self._sources.labels(source).n += 1

    def retried(self, reason: str) -> None:
        self._retries.labels(reason).n += 1

    def removed(self, replica: str) -> None:
        """A replica left the fleet: its series go with it."""
        for arm in self._arms.values():
            arm.forget(replica)


class _Arm:
    """The children of one (policy, arm)."""

    def __init__(self, ledger: Ledger, policy: str, arm: str) -> None:
        self._ledger, self._policy, self._name = ledger, policy, arm
        self._prompt = ledger._prompt.labels(policy, arm)
        self._expected = ledger._expected.labels(policy, arm)
        self._cached = ledger._cached.labels(policy, arm)
        self.first_token = ledger._first_token.labels(policy, arm).observe
        self._per_token = ledger._per_token.labels(policy, arm)
        self._reasons: dict[str, Count] = {}
        self._outcomes: dict[tuple[str, str], Count] = {}

    def decided(self, decision: Decision) -> None:
        count = self._reasons.get(decision.reason)
        if count is None:
            count = self._ledger._decisions.labels(self._policy, self._name, decision.reason)
            self._reasons[decision.reason] = count
        count.n += 1
        for _, why in decision.passed_over:
            self._ledger._passed_over.labels(why).n += 1

    def answered(self, usage: Usage, expected: int, seconds_after_first: float) -> None:
        """A success ended; what the engine counted, where it did."""
        if usage.prompt_tokens is not None:
            self._prompt.n += usage.prompt_tokens
            self._expected.n += min(expected, usage.prompt_tokens)
        if usage.cached_tokens is not None:
            self._cached.n += usage.cached_tokens
        if usage.completion_tokens is not None and usage.completion_tokens > 1 and seconds_after_first > 0:
            self._per_token.observe(seconds_after_first / (usage.completion_tokens - 1))

    def ended(self, replica: str, outcome: Outcome, seconds: float) -> None:
        count = self._outcomes.get((replica, outcome))
        if count is None:
            # A stream may outlive its replica: its series must not come back for good.
            known = replica if replica in self._ledger.fleet.loads else ""
            count = self._ledger._requests.labels(self._policy, self._name, known, outcome)
            self._outcomes[known, outcome] = count
        count.n += 1
        self._ledger.duration(seconds)

    def forget(self, replica: str) -> None:
        for key in [key for key in self._outcomes if key[0] == replica]:
            del self._outcomes[key]
            self._ledger._requests.remove(self._policy, self._name, *key)


class _FleetGauges(Collector):
    """Gauges that are the fleet's own counters, read when the page is rendered."""

    def __init__(self, fleet: FleetView) -> None:
        self._fleet = fleet

    def collect(self) -> Iterable[Metric]:
        yield _gauge("router_sessions", "Sessions with a home", self._fleet.sessions)
        yield _gauge("router_prefixes", "Links of prompts that lead to a session", self._fleet.prefixes)
        now = self._fleet.now()
        loads = self._fleet.loads.values()
        for name, text, read in _PER_REPLICA:
            family = GaugeMetricFamily(name, text, labels=("replica",))
            for load in loads:
                value = read(load, now)
                if value is not None:  # unknown is absent, never zero
                    family.add_metric((load.id,), value)
            yield family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


_PER_REPLICA: tuple[tuple[str, str, Callable[[Load, float], float | None]], ...] = (
    ("router_inflight_requests", "Open leases", lambda load, _: load.inflight),
    ("router_inflight_uncached_tokens", "Uncached prompt tokens not yet answered", lambda load, _: load.queued_tokens),
    ("router_replica_up", "1 if it may be chosen", lambda load, _: float(load.eligible)),
    ("router_replica_kv_usage_ratio", "KV cache in use by running requests", lambda load, _: load.signals.kv_usage),
    ("router_replica_running_requests", "As the engine says", lambda load, _: load.signals.running),
    ("router_replica_waiting_requests", "As the engine says", lambda load, _: load.signals.waiting),
    ("router_replica_bound_tokens", "Contexts of its sessions that are not idle", lambda load, _: load.bound_tokens),
    ("router_replica_bound_sessions", "Its sessions that are not idle", lambda load, _: load.bound_sessions),
    ("router_replica_hit_ratio", "Cached share of recent prompts, as replies report", lambda load, _: load.hit_ratio),
    ("router_replica_prefill_tokens_per_second", "Learned from replies", lambda load, _: load.prefill_rate),
    ("router_replica_incarnation", "Restarts seen", lambda load, _: load.incarnation),
    (
        "router_signal_age_seconds",
        "Since the last good scrape",
        lambda load, now: None if load.signals_at is None else now - load.signals_at,
    ),
)  # fmt: skip
