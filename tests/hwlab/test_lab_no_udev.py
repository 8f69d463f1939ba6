"""A node without udev: no database, no links, no groups; the kernel alone tells of devices."""

from __future__ import annotations

import pytest
from hwlab import kernel
from hwlab.live import Live, numbered, usb_name

pytestmark = pytest.mark.boots("no-udev")


def name_of(serial: str) -> str:
    return usb_name(f"{kernel.serial_port(serial)}:1.0")


def nodes(serial: str) -> dict[str, tuple[int, int]]:
    return numbered(*kernel.nodes_below(kernel.usb(kernel.serial_port(serial))))


async def test_a_claim_follows_its_adapter_to_another_number(live: Live, boot: str) -> None:
    for extra in ("ftdi-a", "ftdi-b"):
        await kernel.ctl("plug", extra)
    name, port = name_of("FTHOT001"), kernel.serial_port("FTHOT001")
    await live.until_offered(name)
    assert "byId" not in live.published[name]["attributes"]
    claimed = await live.take(name, kernel.usb(port))
    before = nodes("FTHOT001")
    await live.until_delivered(claimed, lambda: before)

    lines = [f"{port}:1.0", f"{kernel.serial_port('FTHOT002')}:1.0"]
    for line in lines:
        await kernel.ctl("unbind", line)
    for line in reversed(lines):
        await kernel.ctl("bind", line, "ftdi_sio")

    assert nodes("FTHOT001") != before
    await live.until_delivered(claimed, nodes, "FTHOT001")
    await kernel.ctl("unplug", "ftdi-a")
    await live.until_held_back(claimed)


@pytest.mark.parametrize("extra", ["keyboard", "usbsound", "gpu", "composite", "webcam"])
async def test_what_is_plugged_in_is_offered_with_nodes_that_are_there(
    live: Live, boot: str, extra: str
) -> None:
    before = set(live.published)
    await kernel.ctl("plug", extra)
    await live.until(lambda: len(live.free) > len(before), "there is more")
    await live.quiet()
    new = sorted(set(live.published) - before)
    for name in new:
        claimed = await live.take(name)
        assert live.delivered(claimed) == numbered(*live.delivered(claimed))
        await live.give_back(claimed)
    await kernel.ctl("unplug", extra)
    await live.until(lambda: set(live.published) == before, "as before")


async def test_a_disk_is_offered_by_no_plug(live: Live, boot: str) -> None:
    before = set(live.published)
    for name in ("nvme", "usbdisk", "stick"):
        await kernel.ctl("plug", name)
    await live.quiet()
    assert set(live.published) == before
