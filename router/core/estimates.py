"""What replies teach: bytes per token of each model, prefill rate of each replica. Bounded, robust, no history kept."""

from router.core.bounded import Generations

_MODELS = 1024  # distinct models that a client can make us remember
_BYTES_PER_TOKEN = (0.25, 64.0)  # outside of this a sample is an image, an error or a lie
_RATE = (1.0, 10_000_000.0)  # tokens per second


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


def prefill_rate(estimate: float, tokens: int, seconds: float) -> float:
    """The next estimate of a replica's prefill rate after `tokens` uncached ones took `seconds` to the first byte.

    The time holds queueing and the first decode step too, so a sample is a lower bound: believe
    faster ones sooner than slower ones.
    """
    if seconds <= 0:
        return estimate
    sample = tokens / seconds
    if not _RATE[0] <= sample <= _RATE[1]:
        return estimate
    return nudge(estimate, sample, up=0.15, down=0.05)
