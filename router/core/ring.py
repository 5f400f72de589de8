"""A consistent-hash ring: a pure function of its members, the same in every process and after every restart."""

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator
from itertools import chain

from xxhash import xxh3_64_intdigest

POINTS = 160  # per member: the largest share of 4..64 members stays within about 1.25 of the mean


def mix(*parts: int | str) -> int:
    """64 well-mixed bits of the parts: every draw that must be repeatable comes from here."""
    return xxh3_64_intdigest("\x1f".join(str(part) for part in parts).encode())


class Ring:
    """Virtual nodes of `members`, ordered by hash. A pure function of the set: order of arrival never matters."""

    __slots__ = ("_hashes", "_owners", "members")

    def __init__(self, members: Iterable[str], points: int = POINTS) -> None:
        self.members = tuple(sorted(set(members)))
        # Largest name first, so that where two nodes meet the smaller name keeps the place.
        nodes = {point: member for member in reversed(self.members) for point in _points(member, points)}
        self._hashes = sorted(nodes)
        self._owners = [nodes[point] for point in self._hashes]

    def walk(self, key: int) -> Iterator[str]:
        """Members in the order in which `key` meets them, each once. The order depends on the key alone."""
        seen: set[str] = set()
        for owner in self._owners_from(key):
            if owner not in seen:
                yield owner
                seen.add(owner)
                if len(seen) == len(self.members):
                    return

    def first(self, key: int, among: Container[str]) -> str | None:
        """The first member on the walk that is `among` those allowed; None if none is."""
        return next((owner for owner in self._owners_from(key) if owner in among), None)

    def _owners_from(self, key: int) -> Iterator[str]:
        owners = self._owners
        start = bisect_left(self._hashes, key & 0xFFFF_FFFF_FFFF_FFFF)
        return map(owners.__getitem__, chain(range(start, len(owners)), range(start)))


def _points(member: str, count: int) -> Iterator[int]:
    """Where a member's virtual nodes lie. The index comes first: "node1"+"1" must not meet "node11"+"0"."""
    name = b":" + member.encode()
    return (xxh3_64_intdigest(b"%d%b" % (index, name)) for index in range(count))
