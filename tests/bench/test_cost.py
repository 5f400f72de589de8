"""The yardstick itself: bodies as announced, a load that believes nothing, processes counted and ended whole."""

import asyncio
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
import uvloop

from bench import micro
from bench.cost.__main__ import main
from bench.cost.load import LoadError, Plan, Sessions, Tally, drive
from bench.cost.measure import survey
from bench.cost.mock import running_replicas
from bench.cost.peers import InstallError, Peer, Site, Start, custom, install, ours
from bench.cost.plot import picture
from bench.cost.process import StartError, running, until
from bench.cost.results import Cell, Latency, Memory, Options, Results, Row
from bench.cost.table import as_json
from bench.cost.targets import verdicts
from bench.cost.workloads import DIGITS, Body, Workload, requests_of, workloads


def text_of(body: Body, session: int = 1) -> bytes:
    return body.before + b"%016x" % session + body.after


# Workloads


def test_bodies_have_the_sizes_that_the_table_names() -> None:
    sizes = {name: [body.size for body in workload.bodies] for name, workload in workloads().items()}
    assert 950 <= sizes["SMALL"][0] <= 1_150
    assert 560_000 <= sizes["AGENT"][0] <= 585_000
    assert len(sizes["GROW"]) == 40
    assert 310_000 <= sum(sizes["GROW"]) / 40 <= 350_000


def test_an_agent_body_is_one_an_engine_would_take() -> None:
    body = msgspec.json.decode(text_of(workloads()["AGENT"].bodies[0]))
    assert (len(body["messages"]), len(body["tools"])) == (86, 18)
    assert [message["role"] for message in body["messages"][:4]] == ["system", "user", "assistant", "tool"]


def test_each_turn_of_a_growing_session_extends_the_one_before() -> None:
    turns = [msgspec.json.decode(text_of(body))["messages"] for body in workloads()["GROW"].bodies]
    for before, after in pairwise(turns):
        assert after[: len(before)] == before
        assert len(after) == len(before) + 2


def test_streams_have_their_events_and_end_as_engines_end_them() -> None:
    assert {name: len(workload.reply.events) for name, workload in workloads().items()} == {
        "SMALL": 0,
        "STREAM": 50,
        "PACED": 50,
        "AGENT": 20,
        "AGENT_HEADER": 20,
        "GROW": 20,
    }
    assert workloads()["STREAM"].reply.body.endswith(b"data: [DONE]\n\n")
    assert 450 <= len(workloads()["SMALL"].reply.body) <= 600


def test_a_request_is_as_long_as_it_says_and_names_its_session() -> None:
    workload = workloads()["AGENT_HEADER"]
    raw = b"".join(requests_of(workload, 80)(0xAB, 0))
    head, _, body = raw.partition(b"\r\n\r\n")
    assert b"Content-Length: %d\r\n" % len(body) in head
    assert head.endswith(b"X-Session-ID: " + b"%016x" % 0xAB)
    assert (
        len(body) == workload.bodies[0].size == len(workload.bodies[0].before) + DIGITS + len(workload.bodies[0].after)
    )


# The load


def driven(workload: Workload, plan: Plan) -> Tally:
    async def run() -> Tally:
        async with running_replicas(1) as mock:
            mock.reply = workload.reply
            return await drive(mock.ports[0], workload, plan, Sessions())

    return uvloop.run(run())


@pytest.mark.parametrize("name", ["SMALL", "STREAM", "AGENT", "GROW"])
def test_every_reply_is_counted_once(name: str) -> None:
    workload = workloads()[name]
    tally = driven(workload, Plan(requests=40, length=len(workload.reply.body), connections=4))
    assert tally.done == len(tally.first) == 40
    assert all(0 < first <= whole for first, whole in zip(tally.first, tally.whole, strict=True))


def test_paced_events_arrive_one_by_one() -> None:
    workload = workloads()["PACED"]
    tally = driven(replace(workload, reply=replace(workload.reply, gap=0.002)), Plan(requests=2, connections=1))
    assert tally.arrivals >= 2 * 45  # a slow machine may let a few events meet


