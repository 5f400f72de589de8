"""What a store is: bindings that outlive this process or reach beyond it, kept off the path of requests.

Law: nobody waits for a store except the one who asks it, and that one only as long as it likes. A store never raises
at its users and never blocks the loop: what is wrong with it is logged when it begins and when it ends, and counted.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from router.core.placed import Placed


class Listener(Protocol):
    """Who is told what a store has to say, on the loop, at any time after the start."""

    def loaded(self, those: Sequence[Placed]) -> None:
        """A piece of what it keeps, least recently seen first."""

    def overruled(self, stands: Placed) -> None:
        """This row stands against what was published."""

    def emptied(self) -> None:
        """It is new or has lost everything: what is still true must be published again."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What is worth keeping."""

    life_seconds: float = 86_400.0  # a session that was silent for a day has lost its cache anyway
    sessions: int = 200_000  # as many as a router remembers by itself


class Store(Protocol):
    """All calls come from one event loop. A row is found by its session's key and by its `tail`."""

    @property
    def is_up(self) -> bool:
        """False while it cannot read or write. For people, metrics, and whoever places differently then."""

    async def start(self, listener: Listener) -> None:
        """Begin. Returns when what it keeps has been handed over, when it is in trouble, or after a few seconds."""

    def lookup(self, keys: Sequence[int]) -> "asyncio.Future[Placed | None]":
        """The row that the first of these keys leads to; None for all troubles. May be abandoned or cancelled."""

    def publish(self, placed: Placed, before: str) -> None:
        """Write soon: only if the row is still at `before` ("" = there is none), at the same replica, or outlived.

        Returns at once. The queue is bounded, a newer word on a session replaces the one that waits, and when it is
        full the oldest is dropped.
        """

    async def close(self) -> None:
        """Write what waits, for a second or two at most, and end."""
