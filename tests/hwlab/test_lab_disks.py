"""Storage: what the machine uses is never offered, whatever the settings allow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hwlab import kernel
from hwlab.live import Live, nodes_of

pytestmark = pytest.mark.boots("disks")

ALLOW = '[[rules]]\naction = "allow"\nwhere = {subsystem = "block"}\n'
"""Every block device: the most that an administrator can get wrong."""
DATA = "wwn-0x5000c500bbbb0001"
"""The disk that is mounted at /srv/data."""
FREE = 12
"""Of 21 disks, as in tests/golden/README.md."""


@pytest.fixture
def settings() -> str:
    return ALLOW


def disks(live: Live) -> set[str]:
    return {
        name
        for name, device in live.published.items()
        if device["attributes"].get("subsystem") == {"string": "block"}
    }


async def look(live: Live) -> None:
    """Wake the agent: nothing tells of a mount."""
    await kernel.write("/sys/devices/platform/pcspkr/uevent", "add")
    await live.quiet()


async def offered_disks(live: Live) -> dict[str, list[str]]:
    """Return the nodes of each disk by the device's name."""
    shown = (await live.json("devices"))["devices"]
    return {
        device["name"]: [node["path"] for node in device["nodes"] if node["type"] == "b"]
        for device in shown
        if any(node["type"] == "b" for node in device["nodes"])
    }


def of(word: str) -> str:
    """Return the disk whose names, which udev made, have this in them: ``sdc``."""
    links = [link for link in Path("/dev/disk/by-id").iterdir() if word in link.name]
    found = {os.path.basename(os.path.realpath(link)) for link in links}
    return next(name for name in sorted(found) if (Path("/sys/block") / name).exists())


async def device_of(live: Live, disk: str) -> str:
    found = await offered_disks(live)
    return next(name for name, paths in found.items() if f"/dev/{disk}" in paths)


async def test_of_all_disks_those_are_offered_that_nobody_uses(live: Live, boot: str) -> None:
    found = await offered_disks(live)
    whole = {path.removeprefix("/dev/") for paths in found.values() for path in paths}

    assert set(found) == disks(live)
    assert len(found) == FREE
    assert not whole & kernel.disks_of_the_machine()
    used = [name for name in os.listdir("/sys/block") if os.listdir(f"/sys/block/{name}/holders")]
    assert used
    assert not whole & set(used)


async def test_a_disk_that_is_mounted_after_it_was_offered_is_not_given(
    live: Live, boot: str, tmp_path: Path
) -> None:
    disk = of("USB-TWIN")
    name = await device_of(live, disk)
    await kernel.run("mkfs.ext4", "-q", f"/dev/{disk}")
    await kernel.run("mount", f"/dev/{disk}", str(tmp_path))
    try:
        assert name in disks(live)  # no event has told of it
        await live.is_refused(name, "mounted")
    finally:
        await kernel.run("umount", str(tmp_path))
    await look(live)
    await live.until(lambda: name in live.free, "it is free again")


async def test_a_disk_that_is_swapped_to_leaves_and_comes_back(live: Live, boot: str) -> None:
    before, disk = disks(live), of("VIRTIO-SWAP")
    await kernel.run("swapoff", f"/dev/{disk}")
    try:
        await look(live)
        await live.until(lambda: len(disks(live)) == FREE + 1, "one more", lambda: disks(live))
        (name,) = disks(live) - before
    finally:
        await kernel.run("swapon", f"/dev/{disk}")
    await live.is_refused(name, "swapped")
    await look(live)
    await live.until(lambda: disks(live) == before, "as before", lambda: disks(live))


async def test_a_claim_follows_its_disk_to_another_letter(live: Live, boot: str) -> None:
    first, second = sorted(kernel.serial_ports("USB-TWIN"))
    before = [kernel.disk_below(kernel.usb(port)) for port in (first, second)]
    name = await device_of(live, before[0])
    claimed = await live.take(name, kernel.usb(first))
    await live.until_delivered(claimed, nodes_of, kernel.usb(first))
    for twin in ("twin-0", "twin-1"):
        await kernel.ctl("unplug", twin)
    await live.until_held_back(claimed)
    for twin in ("twin-1", "twin-0"):  # the letters go to whoever comes first
        await kernel.ctl("plug", twin)

    assert [kernel.disk_below(kernel.usb(port)) for port in (first, second)] != before
    await live.until_delivered(claimed, nodes_of, kernel.usb(first))
    assert live.witness.strays == {}


async def test_a_disk_that_is_pulled_while_mounted_leaves_nothing(live: Live, boot: str) -> None:
    before = disks(live)
    await kernel.ctl("unplug", "data")
    try:
        await live.quiet()
        assert not disks(live) - before
    finally:
        await kernel.run("umount", "--lazy", "/srv/data")
        await kernel.ctl("plug", "data")
        await kernel.run("mount", f"/dev/{of(DATA)}", "/srv/data")
        await look(live)
    await live.until(lambda: disks(live) == before, "as before", lambda: disks(live) ^ before)


async def test_an_nvme_disk_comes_and_goes(live: Live, boot: str) -> None:
    before = disks(live)
    await kernel.ctl("plug", "nvme")
    await live.until(lambda: len(disks(live)) == len(before) + 1, "one more")
    (name,) = disks(live) - before
    claimed = await live.take(name)
    assert all(path.startswith("/dev/nvme") for path in live.delivered(claimed))
    await kernel.ctl("unplug", "nvme")
    await live.until_held_back(claimed)
    await live.give_back(claimed)
    await live.until(lambda: disks(live) == before, "as before", lambda: disks(live))
