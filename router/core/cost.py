"""What a replica has to do, as numbers that policies compare. The law: unknown is never zero, own counts stand in."""

from collections.abc import Sequence

from router.core.replica import Load

FOREIGN_TOKENS = 4000.0  # a queued request that is not ours: the 90th percentile of what an agent's turn has to compute
FRESH_SECONDS = 5.0  # five missed scrapes of the default interval; beyond it the queue has turned over


def load_of(load: Load, now: float = 0.0) -> float:
    """Requests in flight at a replica: ours, or more where a fresh scrape shows other clients' too.

    `now` is the clock of `signals_at`; the default believes the last scrape whatever its age.
    """
    if load.signals_at is None or now - load.signals_at > FRESH_SECONDS:
        return load.inflight
    running, waiting = load.signals.running, load.signals.waiting
    if running is None and waiting is None:
        return load.inflight
    return max(load.inflight, (running or 0.0) + (waiting or 0.0) + load.dispatched_since_scrape)


def lowest(values: Sequence[float], turn: int) -> int:
    """Index of the lowest value. Equals take turns, so an idle fleet does not send everything to its first replica."""
    least = min(values)
    if values.count(least) == 1:
        return values.index(least)
    tied = [index for index, value in enumerate(values) if value == least]
    return tied[turn % len(tied)]


def prefill_seconds(load: Load, tokens: float, now: float) -> float:
    """Seconds until a request with this many uncached tokens gets its first token at a replica.

    What we sent there and has not answered yet, plus what a fresh scrape shows waiting beyond that,
    over the rate at which the replica was seen to prefill.
    """
    owed = load.queued_tokens + load.others_queued_tokens + FOREIGN_TOKENS * _foreign(load, now)
    return (owed + tokens) / load.prefill_rate


def _foreign(load: Load, now: float) -> float:
    """Requests waiting at the engine that this router did not send."""
    if load.signals_at is None or now - load.signals_at > FRESH_SECONDS or not load.signals.waiting:
        return 0.0
    return max(load.signals.waiting - load.inflight, 0.0)
