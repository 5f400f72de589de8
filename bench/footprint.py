"""What remembering costs: memory of the maps after many sessions, time of one decision in a full fleet."""

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles

from router.core.decision import decide
from router.core.fleet import Fleet
from router.core.replica import Replica
from router.core.request import Request, Usage
from router.core.ring import mix
from router.policies.locality import Locality

_PAGE = 4096
_LINKS = 6  # of a conversation of three turns


def map_megabytes(sessions: int, replicas: int = 4) -> float:
    """Resident memory that a fleet with default bounds takes once it has served so many sessions."""
    gc.collect()
    before = _resident()
    fleet = _fleet(replicas)
    for request in _conversations(sessions):
        _serve(fleet, request)
    gc.collect()
    return (_resident() - before) / 1e6


def choose_microseconds(replicas: int, sessions: int) -> float:
    """Time of placing a new session, the dearest decision there is. The fastest quarter: others use the machine too."""
    fleet, policy = _fleet(replicas), Locality()
    for number in range(sessions):
        _serve(fleet, _named(number))
    times = []
    for number in range(2_000):
        request = _named(10**9 + number)
        snapshot = fleet.snapshot(request)
        started = time.perf_counter()
        policy.choose(request, snapshot)
        times.append(time.perf_counter() - started)
    return 1e6 * quantiles(times)[0]


def _fleet(replicas: int) -> Fleet:
    ticks = iter(range(10**12))
    fleet = Fleet(lambda: next(ticks) / 1000)
    fleet.update(Replica(f"10.0.0.{number}:8000", f"http://10.0.0.{number}:8000") for number in range(replicas))
    for load in fleet.loads.values():
        fleet.probed(load, True)
    return fleet


def _named(number: int) -> Request:
    key = mix("session", number)
    return Request("chat", session=key, source="x-session-id", key=key, body_bytes=400_000)


def _conversations(count: int) -> Iterator[Request]:
    """Without names, the system prompt everybody's; every hundredth comes back, as most sessions seen are gone."""
    for number in range(count):
        chain = (1 << 100, *(mix(number, link) << 64 | link for link in range(_LINKS)))
        yield from [_unnamed(chain[:length]) for length in ((3, len(chain)) if number % 100 == 0 else (len(chain),))]


def _unnamed(chain: tuple[int, ...]) -> Request:
    sizes = tuple([40_000 + 4_000 * index for index in range(len(chain))])
    return Request("chat", key=chain[1] >> 64, chain=chain, sizes=sizes, opening=1, body_bytes=sizes[-1])


def _serve(fleet: Fleet, request: Request) -> None:
    decision = decide(Locality(), request, fleet.snapshot(request))
    with fleet.lease(request, decision) as lease:
        lease.first_byte()
        lease.settle(Usage(request.prompt_bytes // 4, 0, 100, "stop"))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
