"""vLLM's names, from the releases 0.8 to 0.32. Counters carry `_total` on the wire.

One series per data-parallel rank (label `engine`). `kv_cache_usage_perc` leaves out cached blocks that could
be evicted: it shows pressure, not what is cached.
"""

from router.engines.engine import Combine, Engine, Signal

VLLM = Engine(
    name="vllm",
    owner="vllm",
    running=Signal(("vllm:num_requests_running",)),
    waiting=Signal(("vllm:num_requests_waiting",)),
    kv_usage=Signal(("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), Combine.SHARE),
    cache_queries=Signal(("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"), Combine.TOTAL),
    cache_hits=Signal(("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"), Combine.TOTAL),
    hit_ratio=Signal(("vllm:gpu_prefix_cache_hit_rate",), Combine.SHARE),  # the V0 engine, -1 until the first look-up
    capacity_metric="vllm:cache_config_info",
    # Blocks x block size is wrong for hybrid models (sliding window, Mamba); new releases do the sum themselves.
    capacity_labels=(("kv_cache_size_tokens",), ("num_gpu_blocks", "block_size")),
    awake_metric="vllm:engine_sleep_state",
    awake_label=("sleep_state", "awake"),
)
