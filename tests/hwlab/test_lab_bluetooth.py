"""Bluetooth: a USB controller under a claim, and what connects meanwhile."""

from __future__ import annotations

import pytest
from hwlab import kernel
from hwlab.live import Live, usb_name

pytestmark = pytest.mark.boots("bluetooth")


def dongle() -> str:
    """Return the USB address of the controller."""
    return next(port for port in kernel.ports() if kernel.driver("usb", f"{port}:1.0") == "btusb")


async def test_a_held_controller_is_unplugged_and_comes_back(live: Live, boot: str) -> None:
    address = dongle()
    name = usb_name(f"{address}:1.0")
    claimed = await live.take(name)
    assert "/dev/uhid" in live.delivered(claimed)
    await kernel.ctl("unplug", "dongle")
    await live.until_held_back(claimed)

    await kernel.ctl("plug", "dongle")
    assert dongle() == address
    (usbfs,) = kernel.nodes_below(kernel.usb(address), "usb")
    await live.until(lambda: usbfs in live.delivered(claimed), "its node is delivered")


async def test_a_second_controller_is_another_device(live: Live, boot: str) -> None:
    before = set(live.published)
    await kernel.ctl("plug", "btusb")
    await live.until(lambda: len(live.free) == len(before) + 1, "one more")
    (name,) = set(live.published) - before
    assert live.published[name]["attributes"]["kind"] == {"string": "bluetooth.adapter"}
    await kernel.ctl("unplug", "btusb")
    await live.until(lambda: set(live.published) == before, "as before")


async def test_a_gamepad_that_connects_is_nobodys_device(live: Live, boot: str) -> None:
    before = set(live.published)
    await kernel.ctl("plug", "pad")
    await live.quiet()
    assert set(live.published) == before
