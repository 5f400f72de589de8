"""What replies teach: bytes per token of each model, prefill rate of each replica. Bounded, robust, no history kept."""

from router.core.bounded import Generations

_MODELS = 1024  # distinct models that a client can make us remember
_BYTES_PER_TOKEN = (0.25, 64.0)  # outside of this a sample is an image, an error or a lie
_SLOWEST = 1.0  # tokens per second; nothing divides by zero
_SPAN_SECONDS = 30.0  # of work measured at once, at least
_SPAN_QUEUES = 4.0  # what was done over what was owed at its ends: the two bounds are then within a quarter
_TRUST_SECONDS = 10.0  # of work that may move the estimate by half a step: shorter spans are mostly overhead
_SAG = 0.01  # of the rate: thirty replies that had to share outweigh one that had the engine to itself
_REUSE_STEP = 0.002  # five hundred requests: a hundred agents that begin at once do not look like one-off questions
_STEP = 0.3  # of the rate: one reply whose prompt was cached against expectation cannot throw it
_STEP_DOWN = 0.1  # likewise; prompts that were lost against expectation come in dozens, and look like a slow engine
_BUSY_TOKENS = 2048  # owed: less than that times the overhead of a request, not prefill


def nudge(estimate: float, sample: float, up: float = 0.1, down: float = 0.1) -> float:
    """Move towards the sample by at most a share of the estimate.

    A stochastic quantile: with equal steps the median, which one wild sample cannot throw; with
    `up > down` a higher one.
    """
    return min(max(sample, estimate * (1 - down)), estimate * (1 + up))


class Estimates:
    """Learned from replies, seeded by settings."""

    def __init__(self, bytes_per_token: float) -> None:
        self._seed = bytes_per_token
        self._bytes_per_token: Generations[str, float] = Generations(_MODELS)
        self.reuse = 1.0  # share of prompts that was sent before, here or elsewhere: what sessions are worth

    def bytes_per_token(self, model: str) -> float:
        return self._bytes_per_token.peek(model) or self._seed

    def tokens(self, model: str, size: int) -> int:
        return int(size / self.bytes_per_token(model))

    def repeated(self, known: int, tokens: int) -> None:
        """A prompt of so many tokens came, and `known` of them were in an earlier one."""
        if tokens > 0:
            self.reuse += _REUSE_STEP * (min(known / tokens, 1.0) - self.reuse)

    def prompt(self, model: str, size: int, tokens: int) -> None:
        """A reply counted the prompt: `size` bytes were `tokens` tokens."""
        if tokens <= 0 or size <= 0:
            return
        sample = size / tokens
        if _BYTES_PER_TOKEN[0] <= sample <= _BYTES_PER_TOKEN[1]:
            self._bytes_per_token.put(model, nudge(self.bytes_per_token(model), sample))


class PrefillMeter:
    """Prefill rate of one replica, from bounds that hold whatever order the engine works in.

    While enough is owed, the engine computed at least what was answered less what was owed at first, and at most
    what was answered and what is still owed. A rate between the two is not corrected: with a long queue shared out by
    chunks nothing is answered for minutes, and that says nothing. A single request's tokens over its time to first
    token would say less: a short one overtakes the whole queue and a long one pays for those that came later.
    """

    __slots__ = ("_done", "_learned_at", "_lost", "_owed", "_owed_first", "_rate", "_since", "_span")

    def __init__(self, seed: float) -> None:
        self._rate = seed
        self._owed = 0
        self._since: float | None = None  # when this span of work began; None = too little is owed
        self._learned_at = 0.0
        self._owed_first = 0
        self._span = 0
        self._done = 0
        self._lost = 0

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return max(self._rate, _SLOWEST)

    def owes(self, tokens: int, now: float, *, alone: bool = True) -> None:
        """The queue changed to this many uncached tokens. Not `alone`: the engine worked for others too meanwhile."""
        before, self._owed = self._owed, tokens
        if not alone:
            self._since = None
            return
        if self._since is None:
            if tokens >= _BUSY_TOKENS:
                self._begin(before, now)
            return
        self._learn(now - self._since, now - self._learned_at)
        self._learned_at = now
        if tokens < _BUSY_TOKENS:
            self._since = None
        elif self._is_told(now - self._since):
            self._begin(tokens, now)

    def computed(self, tokens: int) -> int:
        """So much of a prompt was computed. Returns the span of work that it counts in, for a later correction."""
        self._done += tokens
        return self._span

    def corrected(self, tokens: int, span: int) -> None:
        """The reply told: so much more was computed than was believed, negative for less."""
        if span == self._span:
            self._done += tokens

    def abandoned(self, tokens: int) -> None:
        """A request left the queue unanswered: any part of it may have been computed."""
        self._lost += tokens

    def proved(self, tokens: int, seconds: float, *, alone: bool = True) -> None:
        """A reply says that so many tokens of its prompt were computed within its time to first token.

        A lower bound; among others' requests, where there is nothing better, a high quantile of it is the estimate.
        """
        if seconds <= 0 or (alone and tokens <= self._rate * seconds):
            return
        trust = seconds / (seconds + _TRUST_SECONDS)
        self._rate = nudge(self._rate, tokens / seconds, _STEP * trust, _SAG * trust)

    def _begin(self, owed: int, now: float) -> None:
        self._since = self._learned_at = now
        self._owed_first, self._done, self._lost = owed, 0, 0
        self._span += 1

    def _is_told(self, seconds: float) -> bool:
        """The span is long, and what is owed at its ends no longer matters: a new one sees a change of speed sooner."""
        return seconds >= _SPAN_SECONDS and self._done >= _SPAN_QUEUES * (self._owed_first + self._lost + self._owed)

    def _learn(self, seconds: float, fresh: float) -> None:
        """`fresh` of the span's seconds passed since the last look."""
        if fresh <= 0:
            return
        least = (self._done - self._owed_first) / seconds
        most = max(self._done + self._lost + self._owed, 0) / seconds
        trust = fresh / (fresh + _TRUST_SECONDS)
        self._rate = nudge(self._rate, min(max(self._rate, least), most), _STEP * trust, _STEP_DOWN * trust)
