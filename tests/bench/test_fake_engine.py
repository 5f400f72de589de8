"""A simulated replica over HTTP: what it says of itself is what the arithmetic says."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from bench.client import Lane
from bench.fake_engine import Replica, ReplicaOptions
from bench.model import EngineOptions

FAST = ReplicaOptions(engine=EngineOptions(block_tokens=16), time_scale=1000.0)
CHAT = "/v1/chat/completions"


def with_replica(options: ReplicaOptions, use: Callable[[Replica, Lane], Awaitable[None]]) -> None:
    async def main() -> None:
        replica = Replica(options)
        await replica.start()
        lane = Lane(replica.url)
        try:
            await use(replica, lane)
        finally:
            lane.close()
            await replica.stop()

    asyncio.run(main())


def chat(*texts: str, **rest: Any) -> bytes:
    roles = ("system", "user", "assistant", "user")
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return json.dumps({"model": "sim", "messages": messages, "max_tokens": 5} | rest).encode()


def test_the_second_turn_hits_exactly_the_full_blocks_of_the_first() -> None:
    system, first, reply, second = "s" * 1000, "u" * 1000, "a" * 100, "v" * 300

    async def use(replica: Replica, lane: Lane) -> None:
        cold = (await lane.post(CHAT, chat(system, first))).usage()
        warm = (await lane.post(CHAT, chat(system, first, reply, second))).usage()
        rendered = len("<|system|>") + 1000 + len("<|user|>") + 1000
        assert cold["prompt_tokens"] == -(-rendered // 4)
        assert cold["prompt_tokens_details"] == {"cached_tokens": 0}
        assert warm["prompt_tokens_details"] == {"cached_tokens": rendered // 64 * 16}

    with_replica(FAST, use)


def test_what_differs_early_shares_nothing() -> None:
    async def use(replica: Replica, lane: Lane) -> None:
        await lane.post(CHAT, chat("a" + "s" * 4000, "u"))
        other = (await lane.post(CHAT, chat("b" + "s" * 4000, "u"))).usage()
        salted = (await lane.post(CHAT, chat("a" + "s" * 4000, "u", cache_salt="x"))).usage()
        assert other["prompt_tokens_details"] == salted["prompt_tokens_details"] == {"cached_tokens": 0}

    with_replica(FAST, use)


def test_a_stream_ends_with_its_reason_and_usage_comes_only_when_asked() -> None:
    async def use(replica: Replica, lane: Lane) -> None:
        asked = {"stream": True, "vllm_xargs": {"finish_reason": "tool_calls"}}
        plain = await lane.post(CHAT, chat("s", "u", **asked))
        counted = await lane.post(CHAT, chat("s", "u", **asked, stream_options={"include_usage": True}))
        assert plain.headers["content-type"].startswith("text/event-stream")
        assert b'"finish_reason":"tool_calls"' in plain.tail
        assert plain.tail.endswith(b"data: [DONE]\n\n")
        assert plain.usage() == {}
        assert counted.usage()["completion_tokens"] == 5

    with_replica(FAST, use)


def test_a_stream_carries_as_many_tokens_as_were_asked_for() -> None:
    async def use(replica: Replica, lane: Lane) -> None:
        answer = await lane.post(CHAT, chat("s", "u", stream=True, max_tokens=40))
        assert answer.tail.count(b"tok ") == 40

    with_replica(ReplicaOptions(time_scale=20.0, tokens_per_event=10), use)


def test_messages_speak_anthropic() -> None:
    async def use(replica: Replica, lane: Lane) -> None:
        whole = await lane.post("/v1/messages", chat("s" * 400, "u"))
        streamed = await lane.post("/v1/messages", chat("s" * 400, "u", stream=True))
        refused = await lane.post("/v1/messages", chat("s", "u", model="nope"))
        reply = json.loads(whole.tail)
        assert (reply["stop_reason"], reply["usage"]["cache_read_input_tokens"]) == ("max_tokens", 0)
        assert b"event: message_start\n" in streamed.tail
        assert b'"cache_read_input_tokens":96' in streamed.tail
        assert streamed.tail.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
        assert (refused.status, json.loads(refused.tail)["type"]) == (404, "error")

    with_replica(FAST, use)


def test_completions_take_a_prompt() -> None:
    async def use(replica: Replica, lane: Lane) -> None:
        answer = await lane.post("/v1/completions", b'{"model":"sim","prompt":"once upon a time","max_tokens":3}')
        assert json.loads(answer.tail)["choices"][0]["text"] == "tok tok tok "

    with_replica(FAST, use)


def test_refusals_have_the_status_of_the_real_engine() -> None:
    options = ReplicaOptions(time_scale=1000.0, max_model_len=1000)

    async def use(replica: Replica, lane: Lane) -> None:
        statuses = [
            (await lane.post(path, body)).status
            for path, body in (
                (CHAT, b"{"),
                (CHAT, b"[]"),
                (CHAT, b'{"model":"sim"}'),
                (CHAT, chat("s" * 5000, "u")),
                (CHAT, chat("s", "u", model="nope")),
                ("/v1/elsewhere", b"{}"),
            )
        ]
        assert statuses == [400, 400, 400, 400, 404, 404]

    with_replica(options, use)


def test_a_full_queue_is_a_503() -> None:
    options = ReplicaOptions(engine=EngineOptions(max_running=1), max_queue=1, time_scale=0.001)

    async def use(replica: Replica, lane: Lane) -> None:
        busy = [Lane(replica.url) for _ in range(2)]
        posts = [asyncio.create_task(one.post(CHAT, chat("s" * 4000, str(index)))) for index, one in enumerate(busy)]
        await until(lambda: answered(replica.requests == 2))
        assert (await lane.post(CHAT, chat("s", "u"))).status == 503
        for post in posts:
            post.cancel()
        await asyncio.gather(*posts, return_exceptions=True)

    with_replica(options, use)


def test_a_client_that_hangs_up_frees_its_slot() -> None:
    options = ReplicaOptions(time_scale=0.001)

    async def use(replica: Replica, lane: Lane) -> None:
        async def runs(count: float) -> bool:
            page = (await lane.get("/metrics")).tail.decode()
            return samples(page)["vllm:num_requests_running"] == [count]

        impatient = Lane(replica.url)
        post = asyncio.create_task(impatient.post(CHAT, chat("s" * 4000, "u", stream=True)))
        await until(lambda: runs(1.0))
        post.cancel()
        await until(lambda: runs(0.0))

    with_replica(options, use)


def test_cached_tokens_can_be_kept_silent() -> None:
    async def use(replica: Replica, lane: Lane) -> None:
        assert "prompt_tokens_details" not in (await lane.post(CHAT, chat("s", "u"))).usage()

    with_replica(ReplicaOptions(time_scale=1000.0, report_cached=False), use)


def test_a_restart_forgets_and_counts_from_nothing() -> None:
    async def use(replica: Replica, lane: Lane) -> None:
        await lane.post(CHAT, chat("s" * 4000, "u"))
        replica.restart()
        page = samples((await lane.get("/metrics")).tail.decode())
        again = (await lane.post(CHAT, chat("s" * 4000, "u"))).usage()
        assert page["vllm:prefix_cache_queries_total"] == [0.0]
        assert again["prompt_tokens_details"] == {"cached_tokens": 0}

    with_replica(FAST, use)


def test_metrics_have_the_names_of_the_flavour_and_one_series_per_rank() -> None:
    for flavour, names in (
        ("vllm", {"vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:prefix_cache_hits_total"}),
        ("sglang", {"sglang:num_running_reqs", "sglang:token_usage", "sglang:max_total_num_tokens"}),
    ):

        async def use(replica: Replica, lane: Lane, names: set[str] = names) -> None:
            await lane.post(CHAT, chat("s" * 4000, "u"))
            page = samples((await lane.get("/metrics")).tail.decode())
            assert names <= page.keys()
            assert all(len(page[name]) == 2 for name in names)

        with_replica(ReplicaOptions(time_scale=1000.0, flavour=flavour, ranks=2), use)


def test_ranks_add_up_to_the_engine() -> None:
    async def use(replica: Replica, lane: Lane) -> None:
        usage = (await lane.post(CHAT, chat("s" * 4001, "u"))).usage()
        page = samples((await lane.get("/metrics")).tail.decode())
        assert sum(page["vllm:prefix_cache_queries_total"]) == usage["prompt_tokens"]

    with_replica(ReplicaOptions(time_scale=1000.0, ranks=3), use)


def samples(page: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.value)
    return found


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(100_000):
        if await true():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


async def answered(value: bool) -> bool:
    return value
