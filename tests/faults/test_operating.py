"""What operators rely on: exact counts, settings that are obeyed, and clients that cannot turn their knobs."""

import asyncio
import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.cli.docs import render
from router.core.replica import Replica, State
from router.settings import LIVE, Settings
from tests.mock import chunk, gate, json_reply, ok, status
from tests.relay.rig import CHAT, HELLO, HELLO_STREAM, JSON, Rig, fleet, post, request, rig, run, until


async def _page(rig: Rig) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = (await rig.ask(request("GET", "/metrics"))).body.decode()
    families = text_string_to_metric_families(text)
    return {(each.name, tuple(sorted(each.labels.items()))): each.value for one in families for each in one.samples}


def _sum(page: dict[tuple[str, tuple[tuple[str, str], ...]], float], name: str) -> float:
    return sum(value for (each, _), value in page.items() if each == name)


def test_counters_only_grow_and_add_up_over_twenty_scrapes() -> None:
    """F128: one process serves every scrape."""

    async def lane(rig: Rig) -> None:
        client = await rig.connect()
        for _ in range(125):
            await client.send(post())
            assert (await client.answer()).status in (200, 500)

    async def main() -> None:
        async with fleet([[ok()]], [json_reply({}, 500), [ok()]]) as (rig, *_):
            lanes = asyncio.gather(*(lane(rig) for _ in range(8)))
            before = await _page(rig)
            for _ in range(20):
                page = await _page(rig)
                counters = {
                    key: value for key, value in page.items() if key[0].endswith(("_total", "_count", "_bucket"))
                }
                assert all(value >= before.get(key, 0.0) for key, value in counters.items() if "process" not in key[0])
                assert _sum(page, "router_requests_total") == _sum(page, "router_request_duration_seconds_count")
                before = page
                await asyncio.sleep(0.01)
            await lanes
            await rig.ended(1000)
            assert _sum(await _page(rig), "router_requests_total") == 1000

    run(main)


def test_every_setting_says_whether_a_change_needs_a_restart() -> None:
    """F139: in the table of settings, each of them; what is live is named, all the rest is not."""
    rows = {
        line.split("`")[1]: line.split(" | ")[-1].rstrip(" |") for line in render().splitlines() if line[:3] == "| `"
    }
    assert rows.keys() == Settings.model_fields.keys()
    assert {name: change for name, change in rows.items() if change != "restart"} == LIVE
    assert Settings.model_config["frozen"]  # nothing is half applied while the router runs


def test_the_setting_that_is_live_is_obeyed_while_the_router_runs(tmp_path: Path) -> None:
    """F139"""

    async def main() -> None:
        async with fleet([[ok()]], [[ok()]]) as (_, one, two):
            file = tmp_path / "replicas.yaml"
            file.write_text(f"- url: {one.url}\n")
            async with rig(f"file://{file}") as live:
                assert (await live.ask()).one(b"x-router-replica") == one.url[7:].encode()
                file.write_text(f"- url: {two.url}\n")
                await until(lambda: [each.replica.url for each in live.loads] == [two.url])
                assert (await live.ask()).one(b"x-router-replica") == two.url[7:].encode()
                live.sent -= 1  # the first one's entry went with its replica

    run(main)


FORWARDED = ("x-forwarded-for", "forwarded", "x-real-ip", "x-client-ip", "cf-connecting-ip", "true-client-ip")


@pytest.mark.parametrize("policy", ["locality", "session_hash", "prefix_hash", "longest_prefix"])
def test_an_address_that_a_client_names_decides_nothing_and_passes_untouched(policy: str) -> None:
    """F169: one conversation under forty addresses is one conversation, and forty under one address are forty."""

    async def main() -> None:
        async with fleet(*[[[ok()]]] * 4, policy=policy) as (rig, *engines):
            homes, sources = set(), set()
            for number in range(40):
                fields = [(name, f"10.0.0.{number}, 1.2.3.4") for name in FORWARDED]
                answer = await rig.ask(post(HELLO, CHAT, *fields))
                homes.add(answer.one(b"x-router-replica"))
                sources.add(answer.one(b"x-router-session-source"))
            assert len(homes) == 1
            assert sources == {b"conversation"}
            seen = [each for engine in engines for each in engine.requests]
            for number, each in enumerate(seen):
                for name in FORWARDED:
                    assert each.header(name.encode()) == b"10.0.0.%d, 1.2.3.4" % number
            spread = set()
            for number in range(40):
                body = b'{"model":"m","messages":[{"role":"user","content":"number %d"}]}' % number
                spread.add(
                    (await rig.ask(post(body, CHAT, *[(n, "1.2.3.4") for n in FORWARDED]))).one(b"x-router-replica")
                )
            assert len(spread) > 1 or policy in ("longest_prefix", "locality")  # whom cost places, all at rest

    run(main)


