"""A replica that is healthy and fails on demand, in the ways that engines do: the model asked for says which."""

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tests.mock import Mock, Peer, Step, chunk, json_reply, reset, status


@contextmanager
def scripted_replica(replies: Mapping[str, Sequence[Step]]) -> Iterator[str]:
    """Its address; `replies` by model. It lives in a thread, beside tests that use blocking clients."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    mock = Mock(_replica(replies))
    try:
        asyncio.run_coroutine_threadsafe(mock.__aenter__(), loop).result()
        yield mock.url
    finally:
        asyncio.run_coroutine_threadsafe(mock.__aexit__(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def broken_stream(*events: str) -> list[Step]:
    """These events, then a reset connection."""
    head = status(200, "content-type: text/event-stream; charset=utf-8", "transfer-encoding: chunked")
    return [head, *(chunk(event.encode()) for event in events), _pause, reset()]


async def _pause(peer: Peer) -> None:
    """A reset overtakes what is still unread: let it be read."""
    await asyncio.sleep(0.05)


def _replica(replies: Mapping[str, Sequence[Step]]) -> Step:
    async def answer(peer: Peer) -> None:
        await peer.read_body()
        for step in _probed(peer.seen.line, list(replies)) or replies[json.loads(peer.seen.body)["model"]]:
            await step(peer)

    return answer


def _probed(line: bytes, models: Sequence[str]) -> Sequence[Step]:
    if line.startswith(b"GET /v1/models"):
        return json_reply({"object": "list", "data": [{"id": each, "object": "model"} for each in models]})
    if line.startswith(b"GET /health"):
        return [status(200, length=0)]
    return json_reply({"detail": "Not Found"}, 404) if line.startswith(b"GET") else ()
