"""What tests of the broker begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_world import World, two_cards
from pod_world import Pods, Watched, watched


@pytest.fixture
def world(tmp_path: Path) -> World:
    return two_cards(tmp_path)


@pytest.fixture
async def one(world: World) -> AsyncIterator[Watched]:
    """A broker beside a kubelet with no pods."""
    async with world.broker() as broker:
        yield watched(world, broker, Pods())
