"""SGLang's names, read from the source of 0.5.23 and never from a running engine: it needs a GPU.

`sglang:` became `sglang_` in newer releases, both are read. Data-parallel ranks carry `dp_rank`; with metrics of all
schedulers on, every tensor-parallel shard repeats its rank's numbers.
"""

from router.engines.engine import Combine, Engine, Signal


def _signal(name: str, combine: Combine = Combine.COUNT) -> Signal:
    return Signal((f"sglang_{name}", f"sglang:{name}"), combine)


SGLANG = Engine(
    name="sglang",
    owner="sglang",
    running=_signal("num_running_reqs"),
    waiting=_signal("num_queue_reqs"),
    kv_usage=_signal("token_usage", Combine.SHARE),
    kv_capacity=_signal("max_total_num_tokens"),
    cache_queries=_signal("prompt_tokens_total", Combine.TOTAL),  # cached part included
    cache_hits=_signal("cached_tokens_total", Combine.TOTAL),  # one series per source: device, host, storage
    hit_ratio=_signal("cache_hit_rate", Combine.SHARE),
)
