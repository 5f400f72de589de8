"""Every knob of the router: its type, its default, and why that is the default.

Its law: a setting that would not be obeyed is an error, never silence. `Settings(...)` reads nothing but its
arguments; flags, environment and file are layered over each other by `router.cli.sources`.
"""

import json
import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, FilePath, SecretStr, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from router.core.keys import HINTS, STRONG
from router.core.keys import Sources as SessionSources
from router.discovery.source import replica_url
from router.policies import names as policy_names
from router.stores import sqlite_path

# The first field of each group; a group runs to the next one's first field.
GROUPS = {
    "host": "Listening",
    "replicas": "Replicas",
    "policy": "Choosing",
    "session_sources": "Sessions",
    "connect_timeout": "Limits and time",
    "admin_port": "Operating",
}
# F139: nothing is half applied, because nothing is read again while the router runs, except what is named here.
LIVE = {"replicas": "restart; a file:// source is watched, and its replicas come and go live"}

_LATER = "comes in a later release"
MASK = "********"
_USERINFO = re.compile(r"(?<=://)[^/?#\s]*@")


def masked(text: str) -> str:
    """The text without the user and password of any address in it."""
    return _USERINFO.sub(f"{MASK}@", text)


def _words(value: object) -> object:
    """A list as people type it: JSON, or words between commas."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return _decoded(value)
    return [word.strip() for word in value.split(",") if word.strip()]


def _pairs(value: object) -> object:
    """A mapping as people type it: a JSON object, or name=value between commas."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("{"):
        return _decoded(value)
    pairs = [word.partition("=") for word in value.split(",") if word.strip()]
    if not all(equals and name.strip() for name, equals, _ in pairs):
        raise ValueError("expected a JSON object, or name=value,name=value")
    return {name.strip(): _scalar(text.strip()) for name, _, text in pairs}


def _decoded(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"not valid JSON: {error}") from None


def _scalar(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _word(value: object) -> object:
    """One lower-case word. YAML 1.1 reads a bare `off` as False and a bare `on` as True."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return value.lower() if isinstance(value, str) else value


def _none(value: object) -> object:
    """Flags and variables are text: `none` is how they take back what a file has set."""
    return None if isinstance(value, str) and value.lower() in {"none", "null"} else value


def _later(value: object) -> object:
    if value is not None:
        raise ValueError(_LATER)
    return value


def _store(value: str) -> str:
    scheme, colon, _ = value.partition("://")
    if colon and scheme in {"redis", "rediss"}:
        raise ValueError(f"{scheme}:// {_LATER}; until then use memory or sqlite:///path")
    if colon and scheme == "sqlite":
        sqlite_path(value)
    elif value != "memory":
        raise ValueError(f"expected memory or sqlite:///path, got {masked(value)!r}")
    return value


def _policy(value: str) -> str:
    if re.fullmatch(r"[\w.]+:\w+", value):
        return value
    known = policy_names()
    if value not in known:
        raise ValueError(
            f"unknown policy {value!r}{nearest(value, known)} (known: {', '.join(known)}; your own is module:Class)"
        )
    return value


def _source(value: str) -> str:
    """One replica source. Every message names the entry, without its password."""
    shown = repr(masked(value))
    scheme, colon, rest = value.partition("://")
    if not colon:
        raise ValueError(f"{shown} has no scheme; write for instance http://{value}" if value else "an entry is empty")
    if scheme in {"dns+http", "dns+https", "k8s"}:
        raise ValueError(f"{shown}: {scheme}:// {_LATER}; until then list the replicas, or use a file://")
    if scheme == "file":
        if not rest.startswith("/"):
            raise ValueError(f"{shown} needs an absolute path, for instance file:///etc/router/replicas.yaml")
        return value
    if scheme not in {"http", "https"}:
        raise ValueError(f"{shown}: unknown scheme {scheme}://; use http://, https:// or file://")
    try:
        replica_url(value)
    except ValueError as error:
        raise ValueError(f"{shown}: {error}") from None
    return value


def _session_source(value: str) -> str:
    SessionSources(strong=(value,), hints=())  # raises ValueError for what it cannot read
    return value


def _secret(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if text == MASK:
        raise ValueError("this is the mask that `prefix-router config` prints, not the secret")
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise ValueError("it travels in a header, so it must be printable ASCII without spaces and line ends")
    return value


def nearest(word: str, known: Iterable[str]) -> str:
    """The question after an unknown word, or nothing where no known word is near."""
    near = get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


Places = Annotated[list[Annotated[str, AfterValidator(_session_source)]], NoDecode, BeforeValidator(_words)]
Sources = Annotated[list[Annotated[str, AfterValidator(_source)]], NoDecode, BeforeValidator(_words)]
Pairs = Annotated[dict[str, Any], NoDecode, BeforeValidator(_pairs)]
Later = Annotated[None, BeforeValidator(_later)]
Name = Annotated[str, Field(min_length=1)]
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
OrNone = BeforeValidator(_none)
Lower = BeforeValidator(_word)
Secret = Annotated[SecretStr, Field(min_length=1), AfterValidator(_secret)]


class Settings(BaseSettings):
    """All settings of one router process. Raises `pydantic.ValidationError` with one error per wrong field."""

    model_config = SettingsConfigDict(
        env_prefix="ROUTER_",
        env_ignore_empty=True,  # compose files pass unset variables as empty ones
        extra="forbid",
        frozen=True,
        validate_default=False,  # a test validates the defaults; a start need not
        hide_input_in_errors=True,  # it may be a secret
        use_attribute_docstrings=True,  # first sentence: what; the rest: why
    )

    host: Name = "127.0.0.1"
    """Address to listen on. Loopback, because exposure is a decision; images set 0.0.0.0."""
    port: Port = 8000
    """Port to listen on; 0 takes a free one. 8000 is what clients of these engines already use."""
    max_body_bytes: Annotated[ByteSize, Field(gt=0)] = ByteSize(64 * 2**20)
    """Largest request body, bytes or a size such as 64MiB; beyond it 413. 64 MiB holds a long session with dozens of
    images in base64, and a few such bodies at once do not fill the memory."""
    max_requests: Annotated[Count | None, OrNone] = None
    """Most requests in flight, all replicas together; beyond it 503. None, because engines queue well and only the
    operator knows what clients bear."""
    response_headers: bool = True
    """Whether answers carry x-router-* headers. On, because they say where a request went and why for 150 bytes."""

    replicas: Sources = Field(default_factory=list)
    """Where the replicas are: http:// or https:// addresses, or file:///path.yaml. None, because there is no good
    guess; `serve` needs at least one."""
    engine: Annotated[Literal["auto", "vllm", "sglang", "llamacpp", "none"], Lower] = "auto"
    """What the replicas run. auto asks each one, so that a mixed fleet works; none never asks."""
    upstream_api_key: Annotated[Secret | None, OrNone] = None
    """Key sent to replicas, own probes and scrapes included. None, because clients' own keys pass through."""
    upstream_ca_file: Annotated[FilePath | None, OrNone] = None
    """PEM file of the authorities that sign https:// replicas. None: those of the system."""
    upstream_verify: bool = True
    """Whether certificates of https:// replicas are checked. On, because unchecked TLS protects from nobody."""
    max_inflight: Annotated[Count | None, OrNone] = None
    """Most requests in flight per replica. None, because tight bounds send sessions away from their cache."""
    scrape_interval: Seconds = 1.0
    """Seconds between two scrapes of a replica. 1 s is younger than most turns are long and costs an engine
    nothing."""
    health_interval: Seconds = 5.0
    """Seconds between two health probes of a replica. 5 s, because real traffic tells sooner and probes only have to
    find the way back."""
    health_timeout: Seconds = 5.0
    """Seconds that a health probe may take. 5 s, because a replica deep in prefill answers late and is not dead."""

    policy: Annotated[Name, AfterValidator(_policy)] = "locality"
    """Which policy chooses: round_robin, random, least_loaded, two_choices, session_hash, prefix_hash, longest_prefix,
    locality, or module:Class for your own. locality keeps a session where its KV cache is; that is what this router
    is for."""
    policy_options: Pairs = Field(default_factory=dict)
    """Options of the policy, by name. None, because every policy has defaults of its own."""
    placement: Annotated[Literal["cost", "ring"], Lower] = "cost"
    """How a new session finds its home. cost places best; several routers without a shared store must use ring, or a
    session gets a home per router."""
    placement_margin: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.8
    """How much dearer the ring's choice may be before another home is taken, in mean contexts. 0.8 lies on the
    plateau of the sweeps: most homes stay on the ring and survive a restart, and no queue grows long."""
    admission: Annotated[Literal["off", "auto"], Lower] = "auto"
    """Whether new sessions wait while no KV cache has room for them. auto, because past its capacity an agent fleet
    collapses; it is on where a replica's capacity is known, and holds nobody while the fleet fits."""
    admission_options: Pairs = Field(default_factory=dict)
    """Options of admission, by name: see docs/admission.md. None, because the defaults come from its sweeps."""
    max_wait: Seconds = 600.0
    """Longest time in the waiting room, seconds; beyond it 503 with Retry-After. 600 s is about what clients' own
    timeouts allow, and twice what nearly all waits take."""
    experiment: Later = None
    """Arms to compare. None; experiments come in a later release and are refused now."""
    kv_capacity_tokens: Annotated[Count | None, OrNone] = None
    """Tokens that the KV cache of a replica holds, for engines that do not say. None, because most do."""
    prefill_tokens_per_second: Positive = 8000.0
    """Prefill rate of a replica until its replies have taught better, tokens a second. 8000 is a round guess for one
    current accelerator; only the first minutes depend on it."""
    bytes_per_token: Positive = 4.0
    """Bytes of body per token until replies have taught better. 4 is English and code in JSON."""

    session_sources: Places = Field(default_factory=lambda: list(STRONG))
    """Where a request may name its session, strongest first. These are what known clients and routers send."""
    session_hints: Places = Field(default_factory=lambda: list(HINTS))
    """Where a request may name a group of sessions. A hint only chooses where the ring starts, because it may be one
    value for a whole application."""
    store: Annotated[str, AfterValidator(_store)] = "memory"
    """Where bindings are kept: memory, or sqlite:///path, an absolute path. memory, because a file needs a place that
    outlives the router; redis:// comes in a later release and is refused now."""
    binding_life: Seconds = 86400.0
    """Seconds that a store keeps a session that is not seen any more. A day, because no KV cache holds it longer and
    people come back the next morning."""
    idle_window: Seconds = 900.0
    """Seconds after which an idle session no longer counts as bound load. 900 s is three times the pause that 97 % of
    agents' turns stay under."""
    max_sessions: Count = 100_000
    """Most sessions remembered, least recently used out first. 100,000 is weeks of agents; with max_prefixes, both full
    maps take about 95 MB."""
    max_prefixes: Count = 300_000
    """Most prefix hashes remembered, least recently used out first. 300,000 is a few per turn of the sessions that come
    back."""

    connect_timeout: Seconds = 5.0
    """Seconds to connect to a replica. 5 s, because a lost replica must not hold a request that others can serve."""
    first_byte_timeout: Seconds = 600.0
    """Seconds from dispatch to the first byte of the answer. 600 s, because a queue plus the prefill of a long context
    takes minutes, and an answer that is not streamed comes only at its end."""
    idle_timeout: Seconds = 300.0
    """Seconds between two pieces of an answer. 300 s, because tools that run in the engine may pause a stream."""
    total_timeout: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Seconds for the whole of a request; 0 is no limit. 0, because a long stream that still moves is healthy."""
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    """How often a request that no replica has acted upon is sent elsewhere. 2, because a third failure in a row is the
    fleet's."""
    retry_budget: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Retries per request, over all requests. 0.2, because beyond it retries make an outage worse."""
    drain_timeout: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    """Seconds that open requests get after SIGTERM. 30 s, because that is the grace orchestrators give by
    default; longer streams need both raised."""

    admin_port: Annotated[Port | None, OrNone] = None
    """Port of its own for /router/ and /metrics; 0 takes a free one. None: they share the port, because one is enough
    to begin with."""
    admin_host: Name = "127.0.0.1"
    """Address of the admin port. Loopback, because draining and the fleet's state are the operator's."""
    admin_token: Annotated[Secret | None, OrNone] = None
    """Bearer token asked for under /router/. None: reading is open, and without an admin port drain and undrain answer
    403."""
    api_keys_file: Later = None
    """File of the clients' keys. None; client keys come in a later release and are refused now."""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Lower] = "info"
    """Least level that is logged. info tells starts, stops, replicas that come and go, and one line per request."""
    log_format: Annotated[Literal["text", "json"], Lower] = "text"
    """How a log line looks. text, because people read it first; json for collectors."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The arguments alone: the environment is a layer of `router.cli.sources`, where its origin is kept."""
        return (init_settings,)

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        if self.admin_port and self.admin_port == self.port:
            raise ValueError(f"admin_port {self.admin_port} is the port itself; leave it out to share the port")
        return self
