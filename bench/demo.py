"""`make demo`: the same recorded agent sessions through the router, under round robin and then under locality.

Replicas are simulated, everything else is real: the router, its policies, HTTP, the sessions' shapes. Each arm
gets a fleet with empty caches. Whatever happens, no process is left behind.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.client import Lane
from bench.fleet import running_fleet
from bench.progress import progress_for
from bench.replay import ReplayOptions, Run, replay
from bench.report import Figures, seconds, widen
from router.core.admission import AdmissionOptions

_ROOT = Path(__file__).resolve().parent.parent
_READY_SECONDS = 20.0  # the router is ready in about one; a cold disk takes its time
_LOG_LINES = 30  # of the router, when something broke


@dataclass(frozen=True, slots=True)
class Scene:
    """What is played. Times are of the engines' clock unless they say wall."""

    arms: tuple[str, ...] = ("round_robin", "locality")
    replicas: int = 4
    agents: int = 64
    context_tokens: int = 137_000  # mean of the contexts alive in this trace at one time
    capacity: float = 1.25  # KV of the fleet over the contexts alive: room for each of them once, not for copies
    prefill_rate: float = 8_000.0  # tokens per second
    tpot_base: float = 0.012  # seconds
    tpot_slope: float = 0.000_25
    scale_tokens: float = 0.1  # a tenth of every context, cache and rate: the same picture for a tenth of the bytes
    time_scale: float = 60.0  # a minute of the engines in a second of ours
    wall_seconds: float = 32.0  # per arm: two of them and the start-up stay below a minute and a half
    warm_up: float = 0.35  # share of an arm that is not counted: every context has to be computed once

    def fleet_flags(self) -> list[str]:
        scale, block_tokens = self.scale_tokens, 16
        kv_tokens = int(self.capacity * self.agents * self.context_tokens * scale / self.replicas)
        return [
            *("--replicas", str(self.replicas), "--time-scale", str(self.time_scale)),
            *("--kv-tokens", str(kv_tokens), "--block-tokens", str(block_tokens)),
            *("--prefill-rate", str(self.prefill_rate * scale), "--quantum-tokens", "0"),
            *("--tpot-base", str(self.tpot_base / scale), "--tpot-slope", str(self.tpot_slope / scale)),
            *("--tokens-per-event", "64"),
        ]

    def router_flags(self, arm: str) -> list[str]:
        """The router's own defaults, on the engines' clock and in their smaller tokens; baselines hold nobody."""
        options = AdmissionOptions()
        times = {each.name: getattr(options, each.name) / self.time_scale for each in fields(options)
                 if each.name.endswith("_seconds")}  # fmt: skip
        return [
            *("--policy", arm, "--admission", "auto" if arm == "locality" else "off"),
            *("--admission-options", json.dumps(times)),
            *("--idle-window", str(900.0 / self.time_scale)),
            *("--prefill-tokens-per-second", str(self.prefill_rate * self.scale_tokens * self.time_scale)),
        ]

    def replay_options(self, url: str) -> ReplayOptions:
        return ReplayOptions(
            url=url,
            sessions=10_000,  # all there are: the time ends the arm
            concurrency=self.agents,
            time_scale=self.time_scale,
            header="x-claude-code-session-id",  # what the recorded client sends
            scale_tokens=self.scale_tokens,
            duration=self.wall_seconds,
            warm_up=self.wall_seconds * self.warm_up,
            join_midway=True,
        )


class Broken(Exception):
    """The demo cannot go on; the message says why and what the router wrote last."""


def play(scene: Scene, console: Console) -> dict[str, Figures]:
    """Every arm in turn. Broken if one of them fails."""
    rows: dict[str, Figures] = {}
    for arm in scene.arms:
        with running_fleet(scene.fleet_flags()) as replicas, _router(replicas, scene.router_flags(arm)) as (url, log):
            run = Run()
            try:
                asyncio.run(_replay(scene, url, arm, run, console))
            except OSError as error:
                raise Broken(f"{arm}: {error}\n{_tail(log)}") from error
            if run.errors or not run.samples:
                raise Broken(f"{arm}: {run.errors} errors, first: {run.first_error}\n{_tail(log)}")
            rows[arm] = run.figures(scene.replicas)
    return rows


async def _replay(scene: Scene, url: str, arm: str, run: Run, console: Console) -> None:
    with progress_for(console, arm) as progress:
        await replay(scene.replay_options(url), run, progress)


