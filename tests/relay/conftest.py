"""Every relay test runs twice: on the lane that `serve` runs, and on plain ASGI behind uvicorn's own protocol."""

from collections.abc import Iterator

import pytest

from tests.relay.rig import LANES, on_lane


@pytest.fixture(autouse=True, params=list(LANES))
def lane(request: pytest.FixtureRequest) -> Iterator[str]:
    name: str = request.param
    with on_lane(name):
        yield name
