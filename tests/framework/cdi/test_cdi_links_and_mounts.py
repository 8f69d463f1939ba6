"""Device nodes that a driver names by a link, or hides in a mount."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from broker_world import World, claim, prepare

from hardpoint import Device, Node, cdi
from hardpoint.errors import HoldError
from hardpoint.model import Delivery, DeviceNode, Mount


@pytest.mark.field_case("G18")
def test_a_node_that_is_named_by_a_link_is_delivered_as_what_the_link_leads_to(
    tmp_path: Path,
) -> None:
    link = tmp_path / "serial/by-id/usb-Acme-if00"
    link.parent.mkdir(parents=True)
    link.symlink_to("/dev/null")
    named = DeviceNode(path="/dev/serial/by-id/usb-Acme-if00")

    resolved = cdi.resolve(Delivery(nodes=(named,)), Node(dev=tmp_path, sys=tmp_path))
    document = cdi.spec("a.dev", [("u-x", resolved)])

    (node,) = document["devices"][0]["containerEdits"]["deviceNodes"]
    numbers = os.stat("/dev/null").st_rdev
    assert (node["type"], node["path"]) == ("c", "/dev/serial/by-id/usb-Acme-if00")
    assert (node["major"], node["minor"]) == (os.major(numbers), os.minor(numbers))


class Mounting:
    """A driver that delivers a mount."""

    def __init__(self, *sources: str) -> None:
        self.mounts = tuple(Mount(host_path=source, container_path="/m") for source in sources)

    def deliver_device(self, device: Device) -> Delivery:
        return Delivery(mounts=self.mounts)


def _world(root: Path, source: str) -> World:
    world = World(root)
    drivers: dict[str, Any] = world.hooks.drivers
    drivers["mounting"] = Mounting(source)
    world.add(Device(name="x", kind="x", driver="mounting"))
    return world


@pytest.mark.field_case("H08")
@pytest.mark.parametrize("source", ["/dev", "/dev/", "/dev/sda", "/dev/../dev/snd", "//dev/dri"])
async def test_a_device_is_never_delivered_as_a_mount(tmp_path: Path, source: str) -> None:
    """It would be seen and not be opened, and nobody would know that it has an owner."""
    world = _world(tmp_path, source)
    async with world.broker() as broker:
        with pytest.raises(HoldError, match="deliver its nodes"):
            await prepare(broker, claim("u1", "x"))

        assert world.files() == []


@pytest.mark.parametrize("source", ["/dev/shm", "/dev/shm/acme", "/opt/acme/dev", "/devices"])
async def test_what_is_no_device_may_be_mounted(tmp_path: Path, source: str) -> None:
    world = _world(tmp_path, source)
    async with world.broker() as broker:
        assert await prepare(broker, claim("u1", "x"))
