"""The feeder of the fleet, against engines on loopback that answer what a test wants."""

import asyncio
import gzip
import json
import logging
import socket
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from router.core.fleet import Fleet
from router.core.replica import Load, Replica, Signals, State
from router.discovery import Source, SourceError, parse_source
from router.watch import Watch, WatchOptions, api_key, control_client

PAGES = Path(__file__).parent / "data" / "engines_pages"
VLLM_PAGE = (PAGES / "vllm_0.32.0_metrics.txt").read_bytes()
FAST = WatchOptions(
    scrape_interval=0.01, scrape_timeout=0.5, health_interval=0.02, health_timeout=0.5, models_interval=0.05
)


def answer(status=200, body=b"", headers=""):
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nconnection: close\r\n%s\r\n%s" % (
        status,
        len(body),
        headers.encode(),
        body,
    )


def models(*names, owner="vllm", **more):
    return answer(body=json.dumps({"data": [{"id": name, "owned_by": owner, **more} for name in names]}).encode())


@dataclass
class Engine:
    """A replica on a socket. `pages` maps a path to its raw answer; None is silence."""

    pages: dict[str, bytes | None]
    hits: dict[str, int] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    open: dict[str, int] = field(default_factory=dict)
    overlaps: int = 0
    port: int = 0

    async def __call__(self, reader, writer):
        path = ""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split(" ")[1]
            self.hits[path] = self.hits.get(path, 0) + 1
            self.keys |= {line[15:] for line in head.split("\r\n") if line.lower().startswith("authorization: ")}
            self.open[path] = self.open.get(path, 0) + 1
            self.overlaps += self.open[path] > 1
            page = self.pages.get(path, answer(404))
            if page is None:
                await reader.read()  # until the client gives up
            else:
                writer.write(page)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            if path:
                self.open[path] -= 1
            writer.close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def source(self):
        return parse_source(self.url)


@asynccontextmanager
async def serving(*engines, host="127.0.0.1"):
    servers = [await asyncio.start_server(engine, host, 0) for engine in engines]
    for engine, server in zip(engines, servers, strict=True):
        engine.port = server.sockets[0].getsockname()[1]
    try:
        yield
    finally:
        for server in servers:
            server.close()
        await asyncio.gather(*(server.wait_closed() for server in servers))


def healthy(**pages):
    return Engine({"/health": answer(), "/v1/models": models("tiny"), "/metrics": answer(body=VLLM_PAGE)} | pages)


@asynccontextmanager
async def watching(*sources, options=FAST, **more):
    fleet = Fleet(time.monotonic)
    async with control_client() as client:
        watch = Watch(fleet, sources, client, options, **more)
        await watch.start()
        try:
            yield fleet, watch
        finally:
            await watch.aclose()


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in a socket's peer
            await asyncio.sleep(0.003)


def load_of(fleet, engine):
    return fleet.loads[f"127.0.0.1:{engine.port}"]


def is_up(fleet, engine):
    return load_of(fleet, engine).state is State.UP


def watch_tasks():
    return [task for task in asyncio.all_tasks() if task.get_name().startswith(("watch ", "probe ", "scrape "))]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_healthy_replica_is_up_with_its_models_engine_and_signals_known():
    async def main():
        engine = healthy()
        async with serving(engine), watching(engine.source) as (fleet, watch):
            await until(lambda: is_up(fleet, engine))
            load = load_of(fleet, engine)
            assert load.models == {"tiny"}
            assert load.engine == "vllm"
            assert load.signals.waiting == 19.0
            assert load.signals.kv_capacity_tokens == 32768.0
            assert watch.models() == [{"id": "tiny", "owned_by": "vllm"}]
            before = engine.hits["/metrics"]
            await until(lambda: engine.hits["/metrics"] > before + 3)

    asyncio.run(main())


