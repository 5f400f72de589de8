"""The only feeder of Fleet: discovery says who is there, probes and scrapes say how they are.

Law: every replica is watched on its own (watcher.py), and its tasks end when it leaves.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing

import httpx

from router.core.fleet import Fleet
from router.core.replica import Load, Replica, State
from router.discovery import Source, merged
from router.engines.models import Entry, union
from router.watcher import Watcher, WatchOptions, api_key, control_client

__all__ = ["Watch", "WatchOptions", "api_key", "control_client"]

_log = logging.getLogger(__name__)


def _ignore(load: Load) -> None:
    pass


class Watch:
    """Keeps the fleet true until it is closed.

    `added` and `removed` are told of every load without an await after the fleet itself changed, `removed` first.
    """

    def __init__(
        self,
        fleet: Fleet,
        sources: Sequence[Source],
        client: httpx.AsyncClient,
        options: WatchOptions | None = None,
        *,
        added: Callable[[Load], None] = _ignore,
        removed: Callable[[Load], None] = _ignore,
    ) -> None:
        self._fleet, self._sources, self._client = fleet, tuple(sources), client
        self._options = options or WatchOptions()
        self._added, self._removed = added, removed
        self._watchers: dict[Load, tuple[Watcher, asyncio.Task[None]]] = {}
        self._first_set = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def start(self, patience: float = 5.0) -> None:
        """Run in the background; return once the first set is in the fleet, or after `patience` seconds.

        Raises SourceError if a source needs the operator.
        """
        self._running = asyncio.create_task(self.run())
        first = asyncio.create_task(self._first_set.wait())
        await asyncio.wait({self._running, first}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        first.cancel()
        if self._running.done():
            self._running.result()

    async def run(self) -> None:
        """Watch until cancelled. Raises SourceError if a source needs the operator, at the start only."""
        self._running = asyncio.current_task()
        try:
            async with aclosing(merged(self._sources)) as sets:
                async for replicas in sets:
                    await self._apply(replicas)
                    self._first_set.set()
        finally:
            await _ended(self._cancel(tuple(self._watchers)))

    async def aclose(self) -> None:
        """End every task. The client stays open: it is the caller's."""
        if self._running is not None and self._running is not asyncio.current_task():
            self._running.cancel()
            await _ended([self._running])

    def models(self) -> list[Entry]:
        """The model objects of all live replicas, one per id, sorted; the last known ones while nobody is live."""
        watchers = sorted((watcher for watcher, _ in self._watchers.values()), key=lambda watcher: watcher.load.id)
        live = [watcher for watcher in watchers if watcher.load.state in (State.UP, State.COOLING)]
        return union(watcher.listed for watcher in (live or watchers))

    async def _apply(self, replicas: Sequence[Replica]) -> None:
        added, removed = self._fleet.update(replicas)
        cancelled = self._cancel(removed)
        for load in removed:
            _log.info("replica %s left", load.id)
            _tell(self._removed, load)
        for load in added:
            _log.info("replica %s found at %s", load.id, load.replica.url)
            _tell(self._added, load)
            watcher = Watcher(load, self._fleet, self._client, self._options)
            self._watchers[load] = watcher, asyncio.create_task(watcher.run(), name=f"watch {load.id}")
        await _ended(cancelled)

    def _cancel(self, loads: Iterable[Load]) -> list["asyncio.Task[None]"]:
        tasks = [self._watchers.pop(load)[1] for load in loads if load in self._watchers]
        for task in tasks:
            task.cancel()
        return tasks


async def _ended(tasks: Sequence["asyncio.Task[None]"]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


def _tell(callback: Callable[[Load], None], load: Load) -> None:
    try:
        callback(load)
    except Exception:
        _log.exception("replica %s: a listener failed", load.id)
