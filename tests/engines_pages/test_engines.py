"""What the engines' pages say, read from recorded pages and, for SGLang, from one built from its names."""

from pathlib import Path

import pytest

from router.core.replica import Signals
from router.engines import ENGINES, asleep, by_name, by_owner, capacity, read, recognise
from router.engines.llamacpp import LLAMACPP
from router.engines.models import entries, names, served, union
from router.engines.sglang import SGLANG
from router.engines.vllm import VLLM

PAGES = Path(__file__).parent.parent / "data" / "engines_pages"
VLLM_PAGE = (PAGES / "vllm_0.32.0_metrics.txt").read_bytes()
SGLANG_PAGE = (PAGES / "sglang_names_0.5.23_metrics.txt").read_bytes()
LLAMACPP_PAGE = (PAGES / "llamacpp_metrics.txt").read_bytes()


def test_a_recorded_vllm_page_is_read_in_full():
    """F118"""
    assert recognise(VLLM_PAGE) is VLLM
    assert read(VLLM, VLLM_PAGE) == Signals(
        running=4.0,
        waiting=19.0,
        kv_usage=0.3137829912023461,
        kv_capacity_tokens=32768.0,
        cache_queries=80128.0,
        cache_hits=41568.0,
        started_at=1795960448.47,
    )


def test_the_names_of_older_vllm_releases_are_read():
    """F118"""
    page = """
vllm:num_requests_running{model_name="m"} 2.0
vllm:num_requests_waiting{model_name="m"} 1.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
vllm:gpu_prefix_cache_queries_total{model_name="m"} 100.0
vllm:gpu_prefix_cache_hits_total{model_name="m"} 25.0
vllm:gpu_prefix_cache_hit_rate{model_name="m"} -1.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0
"""
    assert recognise(page) is VLLM
    assert read(VLLM, page) == Signals(2.0, 1.0, 0.5, 16000.0, 100.0, 25.0)


def test_the_newer_name_wins_where_a_page_has_both():
    page = "vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.1\n"
    assert read(VLLM, page).kv_usage == 0.1


def test_a_page_built_from_sglangs_names_is_read_in_full():
    """F112 F118: ranks are added or averaged, the tensor-parallel shards of a rank count once."""
    assert recognise(SGLANG_PAGE) is SGLANG
    assert read(SGLANG, SGLANG_PAGE) == Signals(
        running=8.0,
        waiting=7.0,
        kv_usage=0.5,
        kv_capacity_tokens=131072.0,
        cache_queries=100000.0,
        cache_hits=75000.0,
        hit_ratio=0.7,
    )


def test_sglangs_new_prefix_reads_like_the_old_one():
    """F118"""
    renamed = SGLANG_PAGE.replace(b"sglang:", b"sglang_")
    assert recognise(renamed) is SGLANG
    assert read(SGLANG, renamed) == read(SGLANG, SGLANG_PAGE)


def test_a_recorded_llamacpp_page_is_read_with_its_queries_added_up():
    assert recognise(LLAMACPP_PAGE) is LLAMACPP
    assert read(LLAMACPP, LLAMACPP_PAGE, {"process-start-time-unix": "2026118617"}) == Signals(
        running=4.0, waiting=7.0, cache_queries=50064.0, cache_hits=30570.0, started_at=2026118617.0
    )


def test_an_older_llamacpp_without_a_cache_counter_leaves_the_queries_unknown():
    signals = read(LLAMACPP, "llamacpp:prompt_tokens_total 100\nllamacpp:requests_processing 1\n")
    assert (signals.running, signals.cache_queries, signals.cache_hits) == (1.0, None, None)


def test_llamacpps_capacity_is_context_per_slot_times_slots():
    assert capacity(LLAMACPP, (PAGES / "llamacpp_props.json").read_bytes()) == 32768.0


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"total_slots":4}', b'{"default_generation_settings":{"n_ctx":0},"total_slots":4}'],
)
def test_a_capacity_that_is_not_said_is_unknown(body):
    assert capacity(LLAMACPP, body) is None


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_ranks_are_added_or_averaged_whatever_their_order(order):
    """F112"""
    lines = [
        'vllm:num_requests_running{engine="0"} 50\nvllm:num_requests_waiting{engine="0"} 50\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.9\n'
        'vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="100"} 1\n',
        'vllm:num_requests_running{engine="1"} 1\nvllm:num_requests_waiting{engine="1"} 0\n'
        'vllm:kv_cache_usage_perc{engine="1"} 0.1\n'
        'vllm:cache_config_info{engine="1",block_size="16",num_gpu_blocks="200"} 1\n',
    ]
    signals = read(VLLM, "".join(lines[i] for i in order))
    assert signals == Signals(running=51.0, waiting=50.0, kv_usage=0.5, kv_capacity_tokens=4800.0)


