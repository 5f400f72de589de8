"""The unchanged clients of OpenAI and Anthropic, pointed at a router in front of real llama.cpp replicas."""

from collections.abc import Iterator

import anthropic
import openai
import pytest

from tests.engines.llamacpp import LlamaCpp, running_replicas
from tests.running import RunningRouter, running_router

KEY = "sk-none"  # the clients insist on one, llama.cpp does not


@pytest.fixture(scope="session")
def replicas() -> Iterator[list[LlamaCpp]]:
    with running_replicas(2, "--embeddings") as running:
        yield running


@pytest.fixture(scope="session")
def shared_router(replicas: list[LlamaCpp]) -> Iterator[RunningRouter]:
    with running_router([replica.url for replica in replicas]) as router:
        router.until_up()
        yield router


@pytest.fixture
def router(shared_router: RunningRouter) -> Iterator[RunningRouter]:
    yield shared_router
    shared_router.until_idle()


@pytest.fixture
def openai_sdk(router: RunningRouter) -> Iterator[openai.OpenAI]:
    with openai_client(router.url) as client:
        yield client


@pytest.fixture
def anthropic_sdk(router: RunningRouter) -> Iterator[anthropic.Anthropic]:
    with anthropic_client(router.url) as client:
        yield client


def openai_client(url: str) -> openai.OpenAI:
    """Without retries of its own: what the router answers is what a test sees."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=30.0)


def anthropic_client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0, timeout=30.0)
