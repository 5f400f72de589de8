"""Runs the router as its users do, in a process of its own, and asks it how it is.

    with running_router([replica.url], "--policy", "round_robin") as router:
        router.http.post("/v1/chat/completions", json={...})
        assert router.metric("router_requests_total", outcome="ok") == 1

The process takes a free port and ends with the block, or with whoever started it, however that ends.
"""

import os
import re
import runpy
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_SECONDS = 20.0  # how long `until` believes; never reached in a test that passes

# Tests do not wait for what an operator would: probes every 0.1 s, and no grace for what hangs.
QUICK = ("--health-interval", "0.1", "--scrape-interval", "0.1", "--drain-timeout", "1")


def until(true: Callable[[], bool], what: Callable[[], object] = lambda: "never came true") -> None:
    """Wait for something that another process is about to bring about; AssertionError with `what()` if it does not."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline, what()
        time.sleep(0.01)


class RunningRouter:
    """A router's process. `http` is a client at its address; `pid` is there to be signalled."""

    def __init__(self, process: subprocess.Popen[bytes], log_file: Path, token: str = "") -> None:
        self.pid = process.pid
        self._process, self._log_file = process, log_file
        self._operator = {"authorization": f"Bearer {token}"} if token else {}
        self.url = self._address()
        self.http = httpx.Client(base_url=self.url, timeout=30.0, trust_env=False)

    def log(self) -> str:
        """Everything it has written to standard error so far."""
        return self._log_file.read_text(errors="replace")

    def fleet(self) -> dict[str, Any]:
        """What GET /router/fleet says."""
        return self._own("GET", "/router/fleet")

    def replica(self, id: str) -> dict[str, Any]:
        """One replica, as the fleet shows it."""
        return next(each for each in self.fleet()["replicas"] if each["id"] == id)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of this name that carry these labels; 0 where there is none."""
        page = self.http.get("/metrics").raise_for_status().text
        samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
        return sum(each.value for each in samples if each.name == name and labels.items() <= each.labels.items())

    def explain(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Where this request would go and why."""
        return self._own("POST", "/router/explain", params={"path": path}, json=body, headers=headers)

    def drain(self, id: str) -> None:
        """Needs a router started with a `token`; so does `undrain`."""
        self._own("POST", f"/router/replicas/{id}/drain")

    def undrain(self, id: str) -> None:
        self._own("POST", f"/router/replicas/{id}/undrain")

    def until_idle(self) -> None:
        """Nothing in flight, no tokens queued; a lease closes just after the client has its last byte."""
        until(self._is_idle, lambda: f"not idle: {self.fleet()}")

    def until_ready(self) -> None:
        """/readyz says yes: at least one replica is up."""
        until(lambda: self.http.get("/readyz").status_code == 200, self.log)

    def until_up(self, *ids: str) -> None:
        """These replicas are up; without names all of them are."""
        until(lambda: all(each["state"] == "up" for each in self._named(ids)), lambda: f"not up: {self.fleet()}")

    def _own(self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **rest: Any) -> dict[str, Any]:
        answer = self.http.request(method, path, headers={**(headers or {}), **self._operator}, **rest)
        value: dict[str, Any] = answer.raise_for_status().json()
        return value

    def _named(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        return [each for each in self.fleet()["replicas"] if not ids or each["id"] in ids]

    def _is_idle(self) -> bool:
        fleet = self.fleet()
        return not fleet["totals"]["inflight"] and not any(each["queued_tokens"] for each in fleet["replicas"])

    def _address(self) -> str:
        until(lambda: "listening on " in self.log() or self._process.poll() is not None, self.log)
        found = re.search(r"listening on (http://\S+)", self.log())
        assert found, f"the router did not start:\n{self.log()}"
        return found[1]

    def stop(self) -> int:
        """SIGTERM, and its exit code; SIGKILL if it does not obey."""
        self.http.close()
        self._process.terminate()
        try:
            return self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


@contextmanager
def running_router(
    replicas: Sequence[str], *flags: str, token: str = "", ready: bool = True
) -> Iterator[RunningRouter]:
    """A router in front of these sources, ready unless told otherwise. Flags come after, and win over, `QUICK`.

    At the end its log must be free of tracebacks: a router that logs one has a fault, whatever it answered.
    """
    given = ["--replicas", ",".join(replicas), *QUICK, *flags, *(("--admin-token", token) if token else ())]
    with tempfile.TemporaryDirectory(prefix="prefix-router-") as folder:
        log_file = Path(folder, "router.log")
        with log_file.open("wb") as log, _process(given, log) as process:
            router = RunningRouter(process, log_file, token)
            try:
                if ready:
                    router.until_ready()
                yield router
            finally:
                code = router.stop()
        assert "Traceback" not in router.log(), router.log()
        assert code == 0, f"exit {code}:\n{router.log()}"


@contextmanager
def _process(flags: Sequence[str], log: Any) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.running", "serve", "--port", "0", *flags]
    environment = {name: value for name, value in os.environ.items() if not name.upper().startswith("ROUTER_")}
    # Standard input is a leash: the process ends when our end of it closes, so a killed test run leaves nothing.
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stderr=log) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _end_with_stdin() -> None:
    while os.read(0, 4096):  # not sys.stdin: its lock would be held when the interpreter ends
        pass
    os._exit(1)


if __name__ == "__main__":  # `python -m router` with the arguments given, on the leash
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    runpy.run_module("router", run_name="__main__", alter_sys=True)
