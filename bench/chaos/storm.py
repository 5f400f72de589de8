"""What happens meanwhile: replicas change their mood, die, restart, lose connections, leave the file and return."""

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from random import Random

from bench.chaos.replica import MOODS, Replica

_GAP = (0.1, 0.9)  # seconds between two events: each of a dozen replicas is hit every few seconds
_DEAD = (0.1, 3.0)  # seconds


class Storm:
    """Acts on the replicas given to it; `calm()` gives everybody back in good health."""

    def __init__(self, everybody: list[Replica], touched: list[Replica], file: Path, chance: Random) -> None:
        self._everybody, self._touched = everybody, touched
        self._file, self._chance = file, chance
        self._away: set[int] = set()  # ports not in the file
        self._returns: set[asyncio.Task[None]] = set()
        self.events: dict[str, int] = {}

    def write(self) -> None:
        lines = [f"- url: http://{each.id}\n" for each in self._everybody if each.port not in self._away]
        temporary = self._file.with_suffix(".new")
        temporary.write_text("".join(lines) or "[]\n")
        temporary.replace(self._file)

    async def rage(self) -> None:
        while True:
            await asyncio.sleep(self._chance.uniform(*_GAP))
            event = self._chance.choice(("mood", "mood", "mood", "well", "restart", "die", "drop", "flap"))
            self.events[event] = self.events.get(event, 0) + 1
            await self._happen(event, self._chance.choice(self._touched))

    async def _happen(self, event: str, replica: Replica) -> None:
        if event == "mood":
            replica.mood = self._chance.choice(list(MOODS))
        elif event == "well":
            replica.mood = "well"
        elif event == "drop":
            await replica.drop_connections()
        elif event == "flap" and replica.port not in self._away:
            self._away.add(replica.port)
            self.write()
            self._later(self._return(replica, self._chance.uniform(0.2, 4.0)))
        elif event in ("restart", "die") and not replica.asleep:
            await replica.die()
            self._later(self._wake(replica, 0.0 if event == "restart" else self._chance.uniform(*_DEAD)))

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._returns.add(task)
        task.add_done_callback(self._returns.discard)

    async def _wake(self, replica: Replica, after: float) -> None:
        await asyncio.sleep(after)
        while replica.asleep:
            with contextlib.suppress(OSError):  # its port is taken for a moment
                await replica.start()
                return
            await asyncio.sleep(0.1)

    async def _return(self, replica: Replica, after: float) -> None:
        await asyncio.sleep(after)
        self._away.discard(replica.port)
        self.write()

    async def calm(self) -> None:
        for task in tuple(self._returns):
            task.cancel()
        await asyncio.gather(*self._returns, return_exceptions=True)
        self._away.clear()
        self.write()
        for replica in self._everybody:
            replica.mood = "well"
            await self._wake(replica, 0.0)
