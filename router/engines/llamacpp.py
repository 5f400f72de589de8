"""llama.cpp's names. Metrics are off unless the server runs with `--metrics` (501 otherwise); there is no KV usage.

Its header `Process-Start-Time-Unix` is no Unix time but microseconds of the machine's monotonic clock, taken once when
the server starts: it tells one process from the next and nothing else, and is handed on as it is. Counters move when
a request completes.
"""

from router.engines.engine import Combine, Engine, Signal

_CACHED = "llamacpp:prompt_tokens_cached_total"

LLAMACPP = Engine(
    name="llamacpp",
    owner="llamacpp",
    running=Signal(("llamacpp:requests_processing",)),
    waiting=Signal(("llamacpp:requests_deferred",)),
    cache_queries=Signal(("llamacpp:prompt_tokens_total",), Combine.TOTAL, plus=_CACHED),  # it counts them apart
    cache_hits=Signal((_CACHED,), Combine.TOTAL),
    capacity_path="/props",
    # n_ctx is a slot's. With one cache for all slots (`--kv-unified`) each slot reports the whole of it and this is
    # too much by the number of slots: no page says which of the two it is.
    capacity_fields=("default_generation_settings.n_ctx", "total_slots"),
    start_header="process-start-time-unix",
)
