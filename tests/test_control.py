"""Our own paths, asked over ASGI, with loads built by hand."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from router.control import Control, Headers, build_admin, build_control, guess_path, is_own
from router.core.replica import Load, Replica, Signals, State


@dataclass
class Fleet:
    loads: dict[str, Load]
    sessions: int = 7
    prefixes: int = 21
    tick: int = 5

    def now(self) -> float:
        return 100.0

    def drain(self, replica_id: str, /) -> None:
        self.loads[replica_id].drained = True

    def undrain(self, replica_id: str, /) -> None:
        self.loads[replica_id].drained = False


@dataclass
class Explainer:
    asked: list[tuple[str, Headers, bytes]] = field(default_factory=list)

    def __call__(self, path: str, headers: Headers, body: bytes) -> Mapping[str, Any]:
        self.asked.append((path, headers, body))
        return {"replica": "a:1", "reason": "ring", "candidates": [{"replica": "a:1", "cost": float("inf")}]}


def load(id: str, state: State = State.UP, **more: Any) -> Load:
    return Load(Replica(id, f"http://{id}"), id, state, **more)


def control(*loads: Load, **more: Any) -> Control:
    fields: dict[str, Any] = {
        "fleet": Fleet({each.id: each for each in loads}),
        "explain": Explainer(),
        "render_metrics": lambda: (b"router_sessions 7\n", "text/plain; version=0.0.4"),
        "models": lambda: [{"id": "m", "object": "model"}],
        "draining": lambda: False,
        "max_body_bytes": 1000,
        "version": "1.2.3",
    }
    return Control(**fields | more)


def ask(app: FastAPI, method: str, path: str, **more: Any) -> httpx.Response:
    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://router") as client:
            return await client.request(method, path, **more)

    return asyncio.run(main())


def code(reply: httpx.Response) -> str:
    error = reply.json()["error"]
    assert error["type"] == "router_error"
    assert error["message"]
    return str(error["code"])


@pytest.mark.parametrize(
    "path", ["/livez", "/readyz", "/health", "/metrics", "/v1/models", "/router", "/router/", "/router/x"]
)
def test_own_paths_are_ours_whatever_the_method(path: str) -> None:
    assert is_own(path, "GET")
    assert is_own(path, "DELETE")


@pytest.mark.parametrize(
    "path", ["/", "/v1/models/x", "/v1/chat/completions", "/routers", "/metrics/", "/health_generate"]
)
def test_all_other_paths_are_forwarded(path: str) -> None:
    assert not is_own(path, "GET")


def test_alive_even_without_replicas() -> None:
    assert ask(build_control(control(draining=lambda: True)), "GET", "/livez").status_code == 200


def test_ready_with_one_replica_that_is_up() -> None:
    app = build_control(control(load("a:1"), load("b:1", State.EJECTED), load("c:1", drained=True)))
    assert ask(app, "GET", "/readyz").json() == {"status": "ready"}
    health = ask(app, "GET", "/health")
    assert health.status_code == 200
    assert health.json() == {
        "status": "ready",
        "version": "1.2.3",
        "replicas": {"starting": 0, "up": 1, "cooling": 0, "ejected": 1, "draining": 1},
    }


@pytest.mark.parametrize("path", ["/readyz", "/health"])
def test_not_ready_without_a_replica_that_takes_requests(path: str) -> None:
    """F73"""
    reply = ask(build_control(control(load("a:1", State.STARTING), load("b:1", drained=True))), "GET", path)
    assert (reply.status_code, code(reply)) == (503, "no_replica")
    assert reply.json()["replicas"] == {"starting": 1, "up": 0, "cooling": 0, "ejected": 0, "draining": 1}


@pytest.mark.parametrize("path", ["/readyz", "/health"])
def test_not_ready_as_soon_as_the_router_drains(path: str) -> None:
    """F190, F191"""
    reply = ask(build_control(control(load("a:1"), draining=lambda: True)), "GET", path)
    assert (reply.status_code, code(reply)) == (503, "draining")


def test_models_are_listed_as_openai_does() -> None:
    """F71"""
    reply = ask(build_control(control(load("a:1", State.EJECTED))), "GET", "/v1/models")
    assert reply.json() == {"object": "list", "data": [{"id": "m", "object": "model"}]}


def test_models_are_503_only_if_none_is_known() -> None:
    """F71"""
    reply = ask(build_control(control(models=list)), "GET", "/v1/models")
    assert (reply.status_code, code(reply)) == (503, "no_replica")
    assert reply.headers["retry-after"] == "1"


def test_metrics_are_passed_on_as_rendered() -> None:
    reply = ask(build_control(control()), "GET", "/metrics")
    assert (reply.text, reply.headers["content-type"]) == ("router_sessions 7\n", "text/plain; version=0.0.4")


def test_fleet_shows_every_replica_and_unknown_is_null() -> None:
    signals = Signals(running=2.0, kv_usage=float("nan"), cache_queries=10.0, cache_hits=4.0, kv_capacity_tokens=1000.0)
    known = Load(
        Replica("b", "http://me:pw@b:1/x", engine="vllm", labels={"zone": "1"}),
        "b",
        State.UP,
        inflight=3,
        bound_tokens=50,
        models=frozenset({"n", "m"}),
        signals=signals,
        signals_at=98.5,
    )
    content = ask(build_control(control(known, load("a:1", State.STARTING))), "GET", "/router/fleet").json()
    first, second = content["replicas"]
    assert (first["id"], first["state"], first["running"], first["hit_ratio"]) == ("a:1", "starting", None, None)
    assert first["signal_age_seconds"] is None
    assert second == {
        "id": "b",
        "url": "http://********@b:1/x",
        "engine": "vllm",
        "models": ["m", "n"],
        "labels": {"zone": "1"},
        "state": "up",
        "inflight": 3,
        "queued_tokens": 0,
        "bound_tokens": 50,
        "bound_sessions": 0,
        "prefill_rate": 8000.0,
        "running": 2.0,
        "waiting": None,
        "kv_usage": None,
        "kv_capacity_tokens": 1000.0,
        "hit_ratio": 0.4,
        "signal_age_seconds": 1.5,
        "incarnation": 0,
        "failures": 0,
    }
    assert {name: content["totals"][name] for name in ("replicas", "sessions", "prefixes", "tick", "inflight")} == {
        "replicas": 2,
        "sessions": 7,
        "prefixes": 21,
        "tick": 5,
        "inflight": 3,
    }


def test_explain_hands_over_what_a_client_would_send_but_no_credentials() -> None:
    explain = Explainer()
    body = b'{"input": "x"}'
    headers = {"X-Session-ID": "s", "Authorization": "Bearer secret", "Cookie": "c=1"}
    reply = ask(build_control(control(explain=explain)), "POST", "/router/explain", content=body, headers=headers)
    assert reply.json()["candidates"] == [{"replica": "a:1", "cost": None}]
    path, seen, given = explain.asked[0]
    assert (path, given) == ("/v1/responses", body)
    assert (b"x-session-id", b"s") in seen
    assert not {b"authorization", b"cookie"} & {name for name, _ in seen}


def test_explain_takes_the_path_it_is_told() -> None:
    explain = Explainer()
    app = build_control(control(explain=explain))
    ask(app, "POST", "/router/explain?path=/v1/messages", content=b"{}")
    assert explain.asked[0][0] == "/v1/messages"
    reply = ask(app, "POST", "/router/explain?path=v1", content=b"{}")
    assert (reply.status_code, code(reply)) == (400, "bad_request")


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"messages": [], "system": [], "max_tokens": 1}', "/v1/chat/completions"),
        (b'{"input": []}', "/v1/responses"),
        (b'{"prompt": "x"}', "/v1/completions"),
        (b"[1]", "/v1/chat/completions"),
        (b"\xff", "/v1/chat/completions"),
    ],
)
def test_path_is_guessed_from_the_body(body: bytes, path: str) -> None:
    assert guess_path(body) == path


def test_body_too_large_is_413_that_names_the_limit() -> None:
    explain = Explainer()
    reply = ask(build_control(control(explain=explain)), "POST", "/router/explain", content=b"x" * 1001)
    assert (reply.status_code, code(reply)) == (413, "body_too_large")
    assert "1000 bytes" in reply.json()["error"]["message"]
    assert explain.asked == []


@pytest.mark.parametrize("verb", ["drain", "undrain"])
def test_draining_needs_a_token_or_a_port_of_its_own(verb: str) -> None:
    reply = ask(build_control(control(load("a:1"))), "POST", f"/router/replicas/a:1/{verb}")
    assert (reply.status_code, code(reply)) == (403, "forbidden")
    assert "admin_token" in reply.json()["error"]["message"]


def test_drain_and_undrain() -> None:
    replica = load("pool/a:1")
    app = build_admin(control(replica, own_admin_port=True))
    reply = ask(app, "POST", "/router/replicas/pool/a:1/drain")
    assert (reply.status_code, reply.json()) == (200, {"id": "pool/a:1", "state": "draining"})
    assert replica.drained
    assert ask(app, "POST", "/router/replicas/pool%2Fa:1/undrain").json() == {"id": "pool/a:1", "state": "up"}


def test_unknown_replica_is_named() -> None:
    reply = ask(build_admin(control(own_admin_port=True)), "POST", "/router/replicas/nobody/drain")
    assert (reply.status_code, code(reply)) == (404, "not_found")
    assert "'nobody'" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/router/fleet"),
        ("POST", "/router/explain"),
        ("POST", "/router/replicas/a:1/drain"),
        ("GET", "/router/unknown"),
        ("DELETE", "/router/fleet"),
        ("GET", "/router"),
    ],
)
@pytest.mark.parametrize("given", [None, "Bearer wrong", "Basic right", "Bearer", "right", "Bearer righ\xff"])
def test_nothing_under_router_passes_without_the_token(method: str, path: str, given: str | None) -> None:
    replica = load("a:1")
    headers = {"authorization": given.encode("latin-1")} if given else {}
    reply = ask(build_control(control(replica, admin_token="right")), method, path, headers=headers)
    assert (reply.status_code, code(reply)) == (401, "unauthorized")
    assert reply.headers["www-authenticate"].startswith("Bearer")
    assert not replica.drained


def test_the_token_opens_everything_and_probes_need_none() -> None:
    app = build_control(control(load("a:1"), admin_token="right"))
    headers = {"authorization": "bearer right"}
    assert ask(app, "GET", "/router/fleet", headers=headers).status_code == 200
    assert ask(app, "POST", "/router/replicas/a:1/drain", headers=headers).status_code == 200
    assert ask(app, "GET", "/livez").status_code == 200
    assert ask(app, "GET", "/metrics").status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/router/fleet"), ("POST", "/router/replicas/a:1/drain"), ("GET", "/router"), ("GET", "/metrics")],
)
def test_public_port_has_no_operator_paths_beside_an_admin_port(method: str, path: str) -> None:
    made = control(load("a:1"), own_admin_port=True, admin_token="right")
    reply = ask(build_control(made), method, path, headers={"authorization": "Bearer right"})
    assert (reply.status_code, code(reply)) == (404, "not_found")
    assert ask(build_control(made), "GET", "/v1/models").status_code == 200
    assert ask(build_control(made), "GET", "/readyz").status_code == 200


def test_admin_port_has_operator_paths_and_probes() -> None:
    app = build_admin(control(load("a:1"), own_admin_port=True))
    for path in ("/livez", "/readyz", "/metrics", "/router/fleet"):
        assert ask(app, "GET", path).status_code == 200
    assert ask(app, "GET", "/v1/models").status_code == 404


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "/metrics", "/v1/models", "/router/fleet"])
def test_head_is_answered_and_other_methods_are_405(path: str) -> None:
    app = build_control(control(load("a:1")))
    assert ask(app, "HEAD", path).status_code == 200
    reply = ask(app, "POST", path)
    assert (reply.status_code, code(reply)) == (405, "method_not_allowed")
    assert set(reply.headers["allow"].split(", ")) == {"GET", "HEAD"}


@pytest.mark.parametrize("path", ["/router/fleet/", "/router/", "/docs", "/openapi.json", "/router/nothing"])
def test_nothing_redirects_and_unknown_is_a_json_404(path: str) -> None:
    reply = ask(build_control(control()), "GET", path)
    assert (reply.status_code, code(reply)) == (404, "not_found")
