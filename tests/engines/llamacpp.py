"""Real llama.cpp servers, each in a process of its own, that can be killed and started again."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.engines import tiny_model
from tests.running import ROOT

MODEL = Path(__file__).parent / ".model" / "tiny.gguf"


class LlamaCpp:
    """One server. `id` is what the router calls it. Not started until `start`."""

    def __init__(self, log_file: Path, *flags: str) -> None:
        self._log_file, self._flags = log_file, flags
        self._port = 0  # any free one, the first time
        self._process: subprocess.Popen[str] | None = None

    @property
    def id(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        return f"http://{self.id}"

    def start(self) -> None:
        """Returns when it serves; a second time it takes the port it had, and begins with an empty cache."""
        command = [sys.executable, "-m", "tests.engines.replica", str(MODEL), str(self._port), *self._flags]
        with self._log_file.open("a") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        address = self._process.stdout.readline().strip()
        assert address.startswith("http"), f"llama.cpp did not start:\n{self._log_file.read_text()[-2000:]}"
        self._port = int(address.rpartition(":")[2])

    def kill(self) -> None:
        """kill -9; returns when the process is gone and its sockets with it."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()
        process.communicate()

    def restart(self) -> None:
        self.kill()
        self.start()

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def busy_slots(self) -> int:
        slots: list[dict[str, Any]] = httpx.get(f"{self.url}/slots", trust_env=False).raise_for_status().json()
        return sum(slot["is_processing"] for slot in slots)

    def metric(self, name: str) -> float:
        page = httpx.get(f"{self.url}/metrics", trust_env=False).raise_for_status().text
        samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
        return next(each.value for each in samples if each.name == f"llamacpp:{name}")


@contextmanager
def running_replicas(count: int, *flags: str) -> Iterator[list[LlamaCpp]]:
    """So many servers of the tiny model, sorted by id. They end with the block, or with whoever started them."""
    tiny_model.build(MODEL)
    with tempfile.TemporaryDirectory(prefix="llamacpp-") as folder, ExitStack() as stack:
        replicas = [LlamaCpp(Path(folder, f"{number}.log"), *flags) for number in range(count)]
        for replica in replicas:
            stack.callback(replica.kill)
            replica.start()
        yield sorted(replicas, key=lambda replica: replica.id)
