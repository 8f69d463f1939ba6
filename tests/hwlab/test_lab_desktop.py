"""A workstation: what is plugged, pulled, bound and renumbered under claims."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import anyio
import pytest
from hwlab import kernel
from hwlab.live import Claimed, Live, numbered, usb_name

pytestmark = pytest.mark.boots("desktop")

SERIAL_1, SERIAL_2 = "usb-1-1-1-0", "usb-1-2-1-0"
HDA, AC97 = "pci-0000-00-05-0", "pci-0000-00-06-0"


def tty(address: str) -> str:
    """Return the serial line of a USB port."""
    (node,) = kernel.nodes_below(kernel.usb(address), "tty")
    return node


def usbfs(address: str) -> str:
    (node,) = kernel.nodes_below(kernel.usb(address), "usb")
    return node


def line(address: str) -> dict[str, tuple[int, int]]:
    """Return what the holder of a serial adapter is to receive now."""
    return numbered(tty(address), usbfs(address))


async def test_an_adapter_comes_and_goes(live: Live, boot: str) -> None:
    before = set(live.published)
    await kernel.ctl("plug", "ftdi-a")
    address = kernel.serial_port("FTHOT001")
    name = usb_name(f"{address}:1.0")
    await live.until_offered(name)

    assert set(live.published) - before == {name}
    assert live.published[name]["attributes"]["serial"] == {"string": "FTHOT001"}
    await kernel.ctl("unplug", "ftdi-a")
    await live.until(lambda: set(live.published) == before, "as before")


async def test_twins_say_that_their_serial_number_tells_nothing(live: Live, boot: str) -> None:
    def unique() -> list[str]:
        return sorted(
            name
            for name, device in live.published.items()
            if device["attributes"].get("serial") == {"string": "FTHOT001"}
            and "serialUnique" in device["attributes"]
        )

    await kernel.ctl("plug", "ftdi-a")
    name = usb_name(f"{kernel.serial_port('FTHOT001')}:1.0")
    await live.until(lambda: unique() == [name], "one is unique", unique)
    await kernel.ctl("plug", "ftdi-twin")
    await live.until(lambda: unique() == [], "of two none is", unique)
    await kernel.ctl("unplug", "ftdi-twin")
    await live.until(lambda: unique() == [name], "it is again", unique)


async def test_a_claim_follows_its_adapter_to_another_number(live: Live, boot: str) -> None:
    claimed = await live.take(SERIAL_1, kernel.usb("1-1"))
    old = tty("1-1")
    await live.until_delivered(claimed, line, "1-1")

    await kernel.ctl("unplug", "serial-1")
    await live.until_held_back(claimed)
    await kernel.ctl("plug", "ftdi-b")
    other = kernel.serial_port("FTHOT002")
    assert tty(other) == old  # the kernel gives away the number that is free
    stranger = usb_name(f"{other}:1.0")
    await live.until(lambda: stranger in live.published, "the other is published")
    assert live.delivered(claimed) == {}
    assert stranger not in live.free  # the pod that runs still may open the old number
    await live.is_refused(stranger, "claim-")

    await kernel.ctl("plug", "serial-1")
    assert tty("1-1") != old
    await live.until_delivered(claimed, line, "1-1")
    assert live.witness.strays == {}
    await live.give_back(claimed)
    await live.until_offered(stranger)


async def test_the_file_has_the_group_that_udev_gives_the_line(live: Live, boot: str) -> None:
    claimed = await live.take(SERIAL_1, kernel.usb("1-1"))
    await kernel.ctl("unplug", "serial-1")
    await live.until_held_back(claimed)
    await kernel.ctl("plug", "serial-1")
    wanted = kernel.group(tty("1-1"))

    def groups() -> dict[str, int]:
        found = live.injected(claimed)
        return {node["path"]: node.get("gid", 0) for node in found.nodes} if found else {}

    assert wanted != 0
    await live.until(lambda: groups().get(tty("1-1")) == wanted, "its group", groups)


async def test_another_model_in_its_port_is_not_the_claims(live: Live, boot: str) -> None:
    claimed = await live.take(SERIAL_1, kernel.usb("1-1"))
    await kernel.ctl("unplug", "serial-1")
    await live.until_held_back(claimed)

    await kernel.ctl("add", "usb-kbd,bus=xhci.0,port=1,id=intruder")
    try:
        keyboard = kernel.nodes_below(kernel.usb("1-1"), "input", "hidraw")
        assert keyboard
        await live.quiet()
        assert live.delivered(claimed) == {}
        assert live.injected(claimed) is None
        assert SERIAL_1 not in live.free
    finally:
        await kernel.ctl("del", "intruder")
    await kernel.ctl("plug", "serial-1")
    await live.until_delivered(claimed, line, "1-1")


async def test_a_claim_follows_its_driver_out_and_in(live: Live, boot: str) -> None:
    claimed = await live.take(SERIAL_1, kernel.usb("1-1"))
    await kernel.ctl("unbind", "1-1:1.0")
    await live.until_delivered(claimed, numbered, usbfs("1-1"))
    assert SERIAL_1 in live.published

    await kernel.ctl("bind", "1-1:1.0", "ftdi_sio")
    await live.until_delivered(claimed, line, "1-1")


async def test_a_held_device_that_reenumerates_is_followed(live: Live, boot: str) -> None:
    """The hub above it is reset: it comes back as a new device of the bus."""
    claimed = await live.take("usb-1-4-1-2-1-0", kernel.usb("1-4.1.2"))
    before = line("1-4.1.2")
    await kernel.ctl("unbind", "1-4:1.0")
    await live.until_held_back(claimed)
    await kernel.ctl("bind", "1-4:1.0", "hub")
    await live.until(lambda: kernel.exists("usb", "1-4.1.2:1.0"), "it is back")
    await live.until(lambda: kernel.nodes_below(kernel.usb("1-4.1.2"), "tty"), "with its driver")

    assert usbfs("1-4.1.2") not in before
    await live.until_delivered(claimed, line, "1-4.1.2")
    assert live.witness.strays == {}


async def test_a_device_that_is_not_authorised_any_more_is_not_delivered(
    live: Live, boot: str
) -> None:
    claimed = await live.take(SERIAL_1, kernel.usb("1-1"))
    await kernel.write(f"{kernel.usb('1-1')}/authorized", "0")
    await live.until_held_back(claimed)
    assert SERIAL_1 not in live.free

    await kernel.write(f"{kernel.usb('1-1')}/authorized", "1")
    await live.until(lambda: kernel.nodes_below(kernel.usb("1-1"), "tty"), "it has its driver")
    await live.until_delivered(claimed, line, "1-1")


def sound(address: str) -> dict[str, tuple[int, int]]:
    return numbered(*kernel.nodes_below(kernel.pci(address), "sound"))


def control(address: str) -> str:
    """Return a card's control node; ``""`` while it has none."""
    found = kernel.nodes_below(kernel.pci(address), "sound")
    return next((path for path in found if "/controlC" in path), "")


