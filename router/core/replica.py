"""What is known of one replica: who it is (`Replica`), what it last said (`Signals`), how it stands (`Load`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from router.core.estimates import PrefillMeter

_NO_LABELS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Replica:
    """One engine process as discovery names it. Two equal `id`s are the same replica."""

    id: str  # host:port unless the operator named it; the ring hashes this
    url: str  # scheme://host[:port][/base], no trailing slash
    model: str = ""  # "" = ask the engine
    engine: str = "auto"  # auto | vllm | sglang | llamacpp | none
    labels: Mapping[str, str] = field(default_factory=lambda: _NO_LABELS, hash=False)  # 3.11 wants a factory
    api_key_env: str = ""  # environment variable that holds this replica's key
    terminating: bool = False  # discovery says: finish what runs, take nothing new


@dataclass(frozen=True, slots=True)
class Signals:
    """One scrape. `None` is unknown, never zero."""

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None  # 0..1
    kv_capacity_tokens: float | None = None
    cache_queries: float | None = None  # prompt tokens looked up since the engine's start
    cache_hits: float | None = None  # of these, found
    started_at: float | None = None  # the engine's own start time, epoch seconds
    hit_ratio: float | None = None  # where an engine reports only a ratio


class State(StrEnum):
    """Where a replica stands. Only `UP`, and not draining, takes new requests; the rest are kept for panic."""

    STARTING = "starting"  # never yet answered a probe
    UP = "up"
    COOLING = "cooling"  # pushed back (429/503): neutral, short
    EJECTED = "ejected"  # failed for cause; a good probe brings it back


@dataclass(slots=True, eq=False)
class Load:
    """The live counters of one replica. `Fleet` writes, everybody else only reads.

    `eq=False`: a lease releases to the object it was acquired from, so a replica that leaves
    and comes back under the same id starts with counters of its own.
    """

    replica: Replica
    id: str
    state: State = State.STARTING
    inflight: int = 0
    queued_tokens: int = 0  # uncached prompt tokens sent there whose first byte has not come back
    others_queued_tokens: int = 0  # the same of other routers, as far as they tell
    bound_tokens: int = 0  # contexts of the sessions at home here that are not idle
    bound_sessions: int = 0
    placed_tokens: int = 0  # contexts of the sessions that admission gave a place here
    prefill_rate: float = 8000.0  # uncached tokens per second, learned
    kv_capacity_default: float | None = None  # tokens, the operator's word where the engine gives none
    meter: PrefillMeter | None = None  # what learns it; None in a load made by hand
    incarnation: int = 0  # grows when the engine is seen to have restarted
    models: frozenset[str] = frozenset()  # empty = unknown: serves anything
    engine: str = ""  # found or configured; "" = not known yet
    signals: Signals = Signals()
    signals_at: float | None = None  # when the last good scrape came; None = never
    dispatched_since_scrape: int = 0
    sent_tokens: float = 0.0  # of prompts, by this router; both sums forget within minutes
    seen_tokens: float = 0.0  # of prompts, by whoever, as the engine counts them
    hit_ratio: float | None = None  # cached share of recent prompts, as replies report; None = none reported
    failures: int = 0  # consecutive, its own fault
    bad_probes: int = 0  # consecutive
    told: str = State.STARTING.value  # the standing that was last told to whoever listens
    good_at: float | None = None  # when it last served something well
    until: float = 0.0  # cooling or ejected at least until then
    ejections: int = 0  # in a row; doubles the time out
    drained: bool = False  # by the operator

    @property
    def kv_capacity_tokens(self) -> float | None:
        known = self.signals.kv_capacity_tokens
        return known if known is not None else self.kv_capacity_default

    @property
    def is_shared(self) -> bool:
        """Others send there too, as far as the engine's own counters show: what we saw of its cache is not all."""
        return self.seen_tokens > 1.5 * self.sent_tokens + 100_000  # estimates of prompts are off by a third at first

    @property
    def draining(self) -> bool:
        """Finishes what runs, takes nothing new: by the operator's word or by discovery's."""
        return self.drained or self.replica.terminating

    @property
    def standing(self) -> str:
        """One word for people and labels: the state, or `draining`."""
        return "draining" if self.draining else str(self.state)

    @property
    def eligible(self) -> bool:
        return self.state is State.UP and not self.draining