def test_a_router_that_tries_http2_first_is_hung_up_on() -> None:
    async def run() -> bytes:
        async with running_replicas(1) as mock:
            reader, writer = await asyncio.open_connection("127.0.0.1", mock.ports[0])
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            try:
                return await reader.read()
            except ConnectionError:
                return b""
            finally:
                writer.close()

    assert uvloop.run(run()) == b""


def test_a_reply_of_the_wrong_length_ends_the_run() -> None:
    with pytest.raises(LoadError, match=r"status 200, \d+ bytes of 7"):
        driven(workloads()["SMALL"], Plan(requests=10, length=7))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\nno", "status 503"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nno", "connection lost"),
        (b"nonsense\r\n\r\n", "not HTTP"),
    ],
)
def test_the_load_says_what_was_wrong(answer: bytes, said: str) -> None:
    with pytest.raises(LoadError, match=said):
        uvloop.run(_against(answer, Plan(requests=4, connections=2)))


def test_a_proxy_that_closes_after_each_reply_is_measured_all_the_same() -> None:
    closing = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"
    assert uvloop.run(_against(closing, Plan(requests=9, length=2, connections=2))).done == 9


async def _against(answer: bytes, plan: Plan) -> Tally:
    """A server that reads one request of SMALL, writes `answer` and closes."""
    workload = workloads()["SMALL"]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(workload.bodies[0].size)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        return await drive(server.sockets[0].getsockname()[1], workload, plan, Sessions())


def test_no_session_comes_twice() -> None:
    sessions = Sessions()
    assert len({sessions.next() for _ in range(10_000)}) == 10_000


# The process under test