async def test_claims_follow_two_sound_cards_that_change_their_numbers(
    live: Live, boot: str
) -> None:
    one = await live.take(HDA, kernel.pci("0000:00:05.0"))
    two = await live.take(AC97, kernel.pci("0000:00:06.0"))
    before = control("0000:00:05.0")
    control_of_two = control("0000:00:06.0")
    drivers = [kernel.driver("pci", address) for address in ("0000:00:05.0", "0000:00:06.0")]
    await kernel.ctl("unbind", "0000:00:05.0")
    await kernel.ctl("unbind", "0000:00:06.0")
    await live.until_held_back(one)
    await live.until_held_back(two)
    order = [("0000:00:05.0", drivers[0]), ("0000:00:06.0", drivers[1])]
    for address, driver in reversed(order) if before < control_of_two else order:
        await kernel.ctl("bind", address, driver)

    await live.until(lambda: control("0000:00:05.0"), "it has nodes")
    await live.until(lambda: control("0000:00:06.0"), "it has nodes")
    assert before
    assert control("0000:00:05.0") != before
    await live.until_delivered(one, sound, "0000:00:05.0")
    await live.until_delivered(two, sound, "0000:00:06.0")
    assert live.witness.strays == {}


async def test_a_claim_follows_a_card_that_falls_off_the_bus(live: Live, boot: str) -> None:
    card = "pci-0000-00-02-0-display"
    claimed = await live.take(card, kernel.pci("0000:00:02.0"))
    await kernel.ctl("remove", "0000:00:02.0")
    await live.until_held_back(claimed)
    await live.until(lambda: card not in live.free, "it is tainted")

    await kernel.ctl("rescan")
    await live.until(lambda: kernel.driver("pci", "0000:00:02.0"), "its driver is bound")
    display = {
        path
        for path in kernel.nodes_below(kernel.pci("0000:00:02.0"), "drm")
        if path.startswith("/dev/dri/card")
    }
    await live.until_delivered(claimed, numbered, *display)
    await live.until(lambda: card in live.free, "it is offered again")


