"""Three llama.cpp replicas and a router in front of them, for the whole run; after each test nothing is left open."""

from collections.abc import Iterator

import pytest

from tests.engines.llamacpp import LlamaCpp, running_replicas
from tests.running import RunningRouter, running_router

TOKEN = "operator"  # whoever has it may drain


@pytest.fixture(scope="session")
def fleet_of_three() -> Iterator[list[LlamaCpp]]:
    with running_replicas(3) as replicas:
        yield replicas


@pytest.fixture
def replicas(fleet_of_three: list[LlamaCpp]) -> Iterator[list[LlamaCpp]]:
    """All of them running, whatever the test before did: `kill` and `restart` are there to be used."""
    yield fleet_of_three
    for replica in fleet_of_three:
        if not replica.is_running:
            replica.start()


@pytest.fixture(scope="session")
def shared_router(fleet_of_three: list[LlamaCpp]) -> Iterator[RunningRouter]:
    with running_router([replica.url for replica in fleet_of_three], token=TOKEN) as router:
        yield router


@pytest.fixture
def router(shared_router: RunningRouter, replicas: list[LlamaCpp]) -> Iterator[RunningRouter]:
    """The default policy. One process for all tests, as a start takes a second: name sessions as no other test does."""
    shared_router.until_up()
    yield shared_router
    shared_router.until_idle()
