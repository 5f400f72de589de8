"""What replies teach: bytes per token of each model, prefill rate of each replica. Bounded, robust, no history kept."""

from router.core.bounded import Generations

_MODELS = 1024  # distinct models that a client can make us remember
_BYTES_PER_TOKEN = (0.25, 64.0)  # outside of this a sample is an image, an error or a lie
_SLOWEST = 1.0  # tokens per second; nothing divides by zero
_SEED_SECONDS = 10.0  # what the seed weighs: the first minute of work outweighs it
_MEMORY_SECONDS = 120.0  # of work remembered: a replica that slows down is known within minutes
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

    def bytes_per_token(self, model: str) -> float:
        return self._bytes_per_token.peek(model) or self._seed

    def tokens(self, model: str, size: int) -> int:
        return int(size / self.bytes_per_token(model))

    def prompt(self, model: str, size: int, tokens: int) -> None:
        """A reply counted the prompt: `size` bytes were `tokens` tokens."""
        if tokens <= 0 or size <= 0:
            return
        sample = size / tokens
        if _BYTES_PER_TOKEN[0] <= sample <= _BYTES_PER_TOKEN[1]:
            self._bytes_per_token.put(model, nudge(self.bytes_per_token(model), sample))


class PrefillMeter:
    """Prefill rate of one replica: uncached tokens computed, over the time in which enough of them were owed.

    That quotient holds whatever order the engine works in. A single request's tokens over its time to
    first token does not: engines share prefill among requests, so a short one overtakes the whole queue
    and a long one pays for those that came later.
    """

    __slots__ = ("_busy_since", "_seconds", "_tokens")

    def __init__(self, seed: float) -> None:
        self._seconds = _SEED_SECONDS
        self._tokens = seed * _SEED_SECONDS
        self._busy_since: float | None = None

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return max(self._tokens / self._seconds, _SLOWEST)

    @property
    def busy(self) -> bool:
        return self._busy_since is not None

    def owes(self, tokens: int, now: float) -> None:
        """The queue changed to this many uncached tokens."""
        if self._busy_since is not None:
            self._elapsed(now - self._busy_since)
        self._busy_since = now if tokens >= _BUSY_TOKENS else None

    def computed(self, tokens: int) -> None:
        """So much of a prompt was computed; negative takes back what was believed before the reply told."""
        self._tokens = max(self._tokens + tokens, 0.0)

    def _elapsed(self, seconds: float) -> None:
        keep = _MEMORY_SECONDS / (_MEMORY_SECONDS + seconds)
        self._seconds = self._seconds * keep + seconds
        self._tokens *= keep
