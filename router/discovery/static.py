"""Replicas named on the command line or in the settings: one set, for ever."""

from collections.abc import AsyncGenerator

from router.core.replica import Replica
from router.discovery.source import Replicas, replica_url


def replica(text: str) -> Replica:
    """The replica at this address, everything else by default. Raises ValueError."""
    name, url = replica_url(text)
    return Replica(name, url)


async def static(*replicas: Replica) -> AsyncGenerator[Replicas, None]:
    """Yield these once."""
    yield replicas
