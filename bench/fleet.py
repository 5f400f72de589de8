"""A fleet of simulated replicas: `python -m bench.fleet --replicas 4`, or `with running_fleet(...) as urls`.

It ends with SIGINT, SIGTERM, or when the process that started it is gone.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.fake_engine import Replica, ReplicaOptions
from bench.model import EngineOptions

_ROOT = Path(__file__).resolve().parent.parent
_START_SECONDS = 20.0  # a cold start on a loaded machine takes two


def arguments() -> argparse.ArgumentParser:
    engine, replica = EngineOptions(), ReplicaOptions()
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description="Simulated replicas on loopback.")
    add = parser.add_argument
    add("--replicas", type=int, default=4, help="how many (%(default)s)")
    add("--base-port", type=int, default=9001, help="first port; 0 = any free ones (%(default)s)")
    add("--model", default=replica.model)
    add("--flavour", choices=("vllm", "sglang"), default=replica.flavour)
    add("--ranks", type=int, default=replica.ranks, help="data-parallel ranks shown on /metrics")
    add("--time-scale", type=float, default=replica.time_scale, help="model seconds per second")
    add("--kv-tokens", type=int, default=engine.kv_blocks * engine.block_tokens, help="KV cache of one replica")
    add("--block-tokens", type=int, default=engine.block_tokens)
    add("--max-running", type=int, default=engine.max_running)
    add("--max-queue", type=int, default=replica.max_queue, help="503 beyond so many waiting; 0 = never")
    add("--max-model-len", type=int, default=replica.max_model_len)
    add("--prefill-rate", type=float, default=engine.prefill_rate, help="tokens per model second")
    add("--quantum-tokens", type=int, default=engine.quantum_tokens, help="prefill chunk; 0 = first come, first served")
    add("--tpot-base", type=float, default=engine.tpot_base)
    add("--tpot-slope", type=float, default=engine.tpot_slope)
    add("--tokens-per-event", type=int, default=replica.tokens_per_event)
    add("--end-with-stdin", action="store_true", help="stop when standard input is closed")
    add("--no-cached-tokens", action="store_true", help="leave cached_tokens out of usage")
    return parser


def options_from(given: argparse.Namespace) -> ReplicaOptions:
    engine = EngineOptions(
        kv_blocks=given.kv_tokens // given.block_tokens,
        block_tokens=given.block_tokens,
        max_running=given.max_running,
        prefill_rate=given.prefill_rate,
        quantum_tokens=given.quantum_tokens,
        tpot_base=given.tpot_base,
        tpot_slope=given.tpot_slope,
    )
    return ReplicaOptions(
        engine=engine,
        model=given.model,
        flavour=given.flavour,
        time_scale=given.time_scale,
        max_model_len=given.max_model_len,
        max_queue=given.max_queue,
        report_cached=not given.no_cached_tokens,
        tokens_per_event=given.tokens_per_event,
        ranks=given.ranks,
    )


@contextlib.contextmanager
def running_fleet(flags: Sequence[str] = ()) -> Iterator[list[str]]:
    """A fleet in a process of its own; yields the replicas' URLs. RuntimeError if it does not start.

    The process holds the other end of a pipe to us, so it ends with us however we end.
    """
    command = [sys.executable, "-m", "bench.fleet", "--base-port", "0", "--end-with-stdin", *flags]
    # A group of its own: Ctrl-C is for us to handle, the fleet must outlive the last table.
    process = subprocess.Popen(
        command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline().strip()
        if not line.startswith("http"):
            raise RuntimeError(f"the simulated fleet did not start (exit {process.wait(_START_SECONDS)})")
        yield line.split(",")
    finally:
        process.stdin.close()
        process.stdout.close()
        process.terminate()
        process.wait()


async def serve(count: int, base_port: int, options: ReplicaOptions, watch_stdin: bool) -> None:
    """Run `count` replicas until told to end. OSError if a port is taken."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if watch_stdin:
        loop.add_reader(sys.stdin.fileno(), _end_of_stdin, stop)
    replicas = [Replica(options) for _ in range(count)]
    started: list[Replica] = []
    try:
        for index, replica in enumerate(replicas):
            await replica.start(port=base_port + index if base_port else 0)
            started.append(replica)
        print(",".join(replica.url for replica in replicas), flush=True)
        orphaned = loop.create_task(_when_orphaned(stop, os.getppid()))
        await stop.wait()
        orphaned.cancel()
    finally:
        for replica in started:
            await replica.stop()


def _end_of_stdin(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        stop.set()


async def _when_orphaned(stop: asyncio.Event, parent: int) -> None:
    while os.getppid() == parent:  # noqa: ASYNC110  no system-independent event tells of this
        await asyncio.sleep(1.0)
    print("bench.fleet: ends, because the process that started it has ended", file=sys.stderr)
    stop.set()


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments().parse_args(argv)
    try:
        asyncio.run(serve(given.replicas, given.base_port, options_from(given), given.end_with_stdin))
    except OSError as error:
        print(f"bench.fleet: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
