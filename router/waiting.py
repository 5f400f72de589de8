"""The waiting room: requests that admission holds, first come, first served.

Law: one is called at a time, the first; whoever leaves, served, refused or hung up, calls the next.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType
from typing import Self

TICK_SECONDS = 1.0  # room is also made by time alone: sessions fall idle, scrapes come in


class WaitingRoom:
    """`told` hears since when the first in line waits, None where nobody does."""

    def __init__(self, clock: Callable[[], float], told: Callable[[float | None], None]) -> None:
        self._now, self._told = clock, told
        self._line: OrderedDict[Ticket, None] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._line)

    def ticket(self) -> "Ticket":
        """A place at the end of the line, for as long as the context lasts."""
        return Ticket(self, self._now())

    def room_made(self) -> None:
        """Something ended: the first in line may try."""
        first = next(iter(self._line), None)
        if first is not None:
            first.call()

    def enter(self, ticket: "Ticket") -> None:
        self._line[ticket] = None
        self._tell()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def leave(self, ticket: "Ticket") -> None:
        del self._line[ticket]
        self._tell()
        self.room_made()

    def _tell(self) -> None:
        first = next(iter(self._line), None)
        self._told(first.since if first is not None else None)

    def _tick(self) -> None:
        self._timer = None
        if self._line:
            self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)
            self.room_made()


class Ticket:
    """One request's place in line."""

    def __init__(self, room: WaitingRoom, since: float) -> None:
        self.since = since
        self._room = room
        self._called = asyncio.Event()

    def __enter__(self) -> Self:
        self._room.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._room.leave(self)

    def call(self) -> None:
        self._called.set()

    async def called(self) -> None:
        """Until it is first in line and room may have been made."""
        await self._called.wait()
        self._called.clear()
