"""How many retries a fleet in trouble may cost: a share of the requests, never a multiple of them."""


class RetryBudget:
    """A token bucket filled by requests, so a burst of failures cannot double the load on what is left."""

    def __init__(self, ratio: float, reserve: float = 10.0) -> None:
        # The reserve lets a quiet router retry at all, and bounds what it can save up.
        self._ratio, self._reserve = ratio, reserve
        self._tokens = reserve if ratio > 0 else 0.0

    def deposit(self) -> None:
        """One request came in."""
        self._tokens = min(self._tokens + self._ratio, self._reserve)

    def withdraw(self) -> bool:
        """Whether one retry is allowed; it is spent if so."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
