"""Maps that cannot outgrow their bound: enforced at insert, never by a periodic sweep."""

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Generations(Generic[K, V]):
    """An approximate LRU of two plain dicts: half the memory of an OrderedDict and no per-entry eviction.

    New and re-used entries live in the young generation; when it holds half the bound, the old one is
    dropped whole and the young one takes its place. An entry survives at least `bound / 2` inserts.
    """

    __slots__ = ("_half", "_old", "_young")

    def __init__(self, bound: int) -> None:
        self._half = max(1, bound // 2)
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)  # `put` keeps them disjoint

    def peek(self, key: K) -> V | None:
        """The value without keeping the entry alive: for reads that must leave no trace."""
        value = self._young.get(key)
        return value if value is not None else self._old.get(key)

    def put(self, key: K, value: V) -> None:
        self._old.pop(key, None)
        self._young[key] = value
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}
