"""Where sessions live: few move when the fleet changes, none because others are busy, and no two routers disagree."""

import asyncio
from collections import Counter

import pytest

from router.core.decision import Decision, Reason, decide
from router.core.fleet import Fleet
from router.core.keys import Sources
from router.core.replica import Replica, Signals
from router.core.request import Request
from router.core.ring import mix
from router.dialects import Head, dialect_of
from router.policies import load
from tests.mock import chunk, gate, json_reply, ok, send, status
from tests.relay.rig import CHAT, COMPLETIONS, HELLO, HELLO_STREAM, Engine, Rig, fleet, post, rig, run, until

SESSIONS = [Request("chat", session=n, key=mix(n), body_bytes=400, source="x-session-id") for n in range(1, 1001)]


def _fleet(*ids: str) -> Fleet:
    built = Fleet(lambda: 1000.0)
    _become(built, *ids)
    return built


def _become(built: Fleet, *ids: str) -> None:
    built.update([Replica(each, f"http://{each}") for each in ids])
    for each in built.loads.values():
        built.probed(each, True)


def _placed(built: Fleet, policy: str, **options: object) -> dict[int, str]:
    chooses = load(policy, options)
    chosen = {each.session: decide(chooses, each, built.snapshot(each)).replica for each in SESSIONS}
    return {session: replica or "" for session, replica in chosen.items()}


PURE = pytest.mark.parametrize(
    ("policy", "options"), [("session_hash", {}), ("locality", {"placement": "ring"})], ids=["session_hash", "ring"]
)


@PURE
def test_a_fifth_replica_takes_its_share_and_nobody_else_moves(policy: str, options: dict[str, object]) -> None:
    """F82"""
    before = _placed(_fleet("a:1", "b:1", "c:1", "d:1"), policy, **options)
    after = _placed(_fleet("a:1", "b:1", "c:1", "d:1", "e:1"), policy, **options)
    moved = {session for session in before if before[session] != after[session]}
    assert {after[session] for session in moved} == {"e:1"}
    assert 100 < len(moved) < 320  # a fifth of 1,000, and the ring's own unevenness


@PURE
def test_a_replica_that_leaves_moves_only_its_own_sessions(policy: str, options: dict[str, object]) -> None:
    """F82"""
    before = _placed(_fleet("a:1", "b:1", "c:1", "d:1"), policy, **options)
    after = _placed(_fleet("a:1", "b:1", "c:1"), policy, **options)
    assert all(after[session] == before[session] for session in before if before[session] != "d:1")
    assert {after[session] for session in before if before[session] == "d:1"} == {"a:1", "b:1", "c:1"}


def test_a_fifth_replica_moves_no_session_that_has_a_home() -> None:
    """F82: what is remembered outranks the ring."""
    built = _fleet("a:1", "b:1", "c:1", "d:1")
    policy = load("locality")
    for each in SESSIONS:
        with built.lease(each, decide(policy, each, built.snapshot(each))) as lease:
            lease.first_byte()
    before = _placed(built, "locality")
    _become(built, "a:1", "b:1", "c:1", "d:1", "e:1")
    assert _placed(built, "locality") == before


def test_two_routers_without_a_store_agree_when_they_use_the_ring() -> None:
    """F149, F148: turns that alternate between them see one replica."""

    async def main() -> None:
        async with fleet([[ok()]], [[ok()]], [[ok()]], policy="locality", placement="ring") as (one, *engines):
            async with rig(*reversed(engines), policy="locality", placement="ring") as other:
                for name in map(str, range(40)):
                    turns = [await each.ask(post(HELLO, CHAT, ("x-session-id", name))) for each in (one, other) * 2]
                    assert len({turn.one(b"x-router-replica") for turn in turns}) == 1
            assert all(engine.requests for engine in engines)

    run(main)


@pytest.mark.parametrize("policy", ["locality", "session_hash"])
def test_sessions_stay_at_home_however_many_streams_are_open(policy: str) -> None:
    """F83: ten sessions, each with four streams open at one time, thrice."""

    async def main() -> None:
        async with fleet([[ok()]], [[ok()]], policy=policy) as (rig, *engines):
            homes: dict[int, set[bytes]] = {number: set() for number in range(10)}
            for _ in range(3):
                go = asyncio.Event()
                stream = [status(200, "content-type: text/event-stream", "transfer-encoding: chunked")]
                stream += [chunk(b"data: {}\n\n"), gate(go), chunk(b"")]
                for engine in engines:
                    engine.play(stream)
                open_ones = []
                for number in [*range(10)] * 4:
                    client = await rig.connect()
                    await client.send(post(HELLO_STREAM, CHAT, ("x-session-id", f"s{number}")))
                    answer = await client.head()
                    homes[number].add(answer.one(b"x-router-replica"))
                    open_ones.append((client, answer))
                assert sum(each.inflight for each in rig.loads) == 40
                go.set()
                for client, answer in open_ones:
                    assert (await client.rest(answer)).clean
            assert [len(seen) for seen in homes.values()] == [1] * 10

    run(main)


def _opening(number: int) -> bytes:
    return b'{"model":"m","messages":[{"role":"user","content":"conversation %d"}]}' % number


async def _twenty_at_once(rig: Rig, raw: bytes) -> set[bytes]:
    clients = [await rig.connect() for _ in range(20)]
    for client in clients:
        await client.send(raw)
    return {(await client.answer()).one(b"x-router-replica") for client in clients}


