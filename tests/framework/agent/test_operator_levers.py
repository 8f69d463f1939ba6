"""What an operator ends beside an agent that runs: it is taken up, and never half done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from hardpoint._core.agent import HardpointAgent
from hardpoint._core.ledger.grantrows import DeviceKey
from hardpoint._core.levers import LeverRefused, Levers, levers, read_audits, read_book
from hardpoint.cdi_files import CdiDirectory

from .conftest import World, claim, reading
from .grant_world import Played, grant, granting, under, until_so


def offered(agent: HardpointAgent) -> dict[str, str]:
    return {one.name: one.allocation for one in agent.offer.devices}


@asynccontextmanager
async def lever_of(world: World) -> AsyncIterator[Levers]:
    async with levers(world.paths.state, CdiDirectory(world.paths.cdi), "ops") as lever:
        yield lever


async def test_a_drain_that_is_forced_is_taken_up_where_no_source_is_asked(world: World) -> None:
    held = claim("radio0")
    async with world.agent() as agent:
        await agent.prepare(held.key, reading(held))
        await agent.withdraw("maintenance")
        await until_so(agent, lambda: bool(agent.releases()))
        await agent.unprepare(held.key)
        (drain,) = read_book(world.paths.state).releases

        async with lever_of(world) as lever:
            await lever.end([drain], drain.keys, (), {"devices": ["radio0"]})

        await until_so(agent, lambda: not agent.releases())
        await until_so(agent, lambda: not read_book(world.paths.state).releases)


async def test_what_is_held_is_forgotten_in_the_moment_in_which_its_release_is_over(
    world: World,
) -> None:
    held = claim("radio0")
    async with world.agent() as agent:
        await agent.prepare(held.key, reading(held))
        await agent.withdraw("maintenance")
        await until_so(agent, lambda: bool(agent.releases()))
        (drain,) = read_book(world.paths.state).releases
        records = await agent._ledger.read()

        async with lever_of(world) as lever:
            await lever.end([drain], drain.keys, records, {"devices": ["radio0"]})

        await until_so(agent, lambda: not read_book(world.paths.state).releases)
        await until_so(agent, lambda: agent.holds() == ())
        assert not list(world.paths.cdi.glob("*.json"))


async def test_a_device_is_not_free_while_another_hold_on_it_is_there(world: World) -> None:
    """The transaction itself looks: a hold that was not shown to the operator is no less one."""
    played = Played()
    played.grants = [grant("a-1", "radio0"), grant("b-1", "radio1")]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        held = under("a-1", "radio0")
        await agent.prepare(held.key, reading(held))
        played.grants = [grant("b-1", "radio1")]
        played.hint()
        await until_so(agent, lambda: bool(agent.releases()))
        (known,) = read_book(world.paths.state).releases

        async with lever_of(world) as lever:
            with pytest.raises(LeverRefused, match=f"radio0 is held for {held.key.uid} by now"):
                await lever.end([known], known.keys, (), {})

        assert [one.over for one in read_book(world.paths.state).releases] == [False]
        assert read_audits(world.paths.state) == ()


async def test_what_has_ended_meanwhile_is_not_ended_again(world: World) -> None:
    played = Played()
    played.grants, played.users = [grant("a-1", "radio0"), grant("b-1", "radio1")], ["pod x/y"]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        played.grants = [grant("b-1", "radio1")]
        played.hint()
        await until_so(agent, lambda: bool(agent.releases()))
        (known,) = read_book(world.paths.state).releases
        played.users = []
        played.hint()
        await until_so(agent, lambda: not read_book(world.paths.state).releases)

        async with lever_of(world) as lever:
            with pytest.raises(LeverRefused, match="ended meanwhile"):
                await lever.end([known], known.keys, (), {})


async def test_a_device_that_was_forced_free_is_granted_while_the_rest_is_pending(
    world: World,
) -> None:
    played = Played()
    played.grants, played.users = [grant("a-1", "radio0", "radio1")], ["pod x/y"]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: len(offered(agent)) == 2)
        played.grants = [grant("c-1", "radio0")]
        played.hint()
        await until_so(agent, lambda: ("c-1", "overlap") in played.told)
        (known,) = read_book(world.paths.state).releases

        async with lever_of(world) as lever:
            await lever.end([known], [DeviceKey("hardpoint.dev", "radio0")], (), {})

        await until_so(agent, lambda: offered(agent) == {"radio0": "c-1"})
        assert [one.names for one in agent.releases()] == [("radio1",)]
        assert ("a-1", "released") not in played.told


async def test_grants_in_doubt_are_in_force_once_an_operator_has_cleared_what_was_lost(
    world: World,
) -> None:
    played = Played()
    played.grants, played.users = [grant("a-1", "radio0")], ["pod x/y"]
    async with granting(world, played) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
    for file in world.paths.state.glob("ledger.db*"):
        file.unlink()
    (world.paths.state / "ledger.db").write_bytes(b"not a database at all")
    async with granting(world, played) as agent:
        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1"})
        played.grants = [grant("a-1", "radio0"), grant("b-1", "radio1")]
        played.hint()
        await until_so(agent, lambda: ("b-1", "overlap") in played.told)

        async with lever_of(world) as lever:
            await lever.clear_lost(world.paths.state, {})

        await until_so(agent, lambda: offered(agent) == {"radio0": "a-1", "radio1": "b-1"})
        assert not agent.conditions()
