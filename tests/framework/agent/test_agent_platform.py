"""What the machine itself uses is given to nobody, at whatever step it came into use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hardpoint import Delivery, Device, DeviceNode, Node, hookimpl
from hardpoint.errors import HoldDenied
from hardpoint.settings import Rule

from .conftest import World, claim, reading, until


class Disks:
    """A driver of disks that knows nothing of mounts."""

    def __init__(self, node: Node, settings: Any) -> None:
        self.node = node

    @hookimpl
    def publish_devices(self) -> Iterator[Device]:
        for disk in self.node.each("block"):
            yield Device(name=disk.name, kind="disk", nodes=disk.nodes(), parts=disk.whole())


ALLOW = Rule(action="allow", where={"kind": "disk"})


@pytest.fixture
def disks(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.driver = Disks  # type: ignore[assignment]
    hba = world.machine.pci("0000:00:05.0", klass="010601", driver="ahci")
    hba.ata(1, host=0).disk("sda", 8, 0)
    hba.ata(2, host=1).disk("sdb", 8, 16)
    world.machine.mount("8:0", "/srv", source="/dev/sda")
    return world


async def test_a_mounted_disk_is_not_offered_whatever_a_rule_says(disks: World) -> None:
    async with disks.agent(rules=(ALLOW,)) as agent:
        assert [o.name for o in agent.offer.devices] == ["sdb"]


async def test_a_disk_that_was_mounted_since_the_last_scan_is_refused(disks: World) -> None:
    wanted = claim("sdb")
    async with disks.agent(rules=(ALLOW,)) as agent:
        disks.machine.mount("8:16", "/data", source="/dev/sdb")

        with pytest.raises(HoldDenied, match="/data"):
            await agent.prepare(wanted.key, reading(wanted))
        assert agent.holds() == ()


def _sign(disks: World) -> None:
    """Let udev have found a locked LUKS disk in /dev/sdb."""
    record = disks.machine.run / "udev/data/b8:16"
    record.parent.mkdir(parents=True)
    record.write_text("E:ID_FS_TYPE=crypto_LUKS\nE:ID_FS_USAGE=crypto\n")


async def test_a_disk_with_a_signature_is_given_where_a_rule_names_it(disks: World) -> None:
    _sign(disks)
    wanted = claim("sdb")
    named = Rule(action="allow", where={"device": "sdb"})
    async with disks.agent(rules=(ALLOW,)) as agent:
        assert agent.offer.devices == ()

    async with disks.agent(rules=(named,)) as agent:
        assert await agent.prepare(wanted.key, reading(wanted))
        (file,) = disks.paths.cdi.glob("*.json")
        assert "/dev/sdb" in file.read_text()


async def test_a_disk_that_was_named_and_is_mounted_now_is_refused(disks: World) -> None:
    _sign(disks)
    wanted = claim("sdb")
    async with disks.agent(rules=(Rule(action="allow", where={"device": "sdb"}),)) as agent:
        disks.machine.mount("8:16", "/data", source="/dev/sdb")

        with pytest.raises(HoldDenied, match="/data"):
            await agent.prepare(wanted.key, reading(wanted))


async def test_a_disk_that_got_a_signature_since_the_last_scan_is_refused(disks: World) -> None:
    wanted = claim("sdb")
    async with disks.agent(rules=(ALLOW,)) as agent:
        _sign(disks)

        with pytest.raises(HoldDenied, match="signature"):
            await agent.prepare(wanted.key, reading(wanted))


async def test_a_disk_stays_with_its_holder_who_builds_upon_it(disks: World) -> None:
    wanted = claim("sdb")
    async with disks.agent(rules=(ALLOW,)) as agent:
        await agent.prepare(wanted.key, reading(wanted))
        disks.machine.swap("/dev/sdb")
        agent._scanner.wake.set()
        disks.machine.pci("0000:00:06.0", klass="010601", driver="ahci").ata(1, host=2).disk(
            "sdc", 8, 32
        )

        offer = await until(agent, lambda o: o.find("sdc") is not None)

        assert offer.find("sdb") is not None
        assert await agent.prepare(wanted.key, reading(wanted))


async def test_no_driver_can_deliver_what_the_machine_keeps(disks: World) -> None:
    class Careless(Disks):
        @hookimpl
        def deliver_device(self, device: Device) -> Delivery:
            tpm = DeviceNode(path="/dev/tpm0", major=10, minor=224)
            return Delivery(nodes=(*device.nodes, tpm))

    disks.driver = Careless  # type: ignore[assignment]
    wanted = claim("sdb")
    async with disks.agent(rules=(ALLOW,)) as agent:
        with pytest.raises(HoldDenied, match="TPM"):
            await agent.prepare(wanted.key, reading(wanted))


class Ports:
    """A driver of one card with two serial ports, which knows nothing of consoles."""

    def __init__(self, node: Node, settings: Any) -> None:
        self.node = node

    @hookimpl
    def publish_devices(self) -> Iterator[Device]:
        for card in self.node.each("bus/pci/devices"):
            yield Device(name="ports", kind="tty", nodes=card.nodes(), parts=card.whole())


async def test_a_holder_gets_no_node_of_the_machines_for_holding_the_others(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.driver = Ports  # type: ignore[assignment]
    card = world.machine.pci("0000:00:05.0", klass="070002", driver="serial")
    card.node("tty", "ttyS0", 4, 64).node("tty", "ttyS1", 4, 65)
    world.machine.consoles("ttyS0")
    wanted = claim("ports")
    async with world.agent() as agent:
        await agent.prepare(wanted.key, reading(wanted))
        card.set(revision="0x02").node("ptp", "ptp0", 247, 0)
        agent._scanner.wake.set()
        offer = await until(agent, lambda o: len(o.find("ports").device.nodes) > 1)  # type: ignore[union-attr]
        await agent.prepare(wanted.key, reading(wanted))

        paths = [node.path for node in offer.find("ports").device.nodes]  # type: ignore[union-attr]
        (file,) = world.paths.cdi.glob("*.json")
        assert sorted(paths) == ["/dev/ptp0", "/dev/ttyS1"]
        assert "/dev/ttyS0" not in file.read_text()
