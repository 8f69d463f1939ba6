"""Very many devices: whole controllers that vanish, numbers dealt out anew under twenty claims."""

from __future__ import annotations

import pytest
from hwlab import kernel
from hwlab.live import Claimed, Live, numbered, usb_name

pytestmark = pytest.mark.boots("many")

CONTROLLERS = ("0000:00:04.0", "0000:00:05.0", "0000:00:06.0")


def lines(controller: str) -> list[str]:
    """Return the serial adapters below a controller, by their USB addresses."""
    home = kernel.pci(controller)
    return [
        port
        for port in kernel.ports()
        if kernel.usb(port).startswith(f"{home}/")
        and kernel.driver("usb", f"{port}:1.0") == "ftdi_sio"
    ]


def name_of(port: str) -> str:
    return usb_name(f"{port}:1.0")


def nodes(port: str) -> dict[str, tuple[int, int]]:
    return numbered(*kernel.nodes_below(kernel.usb(port)))


async def claims_of(live: Live, *ports: str) -> dict[str, Claimed]:
    return {port: await live.take(name_of(port), kernel.usb(port)) for port in ports}


async def test_all_are_published_in_slices_of_one_pool(live: Live, boot: str) -> None:
    assert len(live.published) > 160
    assert len(live.slices) >= 2
    assert len({one["spec"]["pool"]["generation"] for one in live.slices}) == 1
    names = [device["name"] for one in live.slices for device in one["spec"]["devices"]]
    assert len(names) == len(set(names))


async def test_one_more_comes_and_goes(live: Live, boot: str) -> None:
    before = set(live.published)
    await kernel.ctl("plug", "ftdi-a")
    name = name_of(kernel.serial_port("FTHOT001"))
    await live.until_offered(name)
    assert set(live.published) - before == {name}
    await kernel.ctl("unplug", "ftdi-a")
    await live.until(lambda: set(live.published) == before, "as before")


async def test_twenty_claims_follow_lines_whose_numbers_are_dealt_out_anew(
    live: Live, boot: str
) -> None:
    """Every line loses its driver, and gets it again in the opposite order."""
    ports = [port for one in CONTROLLERS[:2] for port in lines(one)][:20]
    claims = await claims_of(live, *ports)
    before = {port: nodes(port) for port in ports}
    at = "/sys/bus/usb/drivers/ftdi_sio"
    for port in ports:
        await kernel.write(f"{at}/unbind", f"{port}:1.0")
    for port in reversed(ports):
        await kernel.write(f"{at}/bind", f"{port}:1.0")

    assert len(claims) == 20
    assert sum(nodes(port) != before[port] for port in ports) > 15
    for port, claimed in claims.items():
        await live.until_delivered(claimed, nodes, port)
    assert live.witness.look() == []
    assert len(live.published) == len({*live.published})


async def test_a_controller_that_falls_off_takes_its_devices_and_brings_them_back(
    live: Live, boot: str
) -> None:
    before = set(live.published)
    gone, stays = lines(CONTROLLERS[1]), lines(CONTROLLERS[0])
    assert gone
    held = await claims_of(live, *gone[:5], *stays[:2])
    await kernel.ctl("remove", CONTROLLERS[1])
    for port in gone[:5]:
        await live.until_held_back(held[port])
    await live.until_gone(*(name_of(port) for port in gone[5:]))
    for port in stays[:2]:
        await live.until_delivered(held[port], nodes, port)

    await kernel.ctl("rescan")
    await live.until(lambda: len(lines(CONTROLLERS[1])) == len(gone), "all lines are back")
    for port in (*gone[:5], *stays[:2]):
        await live.until_delivered(held[port], nodes, port)
    await live.until(lambda: live.free == before, "as before", lambda: live.free ^ before)


async def test_a_storm_over_all_buses_ends_in_the_truth(live: Live, boot: str) -> None:
    await live.quiet()
    before, writes = live.slices, len(live.server.writes())
    with kernel.Events() as events:
        await kernel.run("udevadm", "trigger", "--type=devices", "--action=add")
        await kernel.run("udevadm", "settle", "--timeout=300")
        await live.quiet()

    assert events.count > 1000
    assert live.slices == before
    assert len(live.server.writes()) == writes


async def test_memory_stays_small(live: Live, boot: str) -> None:
    assert kernel.resident(live.pid) < 200 << 10
    assert kernel.threads(live.pid) < 64
    assert kernel.descriptors(live.pid) < 128
