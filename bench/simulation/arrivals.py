"""Open loop: recorded arrivals, each request on its own. Nobody waits for a reply before asking the next."""

from collections.abc import Callable, Iterator
from itertools import islice

from bench.model import Job
from bench.simulation.asks import BYTES_PER_TOKEN, Ask, Caller
from bench.traces import Arrival, azure, mooncake
from router.core.request import Request
from router.core.ring import mix

MOONCAKE_BLOCK = 512


class Arrivals:
    """Requests without session ids. Every full block is a link: more than a real body shows, and nothing else."""

    block_tokens = MOONCAKE_BLOCK

    def __init__(self, read: Callable[[], Iterator[Arrival]], limit: int | None = None) -> None:
        self._read, self._limit = read, limit

    def callers(self) -> Iterator[Caller]:
        for number, arrival in enumerate(islice(self._read(), self._limit)):
            yield Caller(iter((_ask(number, arrival),)))


def arrivals(workload: str) -> Arrivals:
    """ValueError for an unknown workload."""
    if workload == "mooncake":
        return Arrivals(mooncake)
    if workload in ("azure_code", "azure_conv"):
        return Arrivals(lambda: azure(workload.removeprefix("azure_")))
    raise ValueError(f"workload: must be agents, mooncake, azure_code or azure_conv, got {workload!r}")


def _ask(number: int, arrival: Arrival) -> Ask:
    full = arrival.blocks[: arrival.prompt_tokens // MOONCAKE_BLOCK]
    size = BYTES_PER_TOKEN * arrival.prompt_tokens
    chain = _links(full) or (mix("short", number),)
    sizes = tuple([BYTES_PER_TOKEN * MOONCAKE_BLOCK * (index + 1) for index in range(len(full))]) or (size,)
    opening = min(1, len(chain) - 1)
    request = Request(
        "chat", source="conversation", key=chain[opening], chain=chain, sizes=sizes, opening=opening, body_bytes=size
    )
    return Ask(request, Job(full, arrival.prompt_tokens, arrival.output_tokens), "stop", arrival.at, chain[-1])


def _links(blocks: tuple[int, ...]) -> tuple[int, ...]:
    """Each names the prompt up to and including its block."""
    links: list[int] = []
    for block in blocks:
        links.append(mix(links[-1] if links else "root", block))
    return tuple(links)
