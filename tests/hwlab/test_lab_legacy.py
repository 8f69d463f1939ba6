"""An old PC: a bus without names for its slots, UHCI, a parallel port, hot-plug by ACPI."""

from __future__ import annotations

import pytest
from hwlab import kernel
from hwlab.live import Live, numbered, usb_name

pytestmark = pytest.mark.boots("legacy")

ADAPTER = "usb-1-2-1-0"


def nodes(address: str) -> dict[str, tuple[int, int]]:
    return numbered(*kernel.nodes_below(kernel.usb(address)))


async def test_a_function_on_the_root_bus_comes_and_goes(live: Live, boot: str) -> None:
    async def why() -> list[str]:
        found = (await live.json("devices", "--why", "0000:00:12.0"))["not_offered"]
        return [one["rule"] for one in found]

    before = set(live.published)
    assert await why() == []
    await kernel.ctl("plug", "nic-pci")
    assert await why() == ["no-nodes"]
    await live.quiet()
    assert set(live.published) == before
    await kernel.ctl("unplug", "nic-pci")
    assert await why() == []


async def test_an_adapter_on_a_hub_comes_and_goes(live: Live, boot: str) -> None:
    before = set(live.published)
    await kernel.ctl("plug", "ftdi-uhci")
    address = kernel.serial_port("OLDHOT1")
    await live.until_offered(usb_name(f"{address}:1.0"))
    await kernel.ctl("unplug", "ftdi-uhci")
    await live.until(lambda: set(live.published) == before, "as before")


async def test_a_claim_follows_its_adapter_to_another_number(live: Live, boot: str) -> None:
    claimed = await live.take(ADAPTER, kernel.usb("1-2"))
    before = nodes("1-2")
    await kernel.ctl("unplug", "serial-2")
    await live.until_held_back(claimed)
    await kernel.ctl("plug", "ftdi-uhci")
    await kernel.ctl("plug", "serial-2")

    await live.until_delivered(claimed, nodes, "1-2")
    assert nodes("1-2") != before
    assert live.witness.strays == {}


async def test_a_controller_that_falls_off_the_bus_takes_all_its_devices(
    live: Live, boot: str
) -> None:
    before = set(live.published)
    claimed = await live.take(ADAPTER, kernel.usb("1-2"))
    await kernel.ctl("remove", "0000:00:08.0")
    await live.until_held_back(claimed)
    await live.until_gone(*(n for n in before if n.startswith("usb-1-") and n != ADAPTER))

    await kernel.ctl("rescan")
    await live.until(lambda: kernel.exists("usb", "1-2:1.0"), "the bus is back")
    await live.until(lambda: kernel.nodes_below(kernel.usb("1-2"), "tty"), "with its line")
    await live.until_delivered(claimed, nodes, "1-2")
    await live.until(lambda: live.free == before, "all are back", lambda: live.free ^ before)


async def test_the_parallel_port_follows_its_modules(live: Live, boot: str) -> None:
    claimed = await live.take("pnp-00-00")
    both = numbered("/dev/parport0", "/dev/lp0")
    await live.until_delivered(claimed, lambda: both)
    await kernel.run("modprobe", "-r", "lp")
    try:
        await live.until_delivered(claimed, numbered, "/dev/parport0")
    finally:
        await kernel.run("modprobe", "lp")
    await live.until_delivered(claimed, lambda: both)