@contextlib.contextmanager
def _router(replicas: Sequence[str], flags: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """The router as a process of its own: (its URL, its log). Broken if it does not get ready."""
    with tempfile.TemporaryDirectory(prefix="prefix-router-demo-") as folder:
        log = Path(folder) / "router.log"
        port = _free_port()
        command = [sys.executable, "-m", "router", "serve", "--replicas", ",".join(replicas), *flags]
        command += ["--port", str(port), "--host", "127.0.0.1", "--log-level", "warning"]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ROUTER_")}
        with log.open("wb") as out:
            # A group of its own: Ctrl-C is for us to handle, in order.
            process = subprocess.Popen(
                command, cwd=_ROOT, env=clean, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        try:
            _wait_until_ready(process, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}", log
        finally:
            _end(process)


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    give_up = time.monotonic() + _READY_SECONDS
    while time.monotonic() < give_up:
        if process.poll() is not None:
            raise Broken(f"the router ended with {process.returncode}\n{_tail(log)}")
        if asyncio.run(_status(url, "/readyz")) == 200:
            return
        time.sleep(0.05)
    raise Broken(f"the router was not ready within {_READY_SECONDS:.0f} s\n{_tail(log)}")


async def _status(url: str, path: str) -> int:
    lane = Lane(url)
    try:
        return (await lane.get(path)).status
    finally:
        lane.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(2.0)  # nothing that is worth waiting for runs any more
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    return "\n".join(["the router's last words:", *lines] if lines else ["the router wrote nothing"])


def outcome(rows: dict[str, Figures]) -> Table:
    """One row per arm, and how the last compares with the first."""
    made = Table()
    made.add_column("", no_wrap=True)
    for name in ("turns", "hit rate", "TTFT p50", "TTFT p95", "turns/s", "imbalance"):
        made.add_column(name, justify="right")
    for arm, of in rows.items():
        ttft = (seconds(of.ttft_p50), seconds(of.ttft_p95))
        rate = f"{of.turns_per_second:.2f}"
        made.add_row(arm, str(of.requests), f"{100 * of.hit_rate:.1f} %", *ttft, rate, f"{of.imbalance:.2f}")
    if len(rows) > 1:
        made.add_section()
        made.add_row("ratio", *_ratios(next(iter(rows.values())), list(rows.values())[-1]))
    return made


def _ratios(base: Figures, other: Figures) -> list[str]:
    pairs = (
        (other.requests, base.requests),
        (other.hit_rate, base.hit_rate),
        (other.ttft_p50, base.ttft_p50),
        (other.ttft_p95, base.ttft_p95),
        (other.turns_per_second, base.turns_per_second),
        (other.imbalance, base.imbalance),
    )
    return [_ratio(ours, theirs) for ours, theirs in pairs]


def _ratio(ours: float, theirs: float) -> str:
    if not (ours > 0 and theirs > 0):
        return "-"
    return f"x {ours / theirs:.2f}" if ours >= theirs else f"÷ {theirs / ours:.2f}"


def _explain(scene: Scene) -> str:
    minutes = scene.wall_seconds * scene.time_scale / 60
    counted = minutes * (1 - scene.warm_up)
    return (
        f"Simulated: {scene.replicas} replicas that prefill {scene.prefill_rate:,.0f} tokens/s each, with KV room for "
        f"{scene.capacity} x the {scene.agents} contexts alive.\n"
        f"Real: the router, HTTP, and recorded Claude Code sessions ({scene.agents} agents at once, contexts of "
        f"{scene.context_tokens:,} tokens on average).\n"
        f"Contexts, caches and rates are all shrunk to {scene.scale_tokens:g} of that. {minutes:.0f} minutes of the "
        f"engines' clock per policy at {scene.time_scale:g} x, the last {counted:.0f} counted.\n"
        "TTFT is on the engines' clock and includes the router's own time. "
        "Imbalance: turns of the busiest replica over the mean."
    )


def main() -> int:
    scene, console = Scene(), Console(stderr=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
    try:
        rows = play(scene, console)
    except KeyboardInterrupt:
        print("interrupted; everything that was started has ended", file=sys.stderr)
        return 130
    except (Broken, RuntimeError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    out = Console()
    widen(out)
    out.print(outcome(rows))
    out.print(_explain(scene), highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