def test_a_replica_that_loads_its_weights_is_not_up_until_health_is_good():
    """F62 F73: its models are served long before."""

    async def main():
        engine = healthy(**{"/health": answer(503)})
        async with serving(engine), watching(engine.source) as (fleet, _):
            await until(lambda: engine.hits.get("/health", 0) >= 3)
            assert load_of(fleet, engine).state is State.STARTING
            assert "/metrics" not in engine.hits
            engine.pages["/health"] = answer()
            await until(lambda: is_up(fleet, engine))

    asyncio.run(main())


def test_dead_and_silent_replicas_do_not_keep_the_others_back():
    """F65 F79"""

    async def main():
        engine, silent = healthy(), Engine(dict.fromkeys(("/health", "/v1/models", "/metrics")))
        async with serving(engine, silent):
            dead = parse_source(f"http://127.0.0.1:{free_port()}")
            async with watching(dead, silent.source, engine.source) as (fleet, watch):
                await until(lambda: is_up(fleet, engine))
                assert load_of(fleet, silent).state is State.STARTING
                assert [entry["id"] for entry in watch.models()] == ["tiny"]

    asyncio.run(main())


@pytest.mark.parametrize(
    "page",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        answer(body=b"no gzip at all", headers="content-encoding: gzip\r\n"),
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort",
    ],
)
def test_a_malformed_answer_is_trouble_of_its_own_replica_only(page, caplog):
    """F67: and is logged once, not at every probe."""
    caplog.set_level(logging.WARNING, "router")

    async def main():
        good, bad = healthy(), Engine(dict.fromkeys(("/health", "/v1/models", "/metrics"), page))
        async with serving(good, bad), watching(bad.source, good.source) as (fleet, _):
            await until(lambda: is_up(fleet, good) and bad.hits["/health"] >= 4)
            before = good.hits["/health"]
            await until(lambda: good.hits["/health"] > before + 2)
            assert load_of(fleet, bad).state is State.STARTING

    asyncio.run(main())
    assert len(caplog.records) == 1


def test_garbage_on_the_metrics_page_leaves_the_replica_up_with_its_last_signals():
    """F67"""

    async def main():
        engine = healthy()
        async with serving(engine), watching(engine.source) as (fleet, _):
            await until(lambda: is_up(fleet, engine))
            engine.pages["/metrics"] = answer(body=gzip.compress(VLLM_PAGE)[:500], headers="content-encoding: gzip\r\n")
            before = engine.hits["/metrics"]
            await until(lambda: engine.hits["/metrics"] > before + 3)
            seen = load_of(fleet, engine).signals_at
            assert is_up(fleet, engine)
            assert load_of(fleet, engine).signals.waiting == 19.0
            engine.pages["/metrics"] = answer(body=VLLM_PAGE)
            await until(lambda: load_of(fleet, engine).signals_at > seen)

    asyncio.run(main())


@pytest.mark.parametrize("status", [404, 501, 401])
def test_a_replica_without_metrics_works_and_is_not_asked_every_second(status, caplog):
    """llama.cpp answers 501 unless it runs with --metrics."""

    async def main():
        engine = healthy(**{"/metrics": answer(status), "/v1/models": models("tiny", owner="llamacpp")})
        async with serving(engine), watching(engine.source) as (fleet, _):
            await until(lambda: is_up(fleet, engine) and engine.hits["/health"] > 8)
            assert engine.hits["/metrics"] <= 2  # once before it is up, once in the loop
            assert load_of(fleet, engine).engine == "llamacpp"
            assert load_of(fleet, engine).signals == Signals()

    asyncio.run(main())
    assert "own counts must do" in caplog.text


def test_a_replica_without_a_health_page_lives_by_any_other_sign():
    async def main():
        engine = Engine({"/v1/models": answer(401)})
        async with serving(engine), watching(engine.source) as (fleet, _):
            await until(lambda: is_up(fleet, engine))
            assert load_of(fleet, engine).models == frozenset()

    asyncio.run(main())


