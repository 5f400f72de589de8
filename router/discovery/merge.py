"""Several sources as one. Each runs on its own: one that crashes is started again while its last good set stands."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from router.core.replica import Replica
from router.discovery.source import Replicas, Source, SourceError

_log = logging.getLogger(__name__)

BACKOFF = 1.0  # seconds until a crashed source is started again; doubles
BACKOFF_MAX = 30.0  # what an operator waits at most after mending it
FIRST_GRACE = 1.0  # seconds that the first union waits for slow sources, so that a start is one change and not several


@dataclass(slots=True)
class _Latest:
    """The last good set of each source, by its place in the list."""

    sets: dict[int, Replicas] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, place: int, replicas: Replicas) -> None:
        self.sets[place] = replicas
        self.changed.set()


async def merged(
    sources: Sequence[Source], backoff: float = BACKOFF, grace: float = FIRST_GRACE
) -> AsyncGenerator[Replicas, None]:
    """Yield the union of all sources whenever it changes; `backoff` and `grace` in seconds. Never ends by itself.

    Of two replicas with one id the first source's counts. Raises SourceError if a source needs the operator.
    """
    latest = _Latest()
    pumps = [asyncio.create_task(_pump(place, source, latest, backoff)) for place, source in enumerate(sources)]
    for pump in pumps:
        pump.add_done_callback(lambda _: latest.changed.set())
    known: Replicas | None = None
    warned: frozenset[str] = frozenset()
    try:
        await _first_sets(latest, pumps, grace)
        while True:
            latest.changed.clear()
            _raise_first(pumps)
            union, doubles = _union([latest.sets[place] for place in sorted(latest.sets)])
            for double in sorted(doubles - warned):
                _log.warning("replica %s comes from more than one source, the first counts", double)
            warned = doubles
            if union != known and (latest.sets or not sources):
                known = union
                yield union
            await latest.changed.wait()
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(place: int, source: Source, latest: _Latest, backoff: float) -> None:
    delay = backoff
    while True:
        try:
            async with aclosing(source.sets()) as sets:
                async for replicas in sets:
                    latest.put(place, replicas)
                    delay = backoff
            return
        except SourceError:
            raise
        except Exception as exc:
            _log.warning("source %s failed, again in %.0f s: %s: %s", source.text, delay, type(exc).__name__, exc)
        await asyncio.sleep(delay)
        delay = min(delay * 2, BACKOFF_MAX)


async def _first_sets(latest: _Latest, pumps: Sequence["asyncio.Task[None]"], grace: float) -> None:
    """Wait until every source has spoken or the grace is over."""
    try:
        async with asyncio.timeout(grace):
            while len(latest.sets) < len(pumps) and not any(pump.done() and pump.exception() for pump in pumps):
                await latest.changed.wait()
                latest.changed.clear()
    except TimeoutError:
        pass


def _raise_first(pumps: Sequence["asyncio.Task[None]"]) -> None:
    for pump in pumps:
        if pump.done():
            pump.result()


def _union(sets: Sequence[Replicas]) -> tuple[Replicas, frozenset[str]]:
    found: dict[str, Replica] = {}
    doubles: set[str] = set()
    for replicas in sets:
        for replica in replicas:
            if replica.id in found:
                doubles.add(replica.id)
            else:
                found[replica.id] = replica
    return tuple(found.values()), frozenset(doubles)
