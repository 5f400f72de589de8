"""Our own paths, on FastAPI: probes, the model list, metrics, the fleet, explain and drain.

Its law: nothing here is forwarded, nothing here changes the fleet but drain and undrain, and every answer is JSON
(metrics apart), errors included.
"""

import hmac
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
from fastapi import APIRouter, FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from router.core.replica import Load, Signals, State

OWN_PATHS = frozenset({"/livez", "/readyz", "/health", "/metrics", "/v1/models", "/router"})

Headers = Sequence[tuple[bytes, bytes]]

_READ = ["GET", "HEAD"]
_ANY = [*_READ, "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_CODES = {401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}
_PROMPT_PATHS = (("messages", "/v1/chat/completions"), ("input", "/v1/responses"), ("prompt", "/v1/completions"))
# A client's credentials never reach what explains: no session key is ever made of them, and the bearer here is ours.
_PRIVATE_HEADERS = frozenset({b"authorization", b"proxy-authorization", b"cookie"})


class FleetView(Protocol):
    """What the control paths ask of the fleet."""

    @property
    def loads(self) -> Mapping[str, Load]: ...
    @property
    def sessions(self) -> int: ...
    @property
    def prefixes(self) -> int: ...
    @property
    def tick(self) -> int: ...  # snapshots taken so far

    def now(self) -> float: ...
    def drain(self, replica_id: str, /) -> None: ...  # KeyError where nobody has the id
    def undrain(self, replica_id: str, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Control:
    """The collaborators of the control paths, and how far they are exposed.

    `explain(path, headers, body)` answers a verdict without sending anything; the keys that the `explain` command
    prints are `replica`, `policy`, `reason`, `session_source`, `prompt_tokens`, `expected_cached_tokens` and
    `candidates`, a list of `replica`, `state`, `inflight`, `queued_tokens`, `bound_tokens`, `cost`, `passed_over`.
    """

    fleet: FleetView
    explain: Callable[[str, Headers, bytes], Mapping[str, Any]]
    render_metrics: Callable[[], tuple[bytes, str]]  # the page and its content type
    models: Callable[[], Sequence[Mapping[str, Any]]]  # OpenAI model objects, one per name
    draining: Callable[[], bool]
    max_body_bytes: int
    admin_token: str | None = None
    own_admin_port: bool = False  # True: /router/ and /metrics answer on the admin app alone
    version: str = ""


def is_own(path: str, method: str = "GET") -> bool:
    """Whether a request is for these apps. Every method is: a wrong one gets our 405, not some replica's answer."""
    return path in OWN_PATHS or path.startswith("/router/")


def build_control(control: Control) -> FastAPI:
    """The app of the public port. With an admin port of its own it has no metrics and answers 404 under /router/."""
    app = _bare(control)
    app.include_router(_probes(control))

    @app.api_route("/v1/models", methods=_READ)
    async def models() -> Response:
        return _models(control)

    if control.own_admin_port:
        for path in ("/metrics", "/router", "/router/{rest:path}"):
            app.add_api_route(path, _moved, methods=_ANY)
        return app
    _include_operator_paths(app, control)
    return app


def build_admin(control: Control) -> FastAPI:
    """The app of the admin port: liveness, readiness, metrics and everything under /router/."""
    app = _bare(control)
    app.include_router(_probes(control))
    _include_operator_paths(app, control)
    return app


def guess_path(body: bytes) -> str:
    """The API path a body was made for; chat where it does not tell (an Anthropic body does not: name its path)."""
    try:
        keys = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return _PROMPT_PATHS[0][1]
    return next((path for key, path in _PROMPT_PATHS if key in keys), _PROMPT_PATHS[0][1])


def _bare(control: Control) -> FastAPI:
    app = FastAPI(
        title="prefix-router",
        version=control.version or "0",
        docs_url=None,  # an open page that loads scripts from elsewhere has no place on a proxy's port
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,  # the contract: no redirects are made
    )
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _internal_error)
    return app


def _include_operator_paths(app: FastAPI, control: Control) -> None:
    app.include_router(_operator(control))
    if control.admin_token is not None:
        app.add_middleware(_Guard, token=control.admin_token)


def _probes(control: Control) -> APIRouter:
    routes = APIRouter()

    @routes.api_route("/livez", methods=_READ)
    async def livez() -> Response:
        return _json({"status": "alive"})

    @routes.api_route("/readyz", methods=_READ)
    async def readyz() -> Response:
        return _readiness(control, {})

    @routes.api_route("/health", methods=_READ)
    async def health() -> Response:
        return _readiness(control, {"version": control.version, "replicas": _states(control.fleet)})

    return routes


def _readiness(control: Control, detail: Mapping[str, object]) -> Response:
    states = _states(control.fleet)
    if control.draining():
        return _error(503, "draining", "the router is draining: no new requests", replicas=states)
    if not states[State.UP]:
        return _error(503, "no_replica", "no replica is up", replicas=states)
    return _json({"status": "ready", **detail})


def _states(fleet: FleetView) -> dict[str, int]:
    counts = Counter(load.standing for load in fleet.loads.values())
    return {word: counts[word] for word in (*State, "draining")}


def _models(control: Control) -> Response:
    known = control.models()
    if not known:
        return _error(503, "no_replica", "no live replica has told its models yet")
    return _json({"object": "list", "data": known})


def _operator(control: Control) -> APIRouter:
    routes = APIRouter()

    @routes.api_route("/metrics", methods=_READ)
    async def metrics() -> Response:
        page, content_type = control.render_metrics()
        return Response(page, headers={"content-type": content_type})

    @routes.api_route("/router/fleet", methods=_READ)
    async def fleet() -> Response:
        return _json(_picture(control))

    @routes.post("/router/explain")
    async def explain(request: Request) -> Response:
        return await _verdict(control, request)

    # `path`: an operator may have named a replica with a slash in it.
    @routes.post("/router/replicas/{replica:path}/drain")
    async def drain(replica: str) -> Response:
        return _switch(control, replica, control.fleet.drain)

    @routes.post("/router/replicas/{replica:path}/undrain")
    async def undrain(replica: str) -> Response:
        return _switch(control, replica, control.fleet.undrain)

    return routes


def _picture(control: Control) -> dict[str, object]:
    fleet, now = control.fleet, control.fleet.now()
    replicas = [_describe(load, now) for _, load in sorted(fleet.loads.items())]
    totals = {
        "replicas": len(replicas),
        "sessions": fleet.sessions,
        "prefixes": fleet.prefixes,
        "tick": fleet.tick,
        "inflight": sum(load.inflight for load in fleet.loads.values()),
        "bound_tokens": sum(load.bound_tokens for load in fleet.loads.values()),
        "states": _states(fleet),
    }
    return {"replicas": replicas, "totals": totals, "draining": control.draining()}


def _describe(load: Load, now: float) -> dict[str, object]:
    signals = load.signals
    return {
        "id": load.id,
        "url": _masked(load.replica.url),
        "engine": load.engine or load.replica.engine,
        "models": sorted(load.models),
        "labels": dict(load.replica.labels),
        "state": load.standing,
        "inflight": load.inflight,
        "queued_tokens": load.queued_tokens,
        "bound_tokens": load.bound_tokens,
        "bound_sessions": load.bound_sessions,
        "prefill_rate": round(load.prefill_rate, 1),
        "running": signals.running,
        "waiting": signals.waiting,
        "kv_usage": signals.kv_usage,
        "kv_capacity_tokens": signals.kv_capacity_tokens,
        "hit_ratio": _hit_ratio(signals),
        "signal_age_seconds": None if load.signals_at is None else round(max(0.0, now - load.signals_at), 3),
        "incarnation": load.incarnation,
        "failures": load.failures,
    }


def _hit_ratio(signals: Signals) -> float | None:
    if signals.hit_ratio is not None:
        return signals.hit_ratio
    if not signals.cache_queries or signals.cache_hits is None:
        return None
    return signals.cache_hits / signals.cache_queries


def _masked(url: str) -> str:
    """The address without a password that the operator may have put in it."""
    netloc = urlsplit(url).netloc
    host = netloc.rpartition("@")[2]
    return url if host == netloc else url.replace(netloc, f"********@{host}", 1)


async def _verdict(control: Control, request: Request) -> Response:
    body = await _bounded_body(request, control.max_body_bytes)
    path = request.query_params.get("path") or guess_path(body)
    if not path.startswith("/"):
        return _error(400, "bad_request", "query parameter path: it must start with a slash")
    headers = [(name, value) for name, value in request.headers.raw if name not in _PRIVATE_HEADERS]
    return _json(control.explain(path, headers, body))


async def _bounded_body(request: Request, limit: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise HTTPException(413, f"the body is larger than max_body_bytes, {limit} bytes")
    return bytes(body)


def _switch(control: Control, replica: str, act: Callable[[str], None]) -> Response:
    if control.admin_token is None and not control.own_admin_port:
        return _error(403, "forbidden", "drain and undrain need an admin_token, or an admin_port of their own")
    try:
        act(replica)
    except KeyError:
        return _error(404, "not_found", f"no replica has the id {replica!r}")
    return _json({"id": replica, "state": control.fleet.loads[replica].standing})


class _Guard:
    """Lets nothing under /router pass without the bearer token, unknown paths and wrong methods included."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = b"bearer " + token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guarded = scope["type"] == "http" and (scope["path"] == "/router" or scope["path"].startswith("/router/"))
        if guarded and not self._admits(scope["headers"]):
            response = _error(401, "unauthorized", "this path needs 'Authorization: Bearer <admin_token>'")
            response.headers["www-authenticate"] = 'Bearer realm="prefix-router"'
            return await response(scope, receive, send)
        return await self._app(scope, receive, send)

    def _admits(self, headers: Headers) -> bool:
        given = next((value for name, value in headers if name == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        return hmac.compare_digest(scheme.lower() + b" " + token.strip(), self._expected)


async def _moved(request: Request) -> Response:
    return _error(404, "not_found", f"{request.url.path} is not on this port: the router has an admin_port of its own")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # registered for it alone
    status = error.status_code
    message = error.detail if status == 413 else f"{error.detail}: {request.method} {request.url.path}"
    response = _error(status, _CODES.get(status, "bad_request"), message)
    response.headers.update(error.headers or {})
    return response


async def _internal_error(request: Request, error: Exception) -> Response:
    return _error(500, "internal", f"{request.method} {request.url.path} failed: {type(error).__name__}")


def _json(content: object, status: int = 200) -> Response:
    # msgspec knows enums and turns an engine's NaN into null, which JSONResponse answers with a 500.
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def _error(status: int, code: str, message: str, **detail: object) -> Response:
    response = _json(
        {"error": {"message": message, "type": "router_error", "param": None, "code": code}, **detail}, status
    )
    if status == 503:
        response.headers["retry-after"] = "1"  # the fleet is looked at every second
    return response