BURN_IN_A_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print("child", child.pid, flush=True)
child.wait()
"""


def test_time_of_children_counts_and_they_end_with_their_parent(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def run() -> float:
        async with running([sys.executable, "-c", BURN_IN_A_CHILD], {}, log, {min(_cores())}) as watched:

            async def burning() -> bool:
                return watched.cpu_seconds() > 0.5

            await until(burning, watched, 30.0)
            assert watched.memory_bytes() > 5_000_000
            return watched.cpu_seconds()

    assert asyncio.run(run()) > 0.5
    child = int(log.read_text().split()[1])
    deadline = time.monotonic() + 5
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(child)


def test_a_program_that_ends_is_shown_with_its_last_words(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    async def run() -> None:
        command = [sys.executable, "-c", "raise SystemExit('no such flag')"]
        async with running(command, {}, tmp_path / "log", _cores()) as watched:
            await until(never, watched, 30.0)

    with pytest.raises(StartError, match="ended: no such flag"):
        asyncio.run(run())


def _cores() -> set[int]:
    import os

    return os.sched_getaffinity(0)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# Peers


def test_a_program_that_is_not_there_is_reported(tmp_path: Path) -> None:
    peer = Peer("x", "proxy", lambda site: Start([]), programs=("no-such-program-anywhere",))
    with pytest.raises(InstallError, match="no-such-program-anywhere not on PATH"):
        install(peer, tmp_path)


def test_a_row_of_ones_own_is_a_name_and_a_command(tmp_path: Path) -> None:
    peer = custom("old=/opt/old/prefix-router serve --port {port} --replicas {replicas}")
    command = peer.start(Site(tmp_path, 7, 8, (1, 2), tmp_path)).command
    assert peer.name == "old"
    assert command[-3:] == ["7", "--replicas", "http://127.0.0.1:1,http://127.0.0.1:2"]
    with pytest.raises(ValueError, match="is not NAME=COMMAND"):
        custom("just-a-name")


def test_an_unknown_peer_is_a_wrong_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--peers", "apache"]) == 2
    assert "no such peer: apache" in capsys.readouterr().err


def test_a_run_measures_who_works_and_says_why_the_others_do_not(tmp_path: Path) -> None:
    broken = Peer("broken", "rust", lambda site: Start([sys.executable, "-c", "raise SystemExit('refused')"]))
    absent = Peer("absent", "proxy", lambda site: Start([]), programs=("no-such-program-anywhere",))
    peers = [ours()[0], replace(broken, programs=("sh",)), absent]
    options = Options(passes=1, seconds=0.3, workloads=("SMALL",), memory_requests=10, idle_seconds=0.1)
    before = _cores()
    results = survey(peers, options, tmp_path, lambda text: None)
    mine, second, third = results.rows
    assert not mine.failed
    assert mine.verbatim
    assert (mine.cpu_us("SMALL") or 0) > 10
    assert mine.memory is not None
    assert mine.memory.requests == 10
    assert second.failed == "ended: refused"
    assert "not on PATH" in third.failed
    assert msgspec.json.decode(as_json(results))["rows"][0]["cells"]["SMALL"][0]["cpu_us"] == mine.cpu_us("SMALL")
    assert _cores() == before


# What is made of the figures


def row(name: str, kind: str, us: float, group: str = "serve") -> Row:
    cells = {"SMALL": [Cell(us, 1_000.0, 1.0)], "AGENT_HEADER": [Cell(us, 1_000.0, 20.0)]}
    return Row(name, kind, group, cells=cells, latency={"SMALL": [Latency(100.0 + us, 200.0 + us, 90.0)]})


def made(*rows: Row) -> Results:
    direct = Row("direct", "none", latency={"SMALL": [Latency(50.0, 60.0, 40.0)]})
    return Results(direct, list(rows), ("SMALL", "AGENT_HEADER"), Options())


def test_costs_are_judged_against_the_cheapest_rust_router() -> None:
    results = made(
        row("ours", "ours", 40.0), row("a", "rust", 100.0), row("b", "rust", 50.0), row("nginx", "proxy", 30.0)
    )
    judged = {(each.what, each.whose): (round(each.ratio, 2), each.met) for each in verdicts(results.rows[0], results)}
    assert judged["SMALL", "b"] == (0.8, False)
    assert judged["AGENT_HEADER", "b"] == (0.8, False)
    assert judged["AGENT_HEADER", "nginx"] == (1.33, False)
    assert judged["SMALL added p99", "b"] == (0.95, True)


def test_the_app_on_any_server_has_targets_of_its_own() -> None:
    results = made(row("ours", "ours", 40.0, group="uvicorn"), row("b", "rust", 50.0))
    assert {each.what: each.met for each in verdicts(results.rows[0], results) if each.whose == "b"}["SMALL"]


def test_medians_leave_one_disturbed_pass_out() -> None:
    mine = Row("ours", "ours", cells={"SMALL": [Cell(50.0, 1.0, 1.0), Cell(900.0, 1.0, 1.0), Cell(52.0, 1.0, 1.0)]})
    assert mine.cpu_us("SMALL") == 52.0
    assert mine.cpu_us("AGENT") is None


def test_memory_and_held_back_events_have_absolute_limits() -> None:
    mine = row("ours", "ours", 40.0)
    mine.memory = Memory(60.0, 120.0, 2_000)
    mine.cells["PACED"] = [Cell(900.0, 64.0, 50.0)]
    judged = {each.what: each.met for each in verdicts(mine, made(mine))}
    assert judged["growth, 2000 AGENT bodies"] is False
    assert judged["events held back, PACED"] is True


def test_the_picture_is_well_formed_and_names_everybody() -> None:
    drawn = picture(made(row("ours <1>", "ours", 40.0), row("b", "rust", 50.0)))
    words = [element.text for element in ElementTree.fromstring(drawn).iter() if element.text]
    assert words.count("ours <1>") == words.count("b") == 2


# The parts


def test_the_parts_are_all_measured() -> None:
    parts = [cost.part for cost in micro.costs(seconds=0.001, relays=20)]
    assert {part.split(",")[0] for part in parts if part.startswith("read ")} == {
        f"read {name}" for name in ("chat", "messages", "responses", "completions", "generate")
    }
    assert parts[-1].startswith("relay through the pool")