async def test_while_its_module_is_out_a_line_is_a_whole_device(live: Live, boot: str) -> None:
    claimed = await live.take(SERIAL_1, kernel.usb("1-1"))
    await kernel.run("modprobe", "-r", "ftdi_sio")
    await live.until_offered("usb-1-2")
    await live.until_gone(SERIAL_2)
    await live.until_delivered(claimed, numbered, usbfs("1-1"))
    assert "usb-1-1" not in live.published  # what one holds by its interface is not offered whole

    whole = await live.take("usb-1-2", kernel.usb("1-2"))
    await kernel.run("modprobe", "ftdi_sio")
    await live.until(lambda: kernel.nodes_below(kernel.usb("1-2"), "tty"), "the line is back")
    await live.until_delivered(claimed, line, "1-1")
    await live.quiet()
    assert SERIAL_2 not in live.published  # it is held whole
    await live.give_back(whole)
    await live.until_offered(SERIAL_2)
    await live.until_gone("usb-1-2")


async def test_a_node_that_comes_late_is_delivered_when_it_is_there(live: Live, boot: str) -> None:
    """No event tells of it: the kernel has spoken, and whoever makes the nodes is slow."""
    claimed = await live.take(SERIAL_1, kernel.usb("1-1"))
    wanted = line("1-1")
    path = tty("1-1")
    os.rename(path, f"{path}.late")
    try:
        await live.restart()
        await live.until_held_back(claimed)
    finally:
        os.rename(f"{path}.late", path)
    await live.until_delivered(claimed, lambda: wanted)


async def test_a_killed_agent_finds_what_was_renumbered_without_it(live: Live, boot: str) -> None:
    claimed = await live.take(SERIAL_1, kernel.usb("1-1"))
    old = tty("1-1")
    os.kill(live.pid, signal.SIGKILL)
    await live.ended()
    await kernel.ctl("unplug", "serial-1")
    await kernel.ctl("plug", "ftdi-b")
    await kernel.ctl("plug", "serial-1")
    assert tty("1-1") != old

    await live.start()
    await live.until_delivered(claimed, line, "1-1")


# -- storms ---------------------------------------------------------------------------------------


async def rebind(address: str, times: int) -> None:
    """Take a driver off and on again; each time some ten events."""
    at = f"/sys/bus/usb/drivers/{kernel.driver('usb', address)}"
    for _ in range(times):
        await kernel.write(f"{at}/unbind", address)
        await kernel.write(f"{at}/bind", address)


async def test_a_storm_of_events_ends_in_the_truth(live: Live, boot: str) -> None:
    await live.quiet()
    before, writes = live.published, len(live.server.writes("resourceslices"))
    one = await live.take(SERIAL_1, kernel.usb("1-1"))
    two = await live.take(SERIAL_2, kernel.usb("1-2"))
    with kernel.Events() as events:
        async with anyio.create_task_group() as tasks:
            for address in ("1-1:1.0", "1-2:1.0", "1-4.1.2:1.0"):
                tasks.start_soon(rebind, address, 10)
        await live.until_delivered(one, line, "1-1")
        await live.until_delivered(two, line, "1-2")
        await live.quiet()

    assert events.count > 200
    assert set(live.published) == set(before)
    assert len(live.server.writes("resourceslices")) - writes < events.count / 2
    assert live.witness.look() == []


async def test_what_is_told_again_of_everything_changes_nothing(live: Live, boot: str) -> None:
    await live.quiet()
    writes, before = len(live.server.writes()), live.published
    with kernel.Events() as events:
        await kernel.run("udevadm", "trigger", "--type=devices", "--action=add")
        await kernel.run("udevadm", "settle")
        await live.quiet()

    assert events.count > 200
    assert {name for name, one in live.published.items() if before.get(name) != one} == set()
    assert len(live.server.writes()) == writes


@pytest.fixture
def small(live: Live) -> Iterator[None]:
    """Compare what the agent uses after a test with before; it is the same process."""
    before = (kernel.descriptors(live.pid), kernel.threads(live.pid))
    yield
    after = (kernel.descriptors(live.pid), kernel.threads(live.pid))
    assert kernel.resident(live.pid) < 160 << 10
    assert after[0] <= before[0] + 8
    assert after[1] <= before[1] + 16


@pytest.mark.usefixtures("small")
async def test_ten_claims_leave_nothing_behind(live: Live, boot: str) -> None:
    for _ in range(10):
        claimed: Claimed = await live.take(SERIAL_2, kernel.usb("1-2"))
        await live.give_back(claimed)

    assert list(live.cdi.iterdir()) == []
    assert (await live.json("holds")) == []
