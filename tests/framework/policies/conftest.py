"""A Node and an agent for the tests of policies that keep it in step."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hardpoint.testing.api_server import FakeApiServer

from .drain_world import DrainWorld
from .node_world import NodeWorld


@pytest.fixture
async def node_server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
def node_world(tmp_path: Path, node_server: FakeApiServer) -> NodeWorld:
    return NodeWorld(tmp_path, node_server)


@pytest.fixture
def drain_world(tmp_path: Path, node_server: FakeApiServer) -> DrainWorld:
    return DrainWorld(tmp_path, node_server)
