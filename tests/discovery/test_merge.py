"""Several sources as one: union, doubles, crashes."""

import asyncio
import logging

import pytest

from router.core.replica import Replica
from router.discovery import Source, SourceError, merged


def replica(name, url=""):
    return Replica(name, url or f"http://{name}")


class Steps:
    """A source that a test drives: every set, crash or end that is put into it."""

    def __init__(self, text, *steps):
        self.text, self.starts = text, 0
        self.steps = asyncio.Queue()
        for step in steps:
            self.steps.put_nowait(step)

    @property
    def source(self):
        return Source(self.text, self.sets)

    async def sets(self):
        self.starts += 1
        while True:
            step = await self.steps.get()
            if isinstance(step, Exception):
                raise step
            yield step


def ids(replicas):
    return [each.id for each in replicas]


def test_the_union_comes_at_once_and_again_whenever_one_source_changes():
    async def main():
        first, second = Steps("1", (replica("a:1"),)), Steps("2", (replica("b:1"),))
        union = merged([first.source, second.source])
        seen = [ids(await anext(union))]
        second.steps.put_nowait((replica("b:1"), replica("c:1")))
        seen.append(ids(await anext(union)))
        first.steps.put_nowait(())
        seen.append(ids(await anext(union)))
        await union.aclose()
        return seen

    assert asyncio.run(main()) == [["a:1", "b:1"], ["a:1", "b:1", "c:1"], ["b:1", "c:1"]]


def test_of_doubles_the_first_source_counts_and_is_warned_of_once(caplog):
    async def main():
        first = Steps("1", (replica("a:1", "http://one"),))
        second = Steps("2", (replica("a:1", "http://two"), replica("b:1")))
        union = merged([first.source, second.source])
        seen = [await anext(union)]
        second.steps.put_nowait((replica("a:1", "http://two"), replica("c:1")))
        seen.append(await anext(union))
        await union.aclose()
        return seen

    seen = asyncio.run(main())
    assert [replicas[0].url for replicas in seen] == ["http://one", "http://one"]
    assert [ids(replicas) for replicas in seen] == [["a:1", "b:1"], ["a:1", "c:1"]]
    assert len(caplog.records) == 1


def test_a_crashed_source_starts_again_while_its_last_set_and_the_others_stand(caplog):
    caplog.set_level(logging.WARNING)

    async def main():
        first, second = Steps("dns", (replica("a:1"),)), Steps("2", (replica("b:1"),))
        union = merged([first.source, second.source], backoff=0.01)
        await anext(union)
        first.steps.put_nowait(RuntimeError("resolver fell over"))
        second.steps.put_nowait((replica("c:1"),))
        during = ids(await anext(union))
        first.steps.put_nowait((replica("d:1"),))
        after = ids(await anext(union))
        await union.aclose()
        return during, after, first.starts

    assert asyncio.run(main()) == (["a:1", "c:1"], ["d:1", "c:1"], 2)
    assert "source dns failed" in caplog.text
    assert "resolver fell over" in caplog.text


def test_a_source_that_never_answers_does_not_keep_the_others_back():
    """F65"""

    async def main():
        silent, second = Steps("1"), Steps("2", (replica("b:1"),))
        union = merged([silent.source, second.source], grace=0.01)
        seen = ids(await anext(union))
        await union.aclose()
        return seen

    assert asyncio.run(main()) == ["b:1"]


def test_what_the_operator_must_mend_is_raised():
    async def main():
        await anext(merged([Steps("1", (replica("a:1"),)).source, Steps("2", SourceError("r.yaml:1: no")).source]))

    with pytest.raises(SourceError, match=r"r\.yaml:1: no"):
        asyncio.run(main())


def test_no_sources_are_an_empty_set():
    async def main():
        union = merged([])
        seen = await anext(union)
        await union.aclose()
        return seen

    assert asyncio.run(main()) == ()


def test_closing_the_union_closes_every_source():
    closed = []

    async def sets():
        try:
            yield (replica("a:1"),)
            await asyncio.Event().wait()
        finally:
            closed.append("a")

    async def main():
        union = merged([Source("1", sets)])
        await anext(union)
        await union.aclose()

    asyncio.run(main())
    assert closed == ["a"]