@pytest.mark.parametrize("health", [404, 405, 501])
def test_where_health_is_missing_the_models_page_says_whether_it_lives(health):
    async def main():
        engine = healthy(**{"/health": answer(health), "/v1/models": answer(503)})
        async with serving(engine), watching(engine.source) as (fleet, _):
            await until(lambda: engine.hits.get("/v1/models", 0) > 2)
            assert load_of(fleet, engine).state is State.STARTING
            engine.pages["/v1/models"] = models("tiny")
            await until(lambda: is_up(fleet, engine))

    asyncio.run(main())


def test_a_health_page_that_stops_answering_ejects_nobody():
    """F80"""

    async def main():
        engine = healthy()
        options = WatchOptions(scrape_interval=0.01, health_interval=0.01, health_timeout=0.02)
        async with serving(engine), watching(engine.source, options=options) as (fleet, _):
            await until(lambda: is_up(fleet, engine))
            engine.pages["/health"] = None
            before = engine.hits["/health"]
            await until(lambda: engine.hits["/health"] > before + 4)
            assert is_up(fleet, engine)

    asyncio.run(main())


def test_a_trickle_of_bytes_is_no_answer_in_time():
    connections = []

    async def trickle(reader, writer):
        connections.append(writer)
        try:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
            while True:
                writer.write(b".")
                await writer.drain()
                await asyncio.sleep(0.005)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def main():
        server = await asyncio.start_server(trickle, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        options = WatchOptions(health_interval=0.01, health_timeout=0.1)
        async with watching(parse_source(url), options=options) as (fleet, _):
            await until(lambda: len(connections) > 2)  # it gave up and tried again
            assert [load.state for load in fleet.loads.values()] == [State.STARTING]
        server.close()
        await server.wait_closed()

    asyncio.run(main())


def test_a_replica_that_dies_is_ejected_and_comes_back():
    """F77"""

    async def main():
        engine = healthy()
        async with serving(engine), watching(engine.source) as (fleet, _):
            await until(lambda: is_up(fleet, engine))
            engine.pages["/health"] = answer(500)
            await until(lambda: load_of(fleet, engine).state is State.EJECTED)
            engine.pages["/health"] = answer()
            await until(lambda: is_up(fleet, engine))

    asyncio.run(main())


def test_a_sleeping_engine_gets_nothing_until_it_wakes():
    """F74: its /health is 200 all the time."""

    async def main():
        page = VLLM_PAGE.replace(b'sleep_state="awake"} 1.0', b'sleep_state="awake"} 0.0')
        engine = healthy(**{"/metrics": answer(body=page)})
        async with serving(engine), watching(engine.source) as (fleet, _):
            await until(lambda: engine.hits.get("/health", 0) > 3)
            assert load_of(fleet, engine).state is State.STARTING
            engine.pages["/metrics"] = answer(body=VLLM_PAGE)
            await until(lambda: is_up(fleet, engine))
            engine.pages["/metrics"] = answer(body=page)
            await until(lambda: load_of(fleet, engine).state is State.EJECTED)

    asyncio.run(main())


def test_a_restarted_engine_is_noticed_and_asked_for_its_models_again():
    """F88"""

    async def main():
        engine = healthy()
        options = WatchOptions(scrape_interval=0.01, health_interval=0.01)  # models again only after a restart
        async with serving(engine), watching(engine.source, options=options) as (fleet, _):
            await until(lambda: is_up(fleet, engine))
            engine.pages["/v1/models"] = models("tiny", "lora")
            engine.pages["/metrics"] = answer(body=VLLM_PAGE.replace(b"1.79596044847e+09", b"1.79596999999e+09"))
            await until(lambda: load_of(fleet, engine).models == {"tiny", "lora"})
            assert load_of(fleet, engine).incarnation == 1

    asyncio.run(main())


def test_llamacpps_capacity_comes_from_its_own_page():
    async def main():
        engine = Engine(
            {
                "/health": answer(),
                "/v1/models": answer(body=(PAGES / "llamacpp_models.json").read_bytes()),
                "/props": answer(body=(PAGES / "llamacpp_props.json").read_bytes()),
                "/metrics": answer(
                    body=(PAGES / "llamacpp_metrics.txt").read_bytes(),
                    headers="Process-Start-Time-Unix: 2026118617\r\n",
                ),
            }
        )
        async with serving(engine), watching(engine.source) as (fleet, _):
            await until(lambda: is_up(fleet, engine))
            load = load_of(fleet, engine)
            assert load.engine == "llamacpp"
            assert load.signals == Signals(4.0, 7.0, None, 32768.0, 50064.0, 30570.0, 2026118617.0)

    asyncio.run(main())


def test_an_engine_of_none_is_never_scraped():
    async def main():
        engine = healthy()
        options = WatchOptions(health_interval=0.01, engine="none", no_metrics_interval=0.01)
        async with serving(engine), watching(engine.source, options=options) as (fleet, _):
            await until(lambda: is_up(fleet, engine) and engine.hits["/health"] > 3)
            assert "/metrics" not in engine.hits
            assert load_of(fleet, engine).engine == ""

    asyncio.run(main())


def test_scrapes_of_one_replica_never_overlap():
    async def main():
        engine = healthy(**{"/metrics": None})
        options = WatchOptions(scrape_interval=0.005, scrape_timeout=0.05)
        async with serving(engine), watching(engine.source, options=options) as (fleet, _):
            await until(lambda: engine.hits.get("/metrics", 0) > 4)
            assert engine.overlaps == 0
            assert is_up(fleet, engine)

    asyncio.run(main())


def test_models_are_the_union_over_live_replicas_and_survive_the_last_one():
    """F71"""

    async def main():
        one, two = healthy(**{"/v1/models": models("b", "a")}), healthy(**{"/v1/models": models("c", "a", root="two")})
        async with serving(one, two), watching(one.source, two.source) as (fleet, watch):
            await until(lambda: is_up(fleet, one) and is_up(fleet, two))
            assert [entry["id"] for entry in watch.models()] == ["a", "b", "c"]
            one.pages["/health"] = answer(500)
            await until(lambda: not is_up(fleet, one))
            assert [entry["id"] for entry in watch.models()] == ["a", "c"]
            two.pages["/health"] = answer(500)
            await until(lambda: not is_up(fleet, two))
            assert [entry["id"] for entry in watch.models()] == ["a", "b", "c"]

    asyncio.run(main())


def test_a_model_named_by_the_operator_is_the_one_that_counts():
    async def main():
        engine = healthy(**{"/v1/models": models("base", "other")})
        async with serving(engine):

            async def sets():
                yield (Replica(f"127.0.0.1:{engine.port}", engine.url, model="base"),)

            async with watching(Source("test", sets)) as (fleet, watch):
                await until(lambda: is_up(fleet, engine))
                assert load_of(fleet, engine).models == {"base"}
                assert [entry["id"] for entry in watch.models()] == ["base"]

    asyncio.run(main())


def test_keys_are_sent_to_replicas_their_own_first(monkeypatch):
    monkeypatch.setenv("KEY_OF_ONE", "one\n")

    async def main():
        one, two = healthy(), healthy()
        async with serving(one, two):

            async def sets():
                yield (Replica("one", one.url, api_key_env="KEY_OF_ONE"), Replica("two", two.url, api_key_env="UNSET"))

            options = WatchOptions(upstream_api_key="all")
            async with watching(Source("test", sets), options=options) as (fleet, _):
                await until(lambda: all(load.state is State.UP for load in fleet.loads.values()))
        assert (one.keys, two.keys) == ({"Bearer one"}, {"Bearer all"})

    asyncio.run(main())
    assert "s3cret" not in repr(WatchOptions(upstream_api_key="s3cret"))
    assert api_key(Replica("a", "http://a"), "") == ""


def test_a_key_that_cannot_be_sent_is_not_logged(caplog):
    async def main():
        engine = healthy()
        options = WatchOptions(upstream_api_key="s3cret\nkey", health_interval=0.01)
        async with serving(engine), watching(engine.source, options=options):
            await until(lambda: "LocalProtocolError" in caplog.text)

    asyncio.run(main())
    assert "s3cret" not in caplog.text


def test_replicas_come_and_go_and_those_that_went_are_left_alone():
    """F136 F137 F140"""
    told = []

    async def main():
        stays, goes, comes = healthy(), healthy(), healthy()
        queue = asyncio.Queue()

        async def sets():
            while True:
                yield tuple(Replica(f"127.0.0.1:{engine.port}", engine.url) for engine in await queue.get())

        async with serving(stays, goes, comes):
            queue.put_nowait([stays, goes])
            listeners = {
                "added": lambda load: told.append(("+", load)),
                "removed": lambda load: told.append(("-", load)),
            }
            async with watching(Source("test", sets), **listeners) as (fleet, _):
                await until(lambda: is_up(fleet, stays) and is_up(fleet, goes))
                gone = load_of(fleet, goes)
                for _ in range(20):
                    queue.put_nowait([stays, comes])
                    await until(lambda: f"127.0.0.1:{comes.port}" in fleet.loads)
                    queue.put_nowait([stays])
                    await until(lambda: len(fleet.loads) == 1)
                queue.put_nowait([stays, comes])
                await until(lambda: len(fleet.loads) == 2 and is_up(fleet, comes))
                await until(lambda: not goes.open.get("/health") and not goes.open.get("/metrics"))
                before = dict(goes.hits)
                hits = comes.hits["/health"]
                await until(lambda: comes.hits["/health"] > hits + 5)
                assert goes.hits == before
                assert len(watch_tasks()) == 2 * 3  # two replicas, each a task with its probe and its scrape
                assert ("-", gone) in told
            assert not watch_tasks()

    asyncio.run(main())
    assert len([what for what, _ in told if what == "+"]) == 2 + 21
    assert all(isinstance(load, Load) for _, load in told)


def test_the_same_id_at_another_address_is_another_replica():
    async def main():
        told = []
        one, two = healthy(), healthy(**{"/v1/models": models("new")})
        queue = asyncio.Queue()

        async def sets():
            while True:
                yield (await queue.get(),)

        async with serving(one, two):
            queue.put_nowait(Replica("r", one.url))
            listeners = {
                "added": lambda load: told.append(f"+{load.replica.url}"),
                "removed": lambda load: told.append(f"-{load.replica.url}"),
            }
            async with watching(Source("test", sets), **listeners) as (fleet, watch):
                await until(lambda: fleet.loads["r"].state is State.UP)
                queue.put_nowait(Replica("r", two.url))
                await until(lambda: fleet.loads["r"].models == {"new"})
                assert [entry["id"] for entry in watch.models()] == ["new"]
        assert told == [f"+{one.url}", f"-{one.url}", f"+{two.url}"]

    asyncio.run(main())


def test_a_listener_that_fails_stops_nothing(caplog):
    def broken(load):
        raise RuntimeError("listener fell over")

    async def main():
        engine = healthy()
        async with serving(engine), watching(engine.source, added=broken) as (fleet, _):
            await until(lambda: is_up(fleet, engine))

    asyncio.run(main())
    assert "listener fell over" in caplog.text


def test_a_broken_file_at_the_start_ends_the_start(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("- urk: http://a\n")

    async def main():
        async with watching(parse_source(f"file://{path}")):
            pass

    with pytest.raises(SourceError, match=r"r\.yaml:1: urk: unknown field"):
        asyncio.run(main())


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on this machine")
def test_replicas_on_ipv6_are_reached():
    """F160"""

    async def main():
        engine = healthy()
        async with serving(engine, host="::1"), watching(parse_source(f"http://[::1]:{engine.port}")) as (fleet, _):
            load = fleet.loads[f"[::1]:{engine.port}"]
            await until(lambda: load.state is State.UP)

    asyncio.run(main())


def test_the_control_client_ignores_proxies_and_follows_nothing(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")

    async def main():
        engine = Engine({"/": answer(302, headers="location: /elsewhere\r\n")})
        async with serving(engine), control_client() as client:
            assert (await client.get(engine.url)).status_code == 302
            assert isinstance(client, httpx.AsyncClient)

    asyncio.run(main())
