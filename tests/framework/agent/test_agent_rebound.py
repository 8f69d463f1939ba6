"""A PCI function that somebody gives to a virtual machine while a claim holds it."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from hardpoint import Node
from hardpoint.errors import HoldDenied
from hardpoint_pci_drm.driver import PciDrm
from hardpoint_pci_drm.settings import PciDrmSettings

from .conftest import World, claim, reading, until


class Cards(PciDrm):
    def __init__(self, node: Node, settings: object) -> None:
        super().__init__(node, PciDrmSettings())


async def test_a_card_that_is_rebound_to_vfio_is_withheld_from_its_holder(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.driver = Cards  # type: ignore[assignment]
    card = world.machine.pci("0000:0a:00.0", klass="030000", driver="i915").drm(render=128)
    wanted = claim("pci-0000-0a-00-0")
    async with world.agent() as agent:
        await agent.prepare(wanted.key, reading(wanted))

        card.unbind().bind("vfio-pci")
        agent._scanner.wake.set()
        await until(agent, lambda offer: offer.find("pci-0000-0a-00-0") is None)

        with pytest.raises(HoldDenied, match="may not be used"):
            await agent.prepare(wanted.key, reading(wanted))
        (file,) = world.paths.cdi.glob("*.json")
        with anyio.fail_after(5):
            while "device-withheld" not in json.dumps(json.loads(file.read_text())):
                await anyio.lowlevel.checkpoint()
