"""Between the fleet and its store: tells of every placement and move, asks for sessions this router does not know.

Law: a request waits here at most `patience` seconds, and not at all while an earlier question is overdue; whoever gives
up leaves the store's own work undisturbed.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from router.core.affinity import Binding
from router.core.fleet import Fleet
from router.core.placed import Placed, adopt, placed, restore, unknown
from router.core.request import Request
from router.stores.figures import Figures
from router.stores.store import Store

PATIENCE = 0.02  # seconds: a look-up takes a tenth of a millisecond; a wrong home costs seconds, a stuck store nothing


class Sharing:
    def __init__(
        self, fleet: Fleet, store: Store, figures: Figures, wall: Callable[[], float] = time.time,
        patience: float = PATIENCE,
    ) -> None:  # fmt: skip
        self._fleet, self._store, self._figures = fleet, store, figures
        self._wall, self._patience = wall, patience
        self._overdue: asyncio.Future[Placed | None] | None = None

    async def start(self) -> None:
        """What was bound before is bound again when this returns, if the store is well."""
        self._fleet.on_bound = self._bound
        await self._store.start(self)

    async def close(self) -> None:
        """Leaves the store as this router knows it, so that the next one starts where this one ended."""
        self._retell(lambda binding: binding.context != binding.told)
        await self._store.close()

    async def recall(self, request: Request) -> None:
        """Learn where this request's session lives, if others know and this router does not."""
        keys = unknown(self._fleet, request)
        if not keys:
            return
        if self._is_overdue():
            self._figures.count("lookup", "skipped")
            return
        answer = self._store.lookup(keys)
        with self._figures.timed("lookup"):
            await asyncio.wait((answer,), timeout=self._patience)  # cancels nothing, however it ends
        if not answer.done():
            self._overdue = answer
            self._figures.count("lookup", "late")
            return
        found = answer.result()
        self._figures.count("lookup", "found" if found is not None else "none")
        if found is not None and not adopt(self._fleet, found, self._wall()):
            restore(self._fleet, (found,), self._wall())  # its home cannot be chosen now; it is a hint all the same

    def _is_overdue(self) -> bool:
        return self._overdue is not None and not self._overdue.done()

    def emptied(self) -> None:
        self._retell(lambda _: True)

    def _retell(self, worth: Callable[[Binding], bool]) -> None:
        """Publish again what is in use."""
        for binding in self._fleet.affinity:
            if binding.counted and worth(binding):
                self._bound(binding, binding.replica)

    def _bound(self, binding: Binding, before: str) -> None:
        self._store.publish(placed(self._fleet, binding, self._wall()), before)

    def loaded(self, those: Sequence[Placed]) -> None:
        restore(self._fleet, those, self._wall())

    def overruled(self, stands: Placed) -> None:
        """Somebody was first, or moved it meanwhile: follow, or move it on from there."""
        binding = self._fleet.affinity.binding(stands.session)
        if binding is None or adopt(self._fleet, stands, self._wall()):
            return
        self._store.publish(placed(self._fleet, binding, self._wall()), stands.replica)
