"""The /metrics page of a simulated engine, under the names that vLLM or SGLang gives its signals."""

from router.core.replica import Signals


def vllm_page(signals: Signals, labels: str, block_tokens: int, kv_blocks: int) -> list[str]:
    """One data-parallel rank of vLLM 0.32."""
    config = f'{labels},block_size="{block_tokens}",num_gpu_blocks="{kv_blocks}"'
    return [
        f"vllm:num_requests_running{{{labels}}} {signals.running or 0.0}",
        f"vllm:num_requests_waiting{{{labels}}} {signals.waiting or 0.0}",
        f"vllm:kv_cache_usage_perc{{{labels}}} {signals.kv_usage or 0.0}",
        f"vllm:prefix_cache_queries_total{{{labels}}} {signals.cache_queries or 0.0}",
        f"vllm:prefix_cache_hits_total{{{labels}}} {signals.cache_hits or 0.0}",
        f"vllm:cache_config_info{{{config}}} 1.0",
    ]


def sglang_page(signals: Signals, labels: str, block_tokens: int, kv_blocks: int) -> list[str]:
    """One data-parallel rank of SGLang 0.5."""
    queries, hits = signals.cache_queries or 0.0, signals.cache_hits or 0.0
    return [
        f"sglang:num_running_reqs{{{labels}}} {signals.running or 0.0}",
        f"sglang:num_queue_reqs{{{labels}}} {signals.waiting or 0.0}",
        f"sglang:token_usage{{{labels}}} {signals.kv_usage or 0.0}",
        f"sglang:max_total_num_tokens{{{labels}}} {block_tokens * kv_blocks}",
        f"sglang:prompt_tokens_total{{{labels}}} {queries}",
        f'sglang:cached_tokens_total{{{labels},cache_source="device"}} {hits}',
        f"sglang:cache_hit_rate{{{labels}}} {hits / queries if queries else 0.0}",
    ]


def split_ranks(signals: Signals, ranks: int) -> list[Signals]:
    """The same engine as `ranks` series: counts add up to the whole, usage is the mean."""
    if ranks == 1:
        return [signals]

    def part(value: float | None, rank: int) -> float:
        whole, rest = divmod(int(value or 0), ranks)
        return float(whole + (rank < rest))

    return [
        Signals(
            running=part(signals.running, rank),
            waiting=part(signals.waiting, rank),
            kv_usage=signals.kv_usage,
            cache_queries=part(signals.cache_queries, rank),
            cache_hits=part(signals.cache_hits, rank),
        )
        for rank in range(ranks)
    ]


def render(lines: list[str], started_at: float) -> str:
    """The page in the Prometheus text format: a type for every family, equal families together."""
    families: dict[str, list[str]] = {}
    for line in lines:
        families.setdefault(line.split("{", 1)[0], []).append(line)
    out = []
    for name, samples in families.items():
        out.append(f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
        out += samples
    out += ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {started_at:.2f}"]
    return "\n".join(out) + "\n"
