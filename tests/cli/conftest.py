"""Commands read the environment: each test starts from one without ROUTER_*."""

import os

import pytest


@pytest.fixture(autouse=True)
def _no_router_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("ROUTER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "80")
