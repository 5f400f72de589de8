"""A replica whose behaviour is drawn anew for every request from its mood: well, slow, busy, broken or a liar.

What it answers proves who it answered: the nonce and a digest of the body it got are in every answer that it means.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from bench.chaos import misdeeds
from bench.chaos.misdeeds import Call

# Weights of what is done to a request. A mood is what an operator would call the state of a replica.
MOODS: Mapping[str, Mapping[str, int]] = {
    "well": {"well": 1},
    "slow_but_sure": {"slow": 1},
    "slow": {"well": 2, "slow": 3, "stall_before": 1, "stall_inside": 1},
    "busy": {"well": 1, "busy": 3, "limit": 1},
    "broken": {"error_500": 3, "error_502": 1, "reset_before": 1, "well": 1},
    "breaking": {"well": 2, "reset_inside": 2, "close_inside": 2, "failed_event": 1, "short": 1},
    "garbled": {"well": 1, "garbage": 1, "bad_chunk": 1, "long": 1, "twice": 1, "until_close": 1, "odd_status": 1},
    "lying": {"well": 4, "reset_after": 1, "early": 1},
}


@dataclass(slots=True)
class Replica:
    """`await start()`; `die()` and `await start()` again is a restart with an empty cache at the same address."""

    chance: Random
    kv_tokens: int
    patient: float  # seconds: how long a stall lasts at most
    mood: str = "well"
    port: int = 0
    held: dict[str, int] = field(default_factory=dict)  # tokens by session
    in_use: int = 0  # tokens
    queries: float = 0.0
    hits: float = 0.0
    running: int = 0
    born: float = 0.0
    served: int = 0
    asleep: bool = True
    _server: asyncio.Server | None = None
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set)

    @property
    def id(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """OSError if its port was taken meanwhile."""
        self.held.clear()
        self.in_use = 0
        self.queries = self.hits = 0.0
        self.born = time.time()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]
        self.asleep = False

    async def die(self) -> None:
        """As kill -9: nobody listens, every connection is reset."""
        if self._server is None:
            return
        self.asleep = True
        self._server.close()
        self._server = None
        await self.drop_connections()

    async def drop_connections(self) -> None:
        """Idle ones and those in the middle of an answer."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one(reader, writer):
                if self.chance.random() < 0.02:  # a keep-alive that ends when the replica likes
                    break
            writer.close()
        except asyncio.CancelledError:
            misdeeds.reset(writer)
            raise
        except (OSError, EOFError, ValueError, RuntimeError, asyncio.LimitOverrunError):
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        raw = await reader.readuntil(b"\r\n\r\n")
        line, *lines = raw[:-4].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
        method, target, _ = line.split(" ")
        if "x-nonce" not in headers:
            return await self._own(target, writer)
        deed = self._draw()
        call = Call(method, target, headers, reader, writer, self.chance, self.patient)
        self.running += 1
        try:
            if deed == "early":
                return await misdeeds.early(call)
            await call.read_body()
            self._think(call)
            self.served += 1
            lives_on: bool = await getattr(misdeeds, deed)(call)
            return lives_on
        finally:
            self.running -= 1

    def _draw(self) -> str:
        deeds = MOODS[self.mood]
        return self.chance.choices(list(deeds), list(deeds.values()))[0]

    def _think(self, call: Call) -> None:
        """What of this prompt was cached here."""
        session = call.headers["x-nonce"].rpartition(".")[0]
        tokens = len(call.body) // 4
        cached = min(self.held.get(session, 0), tokens)
        self._hold(session, tokens)
        self.queries += tokens
        self.hits += cached
        call.usage = (tokens, cached)
        if self.mood == "lying":
            call.usage = (self.chance.randrange(10**6), self.chance.randrange(10**6))

    def _hold(self, session: str, tokens: int) -> None:
        """Least recently used out first, as engines do."""
        self.in_use += tokens - self.held.pop(session, 0)
        self.held[session] = tokens
        while self.in_use > self.kv_tokens:
            oldest = next(iter(self.held))
            self.in_use -= self.held.pop(oldest)

    # What the router itself asks

    async def _own(self, target: str, writer: asyncio.StreamWriter) -> bool:
        if self.mood in ("broken", "garbled", "slow") and self.chance.random() < 0.4:
            return await self._misanswer(writer)
        body, status = b"", 200
        if target == "/metrics":
            body = self._lies() if self.mood == "lying" else self._page()
        elif target == "/v1/models":
            body = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
        elif target != "/health":
            status = 404
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
        await writer.drain()
        return True

    async def _misanswer(self, writer: asyncio.StreamWriter) -> bool:
        if self.mood == "slow":
            await asyncio.sleep(self.chance.random() * self.patient)
            return False
        writer.write(misdeeds.noise(self.chance) if self.mood == "garbled" else b"HTTP/1.1 500 X\r\n\r\n")
        await writer.drain()
        return False

    def _page(self) -> bytes:
        used = self.in_use / self.kv_tokens
        return metrics_page(self.running, 0, used, self.kv_tokens, self.queries, self.hits, self.born)

    def _lies(self) -> bytes:
        chance = self.chance
        kind = chance.randrange(4)
        if kind == 0:
            return misdeeds.noise(chance)
        if kind == 1:
            return b"vllm:num_requests_running NaN\nvllm:num_requests_waiting -5\nvllm:kv_cache_usage_perc +Inf\n"
        if kind == 2:  # a clock and counters that jump
            return metrics_page(0, 0, 0.0, 1, chance.random() * 1e9, 0, chance.random() * 1e9)
        return metrics_page(10**9, 10**9, 1e9, chance.randrange(1, 10**12), 0, 0, self.born)


def metrics_page(
    running: float, waiting: float, used: float, kv_tokens: int, queries: float, hits: float, born: float
) -> bytes:
    """As vLLM shows it."""
    return (
        f'vllm:num_requests_running{{engine="0"}} {running}\nvllm:num_requests_waiting{{engine="0"}} {waiting}\n'
        f'vllm:kv_cache_usage_perc{{engine="0"}} {used}\n'
        f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{kv_tokens // 16}",engine="0"}} 1.0\n'
        f'vllm:prefix_cache_queries_total{{engine="0"}} {queries}\n'
        f'vllm:prefix_cache_hits_total{{engine="0"}} {hits}\nprocess_start_time_seconds {born}\n'
    ).encode()
