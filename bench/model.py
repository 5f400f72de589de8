"""One inference engine as arithmetic: prefix cache, KV room, chunked prefill, decode by batch size.

No I/O and no clock: time is an argument in seconds and never goes back. What it leaves out: prefill does not
slow decode, output blocks are not cached (the next prompt brings them), and a request holds room for its whole
output from the start, so nothing is ever preempted: it waits.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from bench.blocks import BlockCache, Span
from router.core.replica import Signals


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What one replica can do. The seeds are of a large model on one node; every study should say its own."""

    kv_blocks: int = 16_384  # about a million tokens of 64 each
    block_tokens: int = 64  # the block size of the recorded traces
    max_running: int = 256  # vLLM's default
    prefill_rate: float = 8_000.0  # uncached tokens per second: a 104K context costs 13 s
    quantum_tokens: int = (
        2_048  # vLLM's chunk; shared round robin among prefilling requests; 0 = first come, first served
    )
    tpot_base: float = 0.012  # seconds per output token of a lone request
    tpot_slope: float = 0.000_25  # and for each further one in the batch

    def tpot(self, batch: int) -> float:
        """Seconds per output token when `batch` requests decode together."""
        return self.tpot_base + self.tpot_slope * batch


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One request: the ids of its full prompt blocks, its sizes in tokens. Compared by identity."""

    blocks: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int


class Stage(StrEnum):
    FIRST_TOKEN = "first_token"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Event:
    at: float
    stage: Stage
    job: Job
    cached_tokens: int


@dataclass(slots=True, eq=False)
class _Run:
    """A job that holds room."""

    job: Job
    leaf: Span
    loose: int
    cached_tokens: int
    left: int  # prompt tokens still to compute
    since: float = 0.0  # what `_decoded` stood at when its first token came
    target: float = 0.0  # and where it will stand when its last one comes
    alive: bool = True


@dataclass(order=True, slots=True)
class _Finish:
    target: float
    order: int
    run: _Run = field(compare=False)


class Engine:
    """A replica in virtual time. `advance` answers what happened; between events nothing changes."""

    def __init__(self, options: EngineOptions, now: float = 0.0) -> None:
        self.options = options
        self._out: list[Event] = []
        self._begin(now)

    def _begin(self, now: float) -> None:
        self._at = now
        self._started_at = now
        self._cache = BlockCache(self.options.kv_blocks)
        self._waiting: deque[Job] = deque()
        self._runs: dict[Job, _Run] = {}
        self._prefilling: deque[_Run] = deque()  # the first one has the engine
        self._slice_ends = inf
        self._slice_tokens = 0
        self._decoding: list[_Finish] = []  # heap
        self._batch = 0
        self._decoded = 0.0  # tokens that a request decoding since the start would have made
        self._order = 0
        self._queries = 0
        self._hits = 0

    def submit(self, now: float, job: Job) -> None:
        """Queue a job. ValueError if it could not run even on an empty engine."""
        if len(job.blocks) + self._loose(job) > self.options.kv_blocks:
            raise ValueError(f"{job.prompt_tokens} + {job.output_tokens} tokens exceed the KV cache")
        self._catch_up(now)
        self._waiting.append(job)
        self._admit()

    def cancel(self, now: float, job: Job) -> None:
        """The client is gone: free the slot. A job that is not here any more is no error."""
        self._catch_up(now)
        run = self._runs.pop(job, None)
        if run is None:
            self._waiting = deque(other for other in self._waiting if other is not job)
        else:
            self._drop(run)
        self._admit()

    def advance(self, to: float) -> list[Event]:
        """Everything that happened up to `to` since the last call, oldest first."""
        self._catch_up(to)
        events, self._out = self._out, []
        return events

    def next_event(self) -> float:
        """When something happens next, if nobody submits anything; inf if never."""
        return min(self._slice_ends, self._decode_ends()) if not self._out else self._at

    def produced(self, job: Job) -> int:
        """Output tokens of a running job so far."""
        run = self._runs.get(job)
        if run is None or run.target == 0.0:
            return 0
        return min(job.output_tokens, 1 + int(self._decoded - run.since))

    def cached_tokens(self, job: Job) -> int:
        """How many tokens of this prompt the cache holds now."""
        return self._usable(job, self._cache.match(job.blocks))

    def signals(self) -> Signals:
        """What a scrape would find. Like real engines, usage leaves out what could be evicted."""
        size = self.options.block_tokens
        return Signals(
            running=float(len(self._runs)),
            waiting=float(len(self._waiting)),
            kv_usage=self._cache.held / self.options.kv_blocks,
            kv_capacity_tokens=float(self.options.kv_blocks * size),
            cache_queries=float(self._queries),
            cache_hits=float(self._hits),
            started_at=self._started_at,
        )

    def restart(self, now: float) -> list[Job]:
        """Lose everything, the cache too. The jobs that were cut off."""
        self._catch_up(now)
        lost = [*self._runs, *self._waiting]
        self._begin(now)
        return lost

    def _loose(self, job: Job) -> int:
        """Blocks without an identity: the unfinished last one and the output."""
        size = self.options.block_tokens
        rest = job.prompt_tokens - len(job.blocks) * size + job.output_tokens
        return max(0, -(-rest // size))

    def _usable(self, job: Job, hit_blocks: int) -> int:
        """At least one token is always computed: its logits are what is asked for."""
        size = self.options.block_tokens
        return min(hit_blocks, (job.prompt_tokens - 1) // size) * size

    def _admit(self) -> None:
        while self._waiting and len(self._runs) < self.options.max_running:
            job = self._waiting[0]
            loose = self._loose(job)
            got = self._cache.acquire(job.blocks, loose)
            if got is None:
                return
            self._waiting.popleft()
            leaf, hit = got
            cached = self._usable(job, hit)
            run = _Run(job, leaf, loose, cached, job.prompt_tokens - cached)
            self._runs[job] = run
            self._queries += job.prompt_tokens
            self._hits += cached
            self._prefilling.append(run)
            if len(self._prefilling) == 1:
                self._start_slice()

    def _start_slice(self) -> None:
        if not self._prefilling:
            self._slice_ends = inf
            return
        left = self._prefilling[0].left
        self._slice_tokens = min(left, self.options.quantum_tokens or left)
        self._slice_ends = self._at + self._slice_tokens / self.options.prefill_rate

    def _decode_ends(self) -> float:
        while self._decoding and not self._decoding[0].run.alive:
            heapq.heappop(self._decoding)
        if not self._decoding:
            return inf
        return self._at + max(0.0, self._decoding[0].target - self._decoded) * self.options.tpot(self._batch)

    def _move(self, now: float) -> None:
        if now <= self._at:
            return
        if self._batch:
            self._decoded += (now - self._at) / self.options.tpot(self._batch)
        self._at = now

    def _catch_up(self, to: float) -> None:
        while True:
            decode_ends = self._decode_ends()
            if min(decode_ends, self._slice_ends) > to:
                break
            if decode_ends <= self._slice_ends:
                self._move(decode_ends)
                self._finish(heapq.heappop(self._decoding).run)
            else:
                self._move(self._slice_ends)
                self._end_slice()
        self._move(to)

    def _end_slice(self) -> None:
        run = self._prefilling.popleft()
        run.left -= self._slice_tokens
        if run.left > 0:
            self._prefilling.append(run)
        else:
            self._first_token(run)
        self._start_slice()

    def _first_token(self, run: _Run) -> None:
        self._cache.computed(run.leaf)
        self._out.append(Event(self._at, Stage.FIRST_TOKEN, run.job, run.cached_tokens))
        run.since = self._decoded
        run.target = self._decoded + max(1e-9, run.job.output_tokens - 1)
        self._order += 1
        self._batch += 1
        heapq.heappush(self._decoding, _Finish(run.target, self._order, run))

    def _finish(self, run: _Run) -> None:
        self._decoded = max(self._decoded, run.target)
        self._out.append(Event(self._at, Stage.FINISHED, run.job, run.cached_tokens))
        del self._runs[run.job]
        self._batch -= 1
        self._cache.release(run.leaf, run.loose)
        self._admit()

    def _drop(self, run: _Run) -> None:
        run.alive = False
        self._cache.release(run.leaf, run.loose)
        if run.target > 0.0:
            self._batch -= 1
            return
        had_engine = self._prefilling[0] is run
        self._prefilling.remove(run)
        if had_engine:
            self._start_slice()
