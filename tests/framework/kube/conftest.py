"""A fake API server with one node, and a client that talks to it without waiting."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio.lowlevel
import pytest

from hardpoint.kube import Kube
from hardpoint.testing.api_server import FakeApiServer


async def no_delay(seconds: float) -> None:
    await anyio.lowlevel.checkpoint()


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        server.add_node("node-a")
        yield server


@pytest.fixture
async def kube(server: FakeApiServer) -> AsyncIterator[Kube]:
    async with Kube.at(server.url, sleep=no_delay) as kube:
        yield kube


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
