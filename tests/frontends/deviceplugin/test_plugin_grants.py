"""Ids that name the grant of their device: listed, given, preferred, and refused when it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plugin_world import RADIO, World, radio

from hardpoint.errors import CallFailed
from hardpoint.model import Domain, Offered, Withheld

DOMAIN = Domain.named("hardpoint.dev")
OLD, NEW = "alloc-1", "alloc-2"


def granted(name: str, allocation: str) -> Offered:
    return Offered(device=radio(name), domain=DOMAIN, allocation=allocation)


async def test_a_device_is_listed_and_held_under_its_grant(world: World) -> None:
    world.agent.show(granted("radio-0", OLD), granted("radio-1", NEW), radio("radio-2"))
    async with world.serving():
        await world.until_listed(RADIO, f"radio-0@{OLD}", f"radio-1@{NEW}", "radio-2")
        await world.allocate(RADIO, [f"radio-0@{OLD}", "radio-2"])

        ((first, second),) = world.agent.allocated
        assert (first.device, first.allocation) == ("radio-0", OLD)
        assert (second.device, second.allocation) == ("radio-2", "")
        assert {h.device.name: h.allocation for h in world.agent.holds()} == {
            "radio-0": OLD,
            "radio-2": "",
        }
        assert [one.allocation for one in world.agent.announced[RADIO]] == [OLD, NEW, ""]


async def test_a_device_under_the_next_grant_is_another_and_the_old_id_is_refused(
    world: World,
) -> None:
    world.agent.show(granted("radio-0", OLD))
    async with world.serving():
        await world.until_listed(RADIO, f"radio-0@{OLD}")
        world.agent.show(granted("radio-0", NEW))
        await world.until_listed(RADIO, f"radio-0@{NEW}")

        with pytest.raises(CallFailed, match="radio-0 is granted under another allocation now"):
            await world.allocate(RADIO, [f"radio-0@{OLD}"])
        assert world.agent.allocated == []


async def test_an_id_whose_grant_ended_is_refused_with_the_reason_of_the_withholding(
    world: World,
) -> None:
    world.agent.show(granted("radio-0", OLD), granted("radio-1", OLD))
    async with world.serving():
        await world.until_listed(RADIO, f"radio-0@{OLD}", f"radio-1@{OLD}")
        gone = Withheld("radio-0", "releasing", "its grant alloc-1 has ended; pods have it still")
        world.agent.show(granted("radio-1", OLD))
        world.agent.offer = replace(world.agent.offer, withheld=(gone,))
        await world.until_listed(RADIO, f"radio-1@{OLD}")

        with pytest.raises(CallFailed, match="its grant alloc-1 has ended; pods have it still"):
            await world.allocate(RADIO, [f"radio-0@{OLD}"])


async def test_an_id_that_never_was_is_refused_without_a_guess_at_the_reason(world: World) -> None:
    world.agent.show(granted("radio-0", OLD))
    async with world.serving():
        await world.until_listed(RADIO, f"radio-0@{OLD}")

        with pytest.raises(CallFailed, match=r"no device lamp-7 now$"):
            await world.allocate(RADIO, ["lamp-7"])


async def test_devices_of_one_grant_are_preferred_together(world: World) -> None:
    devices = {f"radio-{n}": OLD if n % 2 else NEW for n in range(4)}
    ids = [f"{name}@{allocation}" for name, allocation in devices.items()]
    world.agent.show(*(granted(name, allocation) for name, allocation in devices.items()))
    async with world.serving():
        await world.until_listed(RADIO, *ids)

        assert await world.prefer(RADIO, ids, 2, [ids[1]]) == [ids[1], ids[3]]
        assert len({one.partition("@")[2] for one in await world.prefer(RADIO, ids, 2)}) == 1


async def test_a_selector_sees_the_allocation_as_a_deviceclass_does(world: World) -> None:
    pytest.importorskip("cel_expr_python")
    own = "example.com/team-a"
    selector = f'device.attributes["hardpoint.dev"].?allocation.orValue("") == "{OLD}"'
    world.agent.show(granted("radio-0", OLD), granted("radio-1", NEW), radio("radio-2"))
    async with world.serving(resources=[{"name": own, "selector": selector}]):
        await world.until_listed(own, f"radio-0@{OLD}")
        await world.until_listed(RADIO, f"radio-1@{NEW}", "radio-2")