def test_an_address_is_not_written_to_the_log_or_the_metrics(capfd: pytest.CaptureFixture[str]) -> None:
    """F169: what nobody may trust is not recorded as if it were known."""

    async def main() -> None:
        async with fleet([[ok()]]) as (rig, _):
            await rig.ask(post(HELLO, CHAT, ("x-forwarded-for", "203.0.113.77")))
            await rig.ended(1)
            assert b"203.0.113.77" not in (await rig.ask(request("GET", "/metrics"))).body

    run(main)
    assert "203.0.113.77" not in "".join(capfd.readouterr())


KNOBS = dict.fromkeys(Settings.model_fields, "1") | {
    "policy": "random", "retries": "10", "first_byte_timeout": "0.001", "max_wait": "0", "total_timeout": "0.001",
    "replica": "evil:1", "router": "x", "response_headers": "off", "drain": "true", "api_base": "http://evil",
}  # fmt: skip


@pytest.mark.parametrize("policy", ["locality", "round_robin"])
def test_names_of_our_settings_are_neither_obeyed_nor_taken_away(policy: str) -> None:
    """F170: in the body, the query and headers, with a prefix and without; only `x-router-*` is dropped, as written."""
    body = json.dumps({"model": "m", "messages": [], **KNOBS, "router_options": KNOBS}).encode()
    fields = [(name.replace("_", "-"), value) for name, value in KNOBS.items() if name not in ("host", "port")]
    fields += [(f"router-{name}".replace("_", "-"), value) for name, value in KNOBS.items()]
    ours = [(f"x-router-{name}".replace("_", "-"), value) for name, value in KNOBS.items()]
    target = f"{CHAT}?{'&'.join(f'{name}={value}' for name, value in KNOBS.items())}"

    async def main() -> None:
        async with fleet([[ok()]], [[ok()]], policy=policy) as (rig, *engines):
            answer = await rig.ask(request("POST", target, [JSON, *fields, *ours], body))
            assert answer.status == 200
            assert answer.one(b"x-router-policy") == policy.encode()
            ((seen,),) = [engine.requests for engine in engines if engine.requests]
            assert seen.line == b"POST %b HTTP/1.1" % target.encode()
            assert seen.body == body
            names = {name.decode() for name, _ in seen.headers}
            assert {name for name, _ in fields} <= names
            assert not {name for name in names if name.startswith("x-router-")}

    run(main)


def test_a_request_that_outlives_its_replica_leaves_no_series_behind() -> None:
    """F136"""

    async def main() -> None:
        go = asyncio.Event()
        stream = [status(200, "content-type: text/event-stream", "transfer-encoding: chunked")]
        stream += [chunk(b"data: {}\n\n"), gate(go), chunk(b"")]
        async with fleet([stream], [[ok()]]) as (rig, *_):
            client = await rig.connect()
            await client.send(post(HELLO_STREAM))
            answer = await client.head()
            ((load,),) = [[each for each in rig.loads if each.inflight]]
            left = [each.replica for each in rig.loads if each is not load]
            _, removed = rig.router.fleet.update([Replica(each.id, each.url) for each in left])
            for each in removed:
                rig.router._removed(each)
            go.set()
            assert (await client.rest(answer)).clean
            await until(lambda: not rig.router.proxy.inflight)
            series = [labels for labels, _ in rig.samples("router_requests_total") if labels["replica"] == load.id]
            assert series == []

    run(main)


def test_a_cooling_replica_is_ready_again_though_nobody_asks() -> None:
    """F61: not ready means no traffic where an orchestrator looks, and only traffic would end the cooling."""

    async def main() -> None:
        busy = [status(429, "retry-after: 0", length=0)]
        async with fleet([busy], health_interval=0.05) as (rig, _):
            assert (await rig.ask()).status == 429
            for _ in range(20):
                ready = await rig.ask(request("GET", "/readyz"))
                if ready.status == 200:
                    break
                await asyncio.sleep(0.05)
            assert ready.status == 200
            assert rig.loads[0].state is State.UP

    run(main)
