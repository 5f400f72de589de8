"""Replay recorded agent sessions against a router or one engine: closed loop, one session after another per lane.

A lane thinks as long as the recorded client did (capped), sends the turn, waits for its last token, and goes on.
Times are shown on the engines' clock: with `--time-scale 20` a second on the wall is twenty of theirs.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice

import msgspec
from rich.console import Console

from bench.bodies import FULL_BLOCK_BYTES, Ask, chat_asks, session_asks
from bench.client import Answer, Lane
from bench.progress import Progress, progress_for
from bench.report import Figures, Sample, figures, show
from bench.traces import Chat, claude_sessions, recorded_chats
from router.core.ring import mix

_HEADERS = ("none", "x-session-id", "x-session-affinity", "x-claude-code-session-id")
_CHAT_THINK = 9.0  # seconds; the recorded chats have no times: the median of the Claude Code trace after a tool call


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    url: str = "http://127.0.0.1:8000"
    trace: str = "claude"  # claude | swe | tau
    sessions: int = 40
    concurrency: int = 16
    time_scale: float = 1.0
    header: str = "none"  # the default says nothing of the session: the router must recognise it
    max_turns: int = 0  # per session; 0 = all
    max_think: float = 300.0  # seconds of the engines' clock: as AgentX replays them
    scale_tokens: float = 1.0  # shrinks every context
    seed: int = 0
    warm_up: float = 0.0  # wall seconds at the start that are not counted: caches fill
    duration: float = 0.0  # wall seconds after which no new turn is sent; 0 = until all sessions are played
    model: str = ""  # "" = ask /v1/models
    join_midway: bool = False  # the first session of each lane is entered between a quarter and three quarters


@dataclass(slots=True)
class Run:
    """What has come back so far."""

    samples: list[Sample] = field(default_factory=list)
    answered: int = 0  # good replies, those of the warm-up too
    errors: int = 0
    first_error: str = ""
    played: int = 0  # sessions
    started_at: float = field(default_factory=time.monotonic)
    ended_at: float = 0.0
    options: ReplayOptions = field(default_factory=ReplayOptions)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def elapsed(self) -> float:
        """Wall seconds."""
        return (self.ended_at or time.monotonic()) - self.started_at

    def figures(self, replicas: int = 0) -> Figures:
        counted = max(0.0, self.elapsed - self.options.warm_up)
        return figures(self.samples, self.errors, counted * self.options.time_scale, replicas)


@dataclass(frozen=True, slots=True)
class Script:
    """One session ready to play."""

    id: str
    turns: int
    asks: Callable[[], Iterator[Ask]]


async def replay(options: ReplayOptions, run: Run, progress: Progress | None = None) -> None:
    """Play until the sessions are through, the time is over, or `run.stop` is set. OSError if nobody answers."""
    model = options.model or await _served_model(options.url)
    run.options, run.started_at = options, time.monotonic()
    scripts = iter(_scripts(options))
    lanes = [asyncio.create_task(_lane(number, scripts, options, model, run)) for number in range(options.concurrency)]
    ender = asyncio.create_task(_end(lanes, options.duration, run.stop))
    show = asyncio.create_task(_show(run, progress)) if progress else None
    try:
        await asyncio.gather(*lanes, return_exceptions=False)
    except asyncio.CancelledError:
        if not run.stop.is_set():
            raise
    finally:
        run.ended_at = time.monotonic()
        for task in (*lanes, ender, *([show] if show else [])):
            task.cancel()
        await asyncio.gather(*lanes, ender, *([show] if show else []), return_exceptions=True)


async def _end(lanes: Sequence[asyncio.Task[None]], seconds: float, stop: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds or None)
    stop.set()
    for lane in lanes:
        lane.cancel()


async def _show(run: Run, progress: Progress) -> None:
    while True:
        options = run.options
        done = run.elapsed / options.duration if options.duration else run.played / max(1, options.sessions)
        progress(min(1.0, done), _words(run))
        await asyncio.sleep(progress.every)


def _words(run: Run) -> str:
    warming = run.elapsed < run.options.warm_up
    rate = 100 * run.figures().hit_rate
    seen = "warming up" if warming else f"hit rate {rate:.0f} %" if run.samples else "nothing counted yet"
    return f"{run.answered} turns, {seen}" + (f", {run.errors} errors" if run.errors else "")


async def _lane(number: int, scripts: Iterator[Script], options: ReplayOptions, model: str, run: Run) -> None:
    lane = Lane(options.url)
    skip_share = 0.25 + mix(options.seed, "enter", number) % 1000 / 2000 if options.join_midway else 0.0
    try:
        for script in scripts:
            skip = int(script.turns * skip_share)
            await _play(lane, script, skip, options, model, run)
            skip_share = 0.0
            run.played += 1
    finally:
        lane.close()


async def _play(lane: Lane, script: Script, skip: int, options: ReplayOptions, model: str, run: Run) -> None:
    # Two runs of one seed against one fleet must not meet in its cache by their names, only by their content.
    headers = {options.header: f"{script.id}-{options.seed}"} if options.header != "none" else {}
    last = skip + options.max_turns if options.max_turns else None
    for ask in islice(script.asks(), skip, last):
        await asyncio.sleep(min(ask.think, options.max_think) / options.time_scale)
        answer = await lane.post("/v1/chat/completions", ask.body(model), headers)
        _record(run, answer)


def _record(run: Run, answer: Answer) -> None:
    usage = answer.usage()
    if answer.status != 200 or not answer.complete or not usage:
        run.errors += 1
        why = answer.error or answer.tail[:300].decode("utf-8", "replace")
        run.first_error = run.first_error or f"{answer.status}: {why}"
        return
    run.answered += 1
    time_scale = run.options.time_scale
    if answer.done_at - run.started_at < run.options.warm_up:
        return
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    run.samples.append(
        Sample(
            prompt_tokens=_count(usage.get("prompt_tokens")),
            cached_tokens=_count(cached),
            output_tokens=_count(usage.get("completion_tokens")),
            first_token=(answer.first_at - answer.sent_at) * time_scale,
            duration=(answer.done_at - answer.sent_at) * time_scale,
            replica=answer.headers.get("x-router-replica", ""),
        )
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


async def _served_model(url: str) -> str:
    lane = Lane(url)
    answer = await lane.get("/v1/models")
    lane.close()
    if answer.status != 200:
        raise OSError(f"{url}/v1/models: {answer.status or answer.error}")
    name: str = msgspec.json.decode(answer.tail)["data"][0]["id"]
    return name


def _scripts(options: ReplayOptions) -> Iterable[Script]:
    """As many sessions as asked for, shuffled by the seed; a short trace is not repeated."""
    if options.trace == "claude":
        block_bytes = max(1, round(FULL_BLOCK_BYTES * options.scale_tokens))
        found = [
            Script(session.id, len(session.turns), partial(session_asks, session, block_bytes))
            for session in claude_sessions()
        ]
    else:
        found = [
            Script(chat.id, _replies(chat), partial(chat_asks, chat, _CHAT_THINK))
            for chat in recorded_chats({"swe": "swe_agent", "tau": "tau_airline"}[options.trace])
        ]
    found.sort(key=lambda script: mix(options.seed, script.id))
    return found[: options.sessions]


def _replies(chat: Chat) -> int:
    return sum(message["role"] == "assistant" for message in chat.messages)


def _arguments() -> argparse.ArgumentParser:
    default = ReplayOptions()
    parser = argparse.ArgumentParser(prog="python -m bench.replay", description="Replay recorded agent sessions.")
    add = parser.add_argument
    add("--url", default=default.url)
    add("--trace", choices=("claude", "swe", "tau"), default=default.trace)
    add("--sessions", type=int, default=default.sessions)
    add("--concurrency", type=int, default=default.concurrency, help="lanes (%(default)s)")
    add("--time-scale", type=float, default=default.time_scale, help="as the fleet's")
    add("--header", choices=_HEADERS, default=default.header, help="session header to send (%(default)s)")
    add("--max-turns", type=int, default=default.max_turns, help="per session; 0 = all")
    add("--max-think", type=float, default=default.max_think, help="seconds of the engines' clock")
    add("--scale-tokens", type=float, default=default.scale_tokens, help="shrink every context, e.g. 0.1")
    add("--warm-up", type=float, default=default.warm_up, help="wall seconds that are not counted")
    add("--duration", type=float, default=default.duration, help="wall seconds; 0 = until all is played")
    add("--join-midway", action="store_true", help="enter each lane's first session at 25-75 %% of its turns")
    add("--model", default=default.model)
    add("--seed", type=int, default=default.seed)
    add("--json", default="", help="write the figures to this file")
    return parser


async def _main(options: ReplayOptions, run: Run) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, run.stop.set)
    with progress_for(Console(stderr=True), "replay") as progress:
        await replay(options, run, progress)


def main(argv: Sequence[str] | None = None) -> int:
    given = vars(_arguments().parse_args(argv))
    json_path = given.pop("json")
    options, run = ReplayOptions(**given), Run()
    try:
        asyncio.run(_main(options, run))
    except OSError as error:
        print(f"bench.replay: {error}", file=sys.stderr)
        return 1
    result = run.figures()
    show(Console(), {options.trace: result}, f"{options.url}, times on the engines' clock")
    for replica, count in result.per_replica.items():
        print(f"  {replica}: {count}")
    if run.first_error:
        print(f"first error: {run.first_error}", file=sys.stderr)
    if json_path:
        with open(json_path, "w") as out:
            json.dump(asdict(options) | asdict(result), out, indent=2)
    return 1 if run.errors or not run.samples else 0


if __name__ == "__main__":
    sys.exit(main())
