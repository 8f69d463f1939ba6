"""A USB device through the whole agent: claimed, detached by its holder, and given back."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from hardpoint._core.agent import HardpointAgent
from hardpoint._core.plugins.discovery import Plugin, Plugins
from hardpoint.errors import HoldError
from hardpoint.model import Allotment, Claim, ClaimKey, Offer
from hardpoint.settings import AgentSettings, PathSettings
from hardpoint.testing import FakeMachine
from hardpoint_usb import Usb


class World:
    """A node with a UPS that usbhid drives, and directories for an agent."""

    def __init__(self, root: Path) -> None:
        self.machine = FakeMachine(root / "machine")
        self.cdi = root / "cdi"
        self.paths = PathSettings(state=root / "state", cdi=self.cdi, kubelet=root / "kubelet")
        ups = self.machine.usb("3-4", vendor="051d", product="0002", serial="UPS-1")
        self.interface = ups.interface(0, klass="03", driver="usbhid")
        self.interface.node("hidraw", "hidraw0", 240, 0)
        self.bind = self.machine.sys / "bus/usb/drivers/usbhid/bind"
        self.bind.write_text("")
        (self.machine.proc / "2").mkdir()
        (self.machine.proc / "2/comm").write_text("kthreadd\n")  # the host's processes are seen

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[HardpointAgent]:
        node = self.machine.node(writable=True)
        plugins = Plugins([Plugin("driver", "usb", loaded=Usb)])
        plugins.start(plugins.all[0], node, {})
        settings = AgentSettings(paths=self.paths, node_name="node-1")
        agent = HardpointAgent(settings, node, instance="", plugins=plugins, events=False)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run)
            with anyio.fail_after(10):
                await agent.started.wait()
            yield agent
            tasks.cancel_scope.cancel()

    def detach(self) -> None:
        """Do what libusb does; no event tells the agent here."""
        self.interface.bind("usbfs")
        shutil.rmtree(self.interface.path / "hidraw")

    def delivered(self) -> list[list[str]]:
        """Return the nodes of each claim's CDI file."""
        specs = [json.loads(file.read_text()) for file in self.cdi.glob("*.json")]
        edits = [d["containerEdits"]["deviceNodes"] for s in specs for d in s["devices"]]
        return [[node["path"] for node in nodes] for nodes in edits]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def _claim(device: str) -> tuple[ClaimKey, Callable[[], Awaitable[Claim]]]:
    key = ClaimKey(f"uid-{device}", "home", device, "hardpoint.dev")
    claim = Claim(key=key, allotments=(Allotment(request="r", device=device, pool="node-1"),))

    async def read() -> Claim:
        return claim

    return key, read


def _look(agent: HardpointAgent) -> None:
    agent._scanner.wake.set()


async def _until(agent: HardpointAgent, true: Callable[[Offer], Any]) -> Offer:
    with anyio.fail_after(10):
        async for offer in agent.offers():
            if true(offer):
                return offer
    raise AssertionError


async def test_a_held_device_whose_driver_is_detached_stays_and_is_given_back(
    world: World,
) -> None:
    key, read = _claim("usb-3-4-1-0")
    async with world.agent() as agent:
        await agent.prepare(key, read)
        assert world.delivered() == [["/dev/hidraw0", "/dev/bus/usb/003/002"]]
        world.detach()
        _look(agent)
        await _until(agent, lambda o: "driver" in _attributes(o) and _driver(o) == "usbfs")
        with anyio.fail_after(10):
            while world.delivered() != [["/dev/bus/usb/003/002"]]:
                await anyio.lowlevel.checkpoint()
        (offered,) = agent.offer.devices
        assert offered.held
        assert "absent" not in {taint.key for taint in offered.taints}

        world.interface.unbind()
        await agent.unprepare(key)

        assert world.bind.read_text() == "3-4:1.0"
        assert world.delivered() == []
        await _until(agent, lambda o: [d.name for d in o.devices] == ["usb-3-4"])


def _attributes(offer: Offer) -> dict[str, Any]:
    return dict(offer.devices[0].device.attributes) if offer.devices else {}


def _driver(offer: Offer) -> object:
    return _attributes(offer)["driver"]


async def test_after_a_restart_of_the_agent_it_still_does(world: World) -> None:
    key, read = _claim("usb-3-4-1-0")
    async with world.agent() as agent:
        await agent.prepare(key, read)
    world.detach()
    world.interface.unbind()
    async with world.agent() as agent:
        assert [o.name for o in agent.offer.devices] == ["usb-3-4-1-0"]
        assert world.delivered() == [["/dev/bus/usb/003/002"]]
        await agent.unprepare(key)

    assert world.bind.read_text() == "3-4:1.0"


async def test_a_module_that_loads_under_a_claim_makes_no_second_owner(tmp_path: Path) -> None:
    world = World(tmp_path)
    radio = world.machine.usb("1-2", vendor="0bda", product="2838").interface(0)
    late = world.machine.usb("1-2", vendor="0bda", product="2838", devnum=2)
    key, read = _claim("usb-1-2")
    async with world.agent() as agent:
        await agent.prepare(key, read)
        radio.bind("dvb_usb_rtl28xxu").node("dvb", "dvb/adapter0/demux0", 212, 0)
        late.set(bcdDevice="0100")
        _look(agent)
        await _until(agent, lambda o: _bcd(o, "usb-1-2") == "0100")
        other, read_other = _claim("usb-1-2-1-0")
        with pytest.raises(HoldError):
            await agent.prepare(other, read_other)

        assert "usb-1-2-1-0" not in {o.name for o in agent.offer.devices}


def _bcd(offer: Offer, name: str) -> object:
    found = offer.find(name)
    return found and found.device.attributes.get("bcdDevice")
