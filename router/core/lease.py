"""A place on a replica, held while its request runs: until the last byte or the abort, not shorter, not longer."""

from types import TracebackType
from typing import TYPE_CHECKING, Self

from router.core.admission import kind_of
from router.core.affinity import Binding, Found
from router.core.health import Fault, answering, blame, succeeded
from router.core.home import repeated
from router.core.replica import Load
from router.core.request import Request, Usage

if TYPE_CHECKING:
    from router.core.fleet import Fleet

_MISS = 0.5  # of what home should have held: below this the engine has lost the session, not a block or two
_COLD = 0.1  # below this nothing of the session is left: a system prompt that others share is not it
_GROWN = 0.9  # of the last context: a shorter prompt is a sub-agent's or a compacted one, and proves nothing
_MISS_TOKENS = 2048  # an expectation smaller than this proves nothing


class Lease:
    """Use as a context manager. Closing is idempotent and gives back to the very load it was taken from."""

    __slots__ = (
        "_answered", "_before", "_binding", "_expected", "_first", "_fleet", "_found", "_is_context", "_opened_at",
        "_prompt", "_queued", "_request", "_span", "_uncached", "_waited", "closed", "load",
    )  # fmt: skip

    def __init__(self, fleet: "Fleet", load: Load, request: Request, found: Found, prompt: int, expected: int) -> None:
        self.load = load
        self.closed = False
        self._fleet, self._request, self._found = fleet, request, found
        self._prompt, self._expected = prompt, expected
        self._binding: Binding | None = None
        self._queued = max(prompt - expected, 0)
        load.inflight += 1
        load.dispatched_since_scrape += 1
        load.sent_tokens += prompt
        self._uncached = self._queued
        self._owe(self._queued)
        self._answered = False
        self._opened_at = fleet.now()
        self._waited = 0.0  # seconds until the first byte
        self._span = 0  # of the meter's
        self._before = 0 if found.fork or found.binding is None else found.binding.context
        self._is_context = True  # no other thread of the session has a larger one
        self._first = bool(found.session) and (found.binding is None or found.fork)
        self._take_place()
        if self._first:  # a provisional binding: other first turns of this session follow it
            fleet.pending.setdefault(found.session, []).append(load)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def first_byte(self) -> None:
        """A success began to answer: the prompt is computed, and cached there."""
        fleet, load = self._fleet, self.load
        self._answered = True
        fleet.estimates.repeated(repeated(fleet, self._request, self._found, self._prompt), self._prompt)
        self._waited = fleet.now() - self._opened_at
        if load.meter is not None:
            self._span = load.meter.computed(self._queued)
        self._leave_queue()
        before = load.state
        answering(load, fleet.now())
        if load.state is not before:
            fleet.changed()
        if fleet.loads.get(load.id) is load:
            self._binding = fleet.bind(load, self._request, self._found, self._prompt)
            self._is_context = self._binding is None or self._binding.context == self._prompt

    def settle(self, usage: Usage | None) -> None:
        """A success ended; `usage` is what the engine says of it. The truth corrects the prediction."""
        binding = self._binding
        succeeded(self.load)
        if usage is None:
            return
        self._correct(usage)
        fleet, request = self._fleet, self._request
        if usage.prompt_tokens is not None and not request.response_id:
            fleet.estimates.prompt(request.model, request.prompt_bytes, usage.prompt_tokens)
        self._hit(usage)
        if binding is None or binding.replica != self.load.id:
            return
        if usage.response_id:
            fleet.affinity.answered(usage.response_id, binding)
        if usage.cached_tokens is not None and self._expected >= _MISS_TOKENS and self._goes_on():
            binding.misses = binding.misses + 1 if usage.cached_tokens < _MISS * self._expected else 0
            fleet.answered(self.load, binding, cold=usage.cached_tokens < _COLD * self._expected)
        binding.seen = fleet.now()
        binding.kind = kind_of(usage.finish)
        if usage.prompt_tokens is not None:
            context = usage.prompt_tokens + (usage.completion_tokens or 0)
            context = context if self._is_context else max(context, binding.context)
            fleet.bound.count(binding, context, fleet.loads)
            if fleet.admission is not None:
                fleet.admission.resize(binding.session, self.load, context)

    def _goes_on(self) -> bool:
        """Whether the prompt extends the session's last one. By its links, or where there are none by its length."""
        return bool(self._request.chain) or self._prompt >= _GROWN * self._before

    def _hit(self, usage: Usage) -> None:
        if not usage.prompt_tokens or usage.cached_tokens is None:
            return
        ratio = min(usage.cached_tokens / usage.prompt_tokens, 1.0)
        before = self.load.hit_ratio
        self.load.hit_ratio = ratio if before is None else before + 0.05 * (ratio - before)

    def blame(self, fault: Fault, retry_after: float | None = None) -> None:
        """The replica failed this request or pushed it back."""
        fleet, before = self._fleet, self.load.state
        blame(self.load, fault, fleet.now(), fleet.options.health, retry_after)
        if self.load.state is not before or fault is Fault.PUSHBACK:
            fleet.changed()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.load.inflight -= 1
        if self.load.meter is not None:
            self.load.meter.abandoned(self._queued)  # nothing, once it was answered
        self._leave_queue()
        self._rest()
        if self._first:
            running = self._fleet.pending[self._found.session]
            running.remove(self.load)
            if not running:
                del self._fleet.pending[self._found.session]

    def _take_place(self) -> None:
        fleet, found = self._fleet, self._found
        now = fleet.now()
        binding = None if found.fork else found.binding
        if fleet.admission is not None and found.session:
            known = binding is not None and not binding.recalled  # what a store says of the last turn is old
            if binding is not None and known and not fleet.admission.running(found.session):
                fleet.admission.came_back(binding.kind, now - binding.seen)
            fleet.admission.enter(found.session, self.load, self._prompt, now)

    def _rest(self) -> None:
        """The session keeps its place if it was served; one that never was has no claim."""
        fleet, found, binding = self._fleet, self._found, self._binding
        if fleet.admission is None or not found.session:
            return
        known = binding or (None if found.fork else found.binding)
        fleet.admission.rest(found.session, self.load, known.kind if known else "unknown", fleet.now())
        if known is None:
            fleet.admission.leave(found.session)

    def _leave_queue(self) -> None:
        if self._queued:
            self._owe(-self._queued)
            self._queued = 0

    def _owe(self, tokens: int) -> None:
        load = self.load
        load.queued_tokens += tokens
        if load.meter is not None:
            load.meter.owes(load.queued_tokens, self._fleet.now(), alone=not load.is_shared)
            load.prefill_rate = load.meter.rate

    def _correct(self, usage: Usage) -> None:
        """The first byte was taken as proof of the uncached tokens that were expected; the engine knows better."""
        known = usage.prompt_tokens is not None and usage.cached_tokens is not None
        if known and self._answered and self.load.meter is not None:
            real = max((usage.prompt_tokens or 0) - (usage.cached_tokens or 0), 0)
            self.load.meter.corrected(real - self._uncached, self._span)
            self.load.meter.proved(real, self._waited, alone=not self.load.is_shared)
