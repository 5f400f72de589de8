"""The router as its users run it, in its own process, seen from outside: its pages, log, sockets and memory."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

_ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 20.0
_STOP_SECONDS = 10.0


class RouterProcess:
    """`port`, and what a machine's owner can see of the process."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, port: int) -> None:
        self.port = port
        self._process, self._log = process, log

    async def get(self, path: str) -> httpx.Response:
        """On a connection of its own, so that it leaves none behind. Raises httpx.HTTPError."""
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", trust_env=False, timeout=15.0) as client:
            return await client.get(path)

    async def fleet(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.get("/router/fleet")).json()
        return found

    async def samples(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        page = (await self.get("/metrics")).text
        families = text_string_to_metric_families(page)
        return {(s.name, tuple(sorted(s.labels.items()))): s.value for each in families for s in each.samples}

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def log(self) -> list[str]:
        return self._log.read_text(errors="replace").splitlines()

    def rss_mib(self) -> float:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self._process.pid}/status").read_text())
        return int(found[1]) / 1024 if found else 0.0

    def sockets(self) -> dict[str, int]:
        """Open sockets by TCP state."""
        inodes = set()
        folder = f"/proc/{self._process.pid}/fd"
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                target = os.readlink(f"{folder}/{name}")
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
        found: dict[str, int] = {}
        for line in Path(f"/proc/{self._process.pid}/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes:
                state = _STATES.get(fields[3], fields[3])
                found[state] = found.get(state, 0) + 1
        return found

    async def stop(self) -> int:
        """SIGTERM, and its exit code; -9 if it did not obey."""
        if self.alive:
            self._process.terminate()
        try:
            return await asyncio.to_thread(self._process.wait, _STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return await asyncio.to_thread(self._process.wait)


_STATES = {
    "01": "established",
    "02": "syn_sent",
    "04": "fin_wait1",
    "05": "fin_wait2",
    "08": "close_wait",
    "0A": "listen",
}


@contextlib.asynccontextmanager
async def running(source: str, log: Path, *flags: str) -> AsyncIterator[RouterProcess]:
    """Raises RuntimeError with its log if it does not start. It never outlives this block."""
    command = [sys.executable, "-m", "router", "serve", "--port", "0", "--log-format", "json", "--replicas", source]
    environment = {name: value for name, value in os.environ.items() if not name.upper().startswith("ROUTER_")}
    process = _start([*command, *flags], environment, log)
    try:
        yield RouterProcess(process, log, await _port(process, log))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _start(command: list[str], environment: dict[str, str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("wb") as stream:
        return subprocess.Popen(command, cwd=_ROOT, env=environment, stderr=stream)


async def _port(process: "subprocess.Popen[bytes]", log: Path) -> int:
    for _ in range(int(_START_SECONDS / 0.02)):
        found = re.search(r"listening on http://[^:]+:(\d+)", _text(log))
        if found:
            return int(found[1])
        if process.poll() is not None:
            break
        await asyncio.sleep(0.02)
    raise RuntimeError(f"the router did not start:\n{_text(log)}")


def _text(log: Path) -> str:
    return log.read_text(errors="replace")
