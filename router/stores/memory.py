"""The store that keeps nothing: bindings live and die with this process. The composition root does not even ask it."""

import asyncio
from collections.abc import Sequence

from router.core.placed import Placed
from router.stores.store import Listener


class Memory:
    @property
    def is_up(self) -> bool:
        return True

    async def start(self, listener: Listener) -> None:
        pass

    def lookup(self, keys: Sequence[int]) -> "asyncio.Future[Placed | None]":
        answer: asyncio.Future[Placed | None] = asyncio.get_running_loop().create_future()
        answer.set_result(None)
        return answer

    def publish(self, placed: Placed, before: str) -> None:
        pass

    async def close(self) -> None:
        pass
