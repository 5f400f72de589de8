"""The prefix cache of one simulated engine: which blocks are resident, and which go first when room is needed.

Its law is vLLM's order: a finished request frees its blocks tail first, the block freed longest ago is
evicted first, and a hit takes its blocks out of the queue. Runs of blocks that are always used together are
one span, so a request of thousands of blocks costs dozens of steps.
"""

from collections import OrderedDict
from collections.abc import Sequence


class Span:
    """A run of blocks behind its parent's. A child is never resident without its parent."""

    __slots__ = ("blocks", "children", "computed", "parent", "refs")

    def __init__(self, blocks: tuple[int, ...], parent: "Span | None") -> None:
        self.blocks = blocks
        self.parent = parent
        self.children: dict[int, Span] = {}
        self.refs = 0  # running requests that hold it
        self.computed = False  # only what a prefill has finished can be hit


class BlockCache:
    """A radix tree of spans and the queue of those that nobody holds. Sizes are in blocks.

    Two requests that compute the same blocks at the same time share the room and both pay for the work.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._root = Span((), None)
        self._root.computed = True
        self._free: OrderedDict[Span, None] = OrderedDict()  # next to be evicted first
        self._free_blocks = 0  # resident and held by nobody
        self._resident = 0
        self._loose = 0  # held without an identity: unfinished blocks and output

    @property
    def held(self) -> int:
        """Blocks that running requests hold: what an engine calls its KV usage."""
        return self._resident - self._free_blocks + self._loose

    @property
    def resident(self) -> int:
        """Blocks whose content is still there, held or not."""
        return self._resident

    def match(self, blocks: Sequence[int]) -> int:
        """How many leading blocks are resident and computed."""
        return _hit(*self._walk(blocks))

    def acquire(self, blocks: tuple[int, ...], loose: int) -> tuple[Span, int] | None:
        """Hold all of `blocks` and `loose` unnamed ones: (what to release, leading blocks hit). None = no room now."""
        span, done, inside = self._walk(blocks)
        need = len(blocks) - done + loose
        if need > self.capacity - self.held - self._free_on_path(span, inside):
            return None
        hit = _hit(span, done, inside)
        if inside < len(span.blocks):
            span = self._split(span, inside)
        self._hold(span)
        self._evict(need)
        if done < len(blocks):
            span = self._grow(span, blocks[done:])
        self._loose += loose
        return span, hit

    def computed(self, leaf: Span) -> None:
        """The prefill of everything down to `leaf` is done: from now on it can be hit."""
        span: Span | None = leaf
        while span is not None and not span.computed:
            span.computed = True
            span = span.parent

    def release(self, leaf: Span, loose: int) -> None:
        """Give back what `acquire` gave, tail first. What was never computed is dropped."""
        self._loose -= loose
        span = leaf
        while span.parent is not None:
            parent = span.parent
            span.refs -= 1
            if span.refs == 0:
                self._queue(span)
            span = parent

    def _walk(self, blocks: Sequence[int]) -> tuple[Span, int, int]:
        """The deepest span met, blocks matched in all, and of these inside that span."""
        span, done, total = self._root, 0, len(blocks)
        while done < total and (child := span.children.get(blocks[done])) is not None:
            inside = _common(child.blocks, blocks, done)
            done += inside
            if inside < len(child.blocks):
                return child, done, inside
            span = child
        return span, done, len(span.blocks)

    def _free_on_path(self, span: Span, inside: int) -> int:
        """Of the blocks matched, those that would leave the queue: they cannot be evicted for the same request."""
        free = inside if span.refs == 0 else 0
        above = span.parent
        while above is not None and above.refs == 0:
            free += len(above.blocks)
            above = above.parent
        return free

    def _split(self, span: Span, at: int) -> Span:
        """Cut a span in two and answer the head. The object itself becomes the tail and keeps its queue place."""
        assert span.parent is not None
        head = Span(span.blocks[:at], span.parent)
        head.refs, head.computed = span.refs, span.computed
        span.parent.children[head.blocks[0]] = head
        span.blocks, span.parent = span.blocks[at:], head
        head.children[span.blocks[0]] = span
        return head

    def _hold(self, leaf: Span) -> None:
        span = leaf
        while span.parent is not None:
            if span.refs == 0:
                self._free.pop(span, None)  # a head that was just split off is not in it
                self._free_blocks -= len(span.blocks)
            span.refs += 1
            span = span.parent

    def _grow(self, parent: Span, blocks: tuple[int, ...]) -> Span:
        span = Span(blocks, parent)
        span.refs = 1
        parent.children[blocks[0]] = span
        self._resident += len(blocks)
        return span

    def _queue(self, span: Span) -> None:
        if span.computed:
            self._free[span] = None
            self._free_blocks += len(span.blocks)
            return
        self._resident -= len(span.blocks)
        _cut(span)

    def _evict(self, need: int) -> None:
        while (short := need - (self.capacity - self._resident - self._loose)) > 0:
            span = next(iter(self._free))
            gone = min(short, len(span.blocks))
            self._resident -= gone
            self._free_blocks -= gone
            if gone < len(span.blocks):
                span.blocks = span.blocks[:-gone]
                return
            del self._free[span]
            _cut(span)


def _cut(span: Span) -> None:
    assert span.parent is not None
    del span.parent.children[span.blocks[0]]


def _common(ours: tuple[int, ...], theirs: Sequence[int], start: int) -> int:
    """Length of the common run of `ours` and `theirs[start:]`."""
    window = theirs[start : start + len(ours)]
    if window == ours:
        return len(ours)
    pairs = enumerate(zip(ours, window, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(ours), len(window)))


def _hit(span: Span, done: int, inside: int) -> int:
    """Of the blocks matched, those computed."""
    if span.computed:
        return done
    done -= inside
    above = span.parent
    while above is not None and not above.computed:
        done -= len(above.blocks)
        above = above.parent
    return done
