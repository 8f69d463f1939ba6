"""Which devices a grant source governs, for who says on the Node that there are such."""

from __future__ import annotations

from .conftest import World
from .grant_world import Played, granting, until_so


async def test_a_governed_device_is_one_without_a_grant_too(world: World) -> None:
    async with granting(world, Played()) as agent:
        await until_so(agent, lambda: bool(agent.governed()))

        assert {one.name for one in agent.governed()} == {"radio0", "radio1"}
        assert agent.offer.devices == ()


async def test_without_a_source_nothing_is_governed(world: World) -> None:
    async with world.agent() as agent:
        assert agent.offer.devices
        assert agent.governed() == ()
