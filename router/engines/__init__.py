"""What vLLM, SGLang and llama.cpp call their signals, and how a page of theirs becomes `Signals`. Pure.

A new engine is one more file of data and one more name in `ENGINES`. What a page does not say is unknown, never zero.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from router.core.replica import Signals
from router.engines.engine import Combine, Engine, Signal
from router.engines.exposition import Sample, samples
from router.engines.llamacpp import LLAMACPP
from router.engines.sglang import SGLANG
from router.engines.vllm import VLLM

__all__ = ["ENGINES", "Combine", "Engine", "Signal", "asleep", "by_name", "by_owner", "capacity", "read", "recognise"]

ENGINES: tuple[Engine, ...] = (VLLM, SGLANG, LLAMACPP)

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_Found = Mapping[str, Sequence[Sample]]


def by_name(name: str) -> Engine | None:
    """The engine of that name; None for `auto`, `none` and strangers."""
    return next((engine for engine in ENGINES if engine.name == name), None)


def by_owner(models: Iterable[Mapping[str, Any]]) -> Engine | None:
    """The engine that owns these entries of /v1/models."""
    owners = {entry.get("owned_by") for entry in models}
    return next((engine for engine in ENGINES if engine.owner in owners), None)


def recognise(page: str | bytes) -> Engine | None:
    """The engine whose metrics are on the page; None if it is nobody's that we know."""
    return next((engine for engine in ENGINES if samples(page, engine.own_names)), None)


def read(engine: Engine, page: str | bytes, headers: Mapping[str, str] = _NO_HEADERS) -> Signals:
    """What a metrics page says. `headers` are those of the reply, names in lower case."""
    found = samples(page, (*engine.own_names, *engine.started_at.names))
    return Signals(
        running=_value(engine, engine.running, found),
        waiting=_value(engine, engine.waiting, found),
        kv_usage=_value(engine, engine.kv_usage, found),
        kv_capacity_tokens=_value(engine, engine.kv_capacity, found) or _capacity_of_labels(engine, found),
        cache_queries=_value(engine, engine.cache_queries, found),
        cache_hits=_value(engine, engine.cache_hits, found),
        started_at=_value(engine, engine.started_at, found) or _start_of_header(engine, headers),
        hit_ratio=_value(engine, engine.hit_ratio, found),
    )


def asleep(engine: Engine, page: str | bytes) -> bool:
    """Whether the engine says that it sleeps: its `/health` is 200 then, and its answers are failures."""
    name, value = engine.awake_label
    series = samples(page, (engine.awake_metric,)) if engine.awake_metric else {}
    return any(s.value == 0 for s in series.get(engine.awake_metric, ()) if s.labels.get(name) == value)


def capacity(engine: Engine, body: bytes) -> float | None:
    """KV capacity in tokens from the page at `engine.capacity_path`; None if it does not say."""
    try:
        page = json.loads(body)
        return _product(_descend(page, path) for path in engine.capacity_fields)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _descend(page: Any, path: str) -> Any:
    for key in path.split("."):
        page = page[key]
    return page


def _product(values: Iterable[Any]) -> float | None:
    product = math.prod(float(value) for value in values)
    return product if 0 < product < math.inf else None


def _value(engine: Engine, signal: Signal, found: _Found) -> float | None:
    series = next((found[name] for name in signal.names if name in found), ())
    value = _combined(engine, signal.combine, series)
    if value is None or not signal.plus:
        return value
    more = _combined(engine, signal.combine, found.get(signal.plus, ()))
    return None if more is None else value + more


def _combined(engine: Engine, combine: Combine, series: Sequence[Sample]) -> float | None:
    known = [sample for sample in series if sample.value >= 0]  # none of these signals can be negative
    if not known:
        return None
    if combine is Combine.TOTAL:
        return math.fsum(sample.value for sample in known)
    ranks = _per_rank(engine, known, lambda sample: sample.value).values()
    return math.fsum(ranks) if combine is Combine.COUNT else min(1.0, math.fsum(ranks) / len(ranks))


def _per_rank(engine: Engine, series: Iterable[Sample], value: Callable[[Sample], float]) -> dict[str, float]:
    ranks: dict[str, float] = {}
    for sample in series:
        rank = next((sample.labels[label] for label in engine.rank_labels if label in sample.labels), "")
        ranks[rank] = max(value(sample), ranks.get(rank, 0.0))
    return ranks


def _capacity_of_labels(engine: Engine, found: _Found) -> float | None:
    ranks = _per_rank(engine, found.get(engine.capacity_metric, ()), lambda s: _labelled(engine, s.labels) or 0.0)
    return math.fsum(ranks.values()) if ranks and all(ranks.values()) else None


def _labelled(engine: Engine, labels: Mapping[str, str]) -> float | None:
    for names in engine.capacity_labels:
        try:
            product = _product(labels[name] for name in names)
        except (KeyError, ValueError):  # a label is missing, or says "None"
            continue
        if product is not None:
            return product
    return None


def _start_of_header(engine: Engine, headers: Mapping[str, str]) -> float | None:
    try:
        started = float(headers[engine.start_header])
    except (KeyError, ValueError):
        return None
    return started if math.isfinite(started) else None
