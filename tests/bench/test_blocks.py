"""The block cache: hits are exact, and eviction follows vLLM's queue block by block."""

from collections import OrderedDict
from random import Random

from bench.blocks import BlockCache, Span


def fill(cache: BlockCache, *blocks: int) -> None:
    got = cache.acquire(blocks, 0)
    assert got is not None
    cache.computed(got[0])
    cache.release(got[0], 0)


def test_a_prompt_is_hit_as_far_as_it_repeats() -> None:
    cache = BlockCache(10)
    fill(cache, 1, 2, 3, 4)
    assert cache.match((1, 2, 3, 4, 5)) == 4
    assert cache.match((1, 2, 9)) == 2
    assert cache.match((9, 1, 2)) == 0


def test_tails_are_evicted_before_prefixes() -> None:
    cache = BlockCache(6)
    fill(cache, 1, 2, 3, 4)
    fill(cache, 11, 12, 13)
    assert cache.match((1, 2, 3, 4)) == 3
    assert cache.match((11, 12, 13)) == 3


def test_what_was_freed_longest_ago_goes_first() -> None:
    cache = BlockCache(6)
    fill(cache, 1, 2)
    fill(cache, 11, 12)
    fill(cache, 1, 2)
    fill(cache, 21, 22, 23, 24)
    assert cache.match((1, 2)) == 2
    assert cache.match((11, 12)) == 0


def test_held_blocks_are_never_evicted_and_who_does_not_fit_waits() -> None:
    cache = BlockCache(6)
    got = cache.acquire((1, 2, 3, 4), 1)
    assert got is not None
    assert cache.acquire((11, 12), 0) is None
    assert cache.held == 5
    cache.computed(got[0])
    cache.release(got[0], 1)
    fill(cache, 11, 12)
    assert cache.match((1, 2, 3, 4)) == 4


def test_what_is_not_computed_cannot_be_hit_and_is_dropped_when_given_up() -> None:
    cache = BlockCache(8)
    got = cache.acquire((1, 2, 3), 0)
    assert got is not None
    assert cache.match((1, 2, 3)) == 0
    cache.release(got[0], 0)
    assert cache.resident == 0


def test_a_loop_over_a_third_more_than_fits_hits_nothing() -> None:
    """The capacity cliff: four prompts of three blocks go round in a cache of nine; twelve would hit all."""
    cache = BlockCache(9)
    hits = 0
    for turn in range(40):
        prompt = tuple(range(100 * (turn % 4), 100 * (turn % 4) + 3))
        hits += cache.match(prompt)
        fill(cache, *prompt)
    assert hits == 0


class Plain:
    """The same cache one block at a time, written from vLLM's rules, to compare with."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.refs: dict[int, int] = {}
        self.computed: set[int] = set()
        self.free: OrderedDict[int, None] = OrderedDict()

    def match(self, blocks: tuple[int, ...]) -> int:
        return next((i for i, block in enumerate(blocks) if block not in self.computed), len(blocks))

    def acquire(self, blocks: tuple[int, ...]) -> int | None:
        new = sum(block not in self.refs for block in blocks)
        usable = sum(block not in blocks for block in self.free) + self.capacity - len(self.refs)
        if new > usable:
            return None
        hit = self.match(blocks)
        for block in blocks:
            self.free.pop(block, None)
            if block in self.refs:
                self.refs[block] += 1
        for block in blocks:
            if block in self.refs:
                continue
            if len(self.refs) == self.capacity:
                gone, _ = self.free.popitem(last=False)
                del self.refs[gone]
                self.computed.discard(gone)
            self.refs[block] = 1
        return hit

    def release(self, blocks: tuple[int, ...]) -> None:
        for block in reversed(blocks):
            self.refs[block] -= 1
            if self.refs[block]:
                continue
            if block in self.computed:
                self.free[block] = None
            else:
                del self.refs[block]


def prompt(random: Random) -> tuple[int, ...]:
    """A walk down a tree whose block ids name the whole way, as chained hashes do."""
    path: list[int] = []
    for _ in range(random.randint(1, 9)):
        path.append((path[-1] if path else 1) * 3 + random.randint(0, 1))
    return tuple(path)


def test_spans_behave_as_single_blocks_would() -> None:
    random = Random(7)
    ours, plain = BlockCache(24), Plain(24)
    held: list[tuple[tuple[int, ...], Span]] = []
    for _ in range(20_000):
        blocks = prompt(random)
        assert ours.match(blocks) == plain.match(blocks)
        got, expected = ours.acquire(blocks, 0), plain.acquire(blocks)
        assert (got[1] if got else None) == expected
        if got:
            held.append((blocks, got[0]))
        while held and (got is None or random.random() < 0.4):
            done, leaf = held.pop(random.randrange(len(held)))
            if random.random() < 0.8:
                ours.computed(leaf)
                plain.computed.update(done)
            ours.release(leaf, 0)
            plain.release(done)
            got = got or (done, 0)  # type: ignore[assignment]
        assert ours.resident == len(plain.refs)
        assert ours.held == sum(count > 0 for count in plain.refs.values())