@pytest.mark.parametrize("placement", ["cost", "ring"])
def test_twenty_first_turns_of_a_conversation_without_a_name_go_to_one_replica(placement: str) -> None:
    """F92: nothing but the prompt tells that they are one session."""

    async def main() -> None:
        scripts = [[json_reply({"choices": []})]] * 4
        async with fleet(*scripts, policy="locality", placement=placement) as (rig, *_):
            for number in range(25):
                assert len(await _twenty_at_once(rig, post(_opening(number)))) == 1

    run(main)


def test_one_name_under_two_models_or_salts_is_two_sessions() -> None:
    """F193: the part of it that is not about tenants and arms."""

    async def main() -> None:
        async with fleet(*[[[ok()]]] * 8, policy="session_hash") as (rig, *_):
            seen = Counter[bytes]()
            for number in range(40):
                body = b'{"model":"m%d","cache_salt":"t%d","messages":[]}' % (number % 5, number // 5)
                homes = {(await rig.ask(post(body, CHAT, ("x-session-id", "s")))).one(b"x-router-replica")} | {
                    (await rig.ask(post(body, CHAT, ("x-session-id", "s")))).one(b"x-router-replica")
                }
                assert len(homes) == 1
                seen[homes.pop()] += 1
            assert len(seen) >= 5  # forty keys over eight replicas, not one name on one

    run(main)


@pytest.mark.parametrize("policy", ["prefix_hash", "longest_prefix", "locality"])
def test_prompts_that_differ_in_their_last_letters_only_are_spread(policy: str) -> None:
    """F100: completions, whose prompt has no parts; within one block all of them begin alike."""

    async def main() -> None:
        async with fleet(*[[[ok()]]] * 4, policy=policy) as (rig, *engines):
            prompt = "describe https://host/bucket/" + "x" * 300
            for number in range(100):
                body = b'{"model":"m","prompt":"%s%03d.jpg"}' % (prompt.encode(), number)
                assert (await rig.ask(post(body, COMPLETIONS))).status == 200
            assert max(len(engine.requests) for engine in engines) <= 50

    run(main)


def test_a_burst_is_spread_while_the_metrics_stand_still() -> None:
    """F113: what the engines say is old and zero; the router's own count is not."""

    async def main() -> None:
        go = asyncio.Event()
        script = [[status(200, length=2), gate(go), send(b"ok")]]
        async with fleet(*[script] * 4, policy="least_loaded") as (rig, *engines):
            _freeze(rig)
            clients = [await rig.connect() for _ in range(200)]
            for client in clients:
                await client.send(post())
            await until(lambda: sum(engine.current for engine in engines) == 200)
            assert [engine.current for engine in engines] == [50] * 4
            go.set()
            assert {(await client.answer()).status for client in clients} == {200}

    run(main)


@pytest.mark.parametrize("policy", ["locality", "two_choices"])
def test_a_burst_of_new_sessions_is_spread_while_the_metrics_stand_still(policy: str) -> None:
    """F113: sessions of 100 KB, each its own."""

    async def main() -> None:
        go = asyncio.Event()
        script = [[status(200, length=2), gate(go), send(b"ok")]]
        async with fleet(*[script] * 4, policy=policy, prefill_tokens_per_second=1000) as (rig, *engines):
            _freeze(rig)
            clients = [await rig.connect() for _ in range(200)]
            for number, client in enumerate(clients):
                await client.send(post(b'{"model":"m","messages":[]}', CHAT, ("x-session-id", str(number))))
            await until(lambda: sum(engine.current for engine in engines) == 200)
            assert max(engine.current for engine in engines) <= 80
            go.set()
            assert {(await client.answer()).status for client in clients} == {200}

    run(main)


def _freeze(rig: Rig) -> None:
    for each in rig.loads:
        rig.router.fleet.observe(each, Signals(running=0.0, waiting=0.0, kv_usage=0.0))


def test_streams_keep_their_count_when_their_session_counts_as_idle() -> None:
    """F115: thirty streams that outlive `idle_window` many times over, while others come and age the books."""

    async def main() -> None:
        go = asyncio.Event()
        stream = [status(200, "content-type: text/event-stream", "transfer-encoding: chunked")]
        stream += [chunk(b"data: {}\n\n"), gate(go), chunk(b"")]
        async with fleet([*[stream] * 30, [ok()]], policy="locality", idle_window=0.01) as (rig, engine):
            assert isinstance(engine, Engine)
            clients = []
            for number in range(30):
                client = await rig.connect()
                await client.send(post(HELLO_STREAM, CHAT, ("x-session-id", f"s{number}")))
                clients.append((client, await client.head()))
            for _ in range(5):
                await asyncio.sleep(0.02)
                assert (await rig.ask(post(HELLO, CHAT, ("x-session-id", "other")))).status == 200
                assert rig.loads[0].inflight == 30
                assert rig.samples("router_inflight_requests")[0][1] == 30
            go.set()
            for client, answer in clients:
                assert (await client.rest(answer)).clean

    run(main)


def test_a_short_prompt_that_grows_is_no_rewrite() -> None:
    """F83's kind: a session of completions is free to leave home at every turn until its prompt is long."""
    built = _fleet("a:1", "b:1")
    first, second = (_completion(b"a" * size) for size in (1500, 2500))
    with built.lease(first, Decision("a:1", Reason.RING)) as lease:
        lease.first_byte()
    home = built.snapshot(second).home
    assert home is not None
    assert home.extends


def _completion(prompt: bytes) -> Request:
    head = Head(b"POST", COMPLETIONS, b"", [(b"x-session-id", b"s")])
    return dialect_of(COMPLETIONS).read(head, b'{"model":"m","prompt":"%b"}' % prompt, Sources())