def test_a_rank_of_unknown_capacity_makes_the_whole_unknown():
    page = (
        'vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="100"} 1\n'
        'vllm:cache_config_info{engine="1",block_size="16",num_gpu_blocks="None"} 1\n'
    )
    assert read(VLLM, page).kv_capacity_tokens is None


def test_what_a_page_does_not_say_is_unknown_and_not_zero():
    assert read(VLLM, "") == Signals()
    assert read(VLLM, "vllm:num_requests_running 0.0\n") == Signals(running=0.0)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "four", ""])
def test_values_that_cannot_be_are_unknown(value):
    assert read(VLLM, f"vllm:num_requests_running {value}\nvllm:num_requests_waiting 1\n") == Signals(waiting=1.0)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xfe\x00",
        b"<html>502</html>",
        b"vllm:num_requests_running{" * 1000,
        b'vllm:num_requests_running{a="\n',
        b"vllm:num_requests_running",
        b'vllm:num_requests_running{a="b\\"}\n',
        b"\n" * 5000,
        b'{"error":"x"}',
    ],
)
def test_garbage_lines_are_skipped_and_the_rest_is_read(garbage):
    """F67"""
    for engine in ENGINES:
        assert read(engine, garbage) == Signals()
    assert read(VLLM, garbage + b"\nvllm:num_requests_waiting 3\n") == Signals(waiting=3.0)


def test_labels_may_hold_braces_commas_and_escaped_quotes():
    page = 'vllm:num_requests_running{model_name="a\\"}, b{",engine="0"} 4 1700000000\r\n'
    assert read(VLLM, page) == Signals(running=4.0)


def test_a_name_that_only_begins_like_a_wanted_one_is_another_metric():
    assert read(VLLM, 'vllm:num_requests_waiting_by_reason{reason="capacity"} 9\n') == Signals()


def test_pages_of_others_are_not_recognised():
    assert recognise("process_start_time_seconds 1\npython_info 1\n") is None
    assert recognise("sglang_router_requests_total 1\n") is None
    assert recognise("# talks about vllm:num_requests_running 1\n") is None
    assert recognise(b"") is None


@pytest.mark.parametrize(("awake", "sleeps"), [("1.0", False), ("0.0", True)])
def test_a_sleeping_vllm_says_so(awake, sleeps):
    """F74"""
    page = VLLM_PAGE.replace(b'sleep_state="awake"} 1.0', f'sleep_state="awake"}} {awake}'.encode())
    assert asleep(VLLM, page) is sleeps


def test_engines_that_say_nothing_of_sleep_are_awake():
    assert not asleep(VLLM, "")
    assert not asleep(LLAMACPP, LLAMACPP_PAGE)


def test_engines_are_found_by_name_and_by_the_owner_of_their_models():
    assert [by_name(engine.name) for engine in ENGINES] == list(ENGINES)
    assert by_name("auto") is by_name("none") is None
    assert by_owner(entries((PAGES / "vllm_0.32.0_models.json").read_bytes())) is VLLM
    assert by_owner(entries((PAGES / "llamacpp_models.json").read_bytes())) is LLAMACPP
    assert by_owner([{"id": "m"}]) is None


def test_models_keep_their_entries_and_count_aliases_as_names():
    listed = entries((PAGES / "llamacpp_models.json").read_bytes())
    assert names(listed) == {"tiny"}
    assert names([{"id": "a", "aliases": ["b", 3]}]) == {"a", "b"}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"data":3}', b"\xff", b"[" * 100_000])
def test_what_is_no_list_of_models_is_none(body):
    assert entries(body) is None


def test_entries_without_an_id_are_left_out():
    assert entries(b'{"data":[{"id":"a"},{"id":3},{},7]}') == ({"id": "a"},)


def test_a_named_model_keeps_its_adapters_and_nothing_else():
    listed = ({"id": "base"}, {"id": "lora", "parent": "base"}, {"id": "other"})
    assert names(served(listed, "base")) == {"base", "lora"}
    assert names(served(listed, "unlisted")) == {"unlisted"}
    assert served(listed) == listed


def test_the_union_of_models_has_each_once_and_sorted():
    """F71"""
    assert union([[{"id": "b", "owned_by": "first"}], [{"id": "a"}, {"id": "b"}]]) == [
        {"id": "a"},
        {"id": "b", "owned_by": "first"},
    ]
