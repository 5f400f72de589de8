"""One simulated replica over HTTP: `bench.model` behind the paths, bodies and metrics of vLLM or SGLang.

The arithmetic decides when tokens come; this module only waits for it and speaks. `time_scale` makes it run
faster than life: every second on the wall is so many in the model.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

import msgspec

from bench.dialect import Answered, Asked, error_body, read_asked, reply_for
from bench.metrics_page import render, sglang_page, split_ranks, vllm_page
from bench.model import Engine, EngineOptions, Event, Job, Stage
from bench.wire import Call, Reply, ServerProtocol


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """How a simulated replica presents itself."""

    engine: EngineOptions = field(default_factory=EngineOptions)
    model: str = "sim"
    flavour: str = "vllm"  # or sglang: only the names on /metrics differ
    time_scale: float = 1.0  # model seconds per second
    max_model_len: int = 1_000_000  # longest recorded context is about 500K tokens
    max_queue: int = 0  # requests waiting beyond which it answers 503; 0 = never, as engines do by default
    report_cached: bool = True  # vLLM needs --enable-prompt-tokens-details for this, SGLang --enable-cache-report
    tokens_per_event: int = 16  # real engines send 1; each event costs CPU on every hop
    ranks: int = 1  # data-parallel ranks that /metrics is split into


@dataclass(slots=True, eq=False)
class _Ticket:
    """A request that waits for its tokens: `news` is set whenever there is something to send."""

    job: Job
    news: asyncio.Event = field(default_factory=asyncio.Event)
    cached_tokens: int = 0
    first: bool = False
    done: bool = False
    lost: bool = False


class Replica:
    """A fake engine: `await start()`, then `url`, then `await stop()`."""

    def __init__(self, options: ReplicaOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self._clock = clock
        self._born = clock()
        self._started_at = time.time()
        self._engine = Engine(options.engine)
        self._tickets: dict[Job, _Ticket] = {}
        self._connections: set[ServerProtocol] = set()
        self._wake = asyncio.Event()
        self.requests = 0
        self.url = ""

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen (0 = any free port) and begin to drive the model. OSError if the port is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: ServerProtocol(self._answer, self._connections), host, port)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://{host}:{port}"
        self._driver = loop.create_task(self._drive())

    async def stop(self) -> None:
        """Close everything at once; streams that are open break off, as when a process is killed."""
        self._driver.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._driver
        self._server.close()
        for connection in list(self._connections):
            connection.transport.abort()
        await self._server.wait_closed()

    def restart(self) -> None:
        """As a crash and a quick restart: the cache is empty, the counters begin again, open streams break off."""
        self._started_at = time.time()
        for job in self._engine.restart(self._now()):
            if ticket := self._tickets.get(job):
                ticket.lost = True
                ticket.news.set()

    def _now(self) -> float:
        return (self._clock() - self._born) * self.options.time_scale

    async def _drive(self) -> None:
        while True:
            self._wake.clear()
            for event in self._engine.advance(self._now()):
                self._tell(event)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._pause())

    def _pause(self) -> float | None:
        """Seconds until the model has news; None if it waits for a request."""
        due = self._engine.next_event()
        return None if due == inf else max(0.0, due - self._now()) / self.options.time_scale

    def _tell(self, event: Event) -> None:
        ticket = self._tickets.get(event.job)
        if ticket is None:
            return
        ticket.cached_tokens = event.cached_tokens
        ticket.first = True
        ticket.done = event.stage is Stage.FINISHED
        ticket.news.set()

    async def _answer(self, call: Call, reply: Reply) -> None:
        if call.method == "GET":
            self._answer_get(call, reply)
        elif call.path in ("/v1/chat/completions", "/v1/completions", "/v1/messages"):
            await self._answer_generate(call, reply)
        elif call.path == "/reset_prefix_cache":
            self.restart()
            reply.whole(200, b"")
        else:
            reply.whole(404, b'{"detail":"Not Found"}')

    def _answer_get(self, call: Call, reply: Reply) -> None:
        if call.path in ("/health", "/ping"):
            reply.whole(200, b"")
        elif call.path == "/v1/models":
            card = {"id": self.options.model, "object": "model", "max_model_len": self.options.max_model_len}
            reply.whole(200, msgspec.json.encode({"object": "list", "data": [card]}))
        elif call.path == "/metrics":
            reply.whole(200, self._metrics().encode(), "text/plain; version=0.0.4; charset=utf-8")
        else:
            reply.whole(404, b'{"detail":"Not Found"}')

    def _metrics(self) -> str:
        self._engine_now()
        options = self.options
        write, rank_label = (sglang_page, "dp_rank") if options.flavour == "sglang" else (vllm_page, "engine")
        lines = []
        for rank, signals in enumerate(split_ranks(self._engine.signals(), options.ranks)):
            labels = f'{rank_label}="{rank}",model_name="{options.model}"'
            lines += write(signals, labels, options.engine.block_tokens, options.engine.kv_blocks // options.ranks)
        return render(lines, self._started_at)

    async def _answer_generate(self, call: Call, reply: Reply) -> None:
        self.requests += 1
        try:
            body = msgspec.json.decode(call.body, type=dict[str, Any])
            asked = read_asked(call.path, body, self.options.engine.block_tokens)
        except (msgspec.DecodeError, ValueError, AttributeError) as error:
            reply.whole(400, error_body(call.path, 400, "BadRequestError", str(error)))
            return
        if refusal := self._refusal(asked):
            status, kind, message = refusal
            reply.whole(status, error_body(call.path, status, kind, message))
            return
        await self._generate(asked, call, reply)

    def _refusal(self, asked: Asked) -> tuple[int, str, str] | None:
        options = self.options
        if asked.model != options.model:
            return 404, "NotFoundError", f"The model `{asked.model}` does not exist."
        limit = min(options.max_model_len, options.engine.kv_blocks * options.engine.block_tokens)
        if asked.prompt.tokens + asked.output_tokens > limit:
            return 400, "BadRequestError", f"This model's maximum context length is {limit} tokens."
        self._engine_now()
        if options.max_queue and (self._engine.signals().waiting or 0) >= options.max_queue:
            return 503, "Service Unavailable", "The engine is currently busy and cannot accept new requests."
        return None

    def _engine_now(self) -> None:
        """Bring the model to the present, so that what it says of itself is true."""
        for event in self._engine.advance(self._now()):
            self._tell(event)

    async def _generate(self, asked: Asked, call: Call, reply: Reply) -> None:
        job = Job(asked.prompt.blocks, asked.prompt.tokens, asked.output_tokens)
        ticket = self._tickets[job] = _Ticket(job)
        gone = asyncio.get_running_loop().create_task(_when_gone(call, ticket))
        try:
            self._engine.submit(self._now(), job)
            self._wake.set()
            await self._send(asked, ticket, call, reply)
        finally:
            gone.cancel()
            del self._tickets[job]
            if not ticket.done:
                self._engine.cancel(self._now(), job)
                self._wake.set()

    async def _send(self, asked: Asked, ticket: _Ticket, call: Call, reply: Reply) -> None:
        writer = reply_for(asked, reply, self.options.report_cached)
        sent = 0
        while not ticket.done:
            await self._news(ticket, sent)
            if call.gone.is_set():
                return
            if ticket.lost:
                reply.break_off()
                return
            if ticket.first and asked.stream and not ticket.done:
                made = max(1, self._engine.produced(ticket.job))
                writer.tokens(Answered(ticket.cached_tokens, made), sent)
                sent = made
        writer.finish(Answered(ticket.cached_tokens, asked.output_tokens), sent)

    async def _news(self, ticket: _Ticket, sent: int) -> None:
        """Wait for the model, or for as long as the next few tokens take."""
        pause = None
        if sent and self.options.tokens_per_event:
            batch = int(self._engine.signals().running or 1)
            pause = self.options.tokens_per_event * self.options.engine.tpot(batch) / self.options.time_scale
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ticket.news.wait(), pause)
        ticket.news.clear()
        self._engine_now()


async def _when_gone(call: Call, ticket: _Ticket) -> None:
    await call.gone.wait()
    ticket.news.set()
