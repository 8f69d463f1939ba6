"""Gadgets of the kernel's own: composite devices, twins, and what strings they have."""

from __future__ import annotations

import pytest
from hwlab import kernel
from hwlab.live import Live, nodes_of, numbered, usb_name

pytestmark = pytest.mark.boots("gadget")


def interface(address: str, *subsystems: str) -> str:
    """Return the interface of a USB device that has nodes of these subsystems."""
    found = kernel.interfaces(address)
    return next(one for one in found if kernel.nodes_below(kernel.usb(one), *subsystems))


async def test_two_claims_have_two_functions_of_one_device(live: Live, boot: str) -> None:
    address = kernel.serial_port("PLAIN-1")
    line, keys = interface(address, "tty"), interface(address, "hidraw")
    one = await live.take(usb_name(line), kernel.usb(line))
    two = await live.take(usb_name(keys), kernel.usb(keys))

    await live.until_delivered(one, nodes_of, kernel.usb(line))
    await live.until_delivered(two, nodes_of, kernel.usb(keys))
    assert not {path for path in live.delivered(one) if path.startswith("/dev/bus/usb")}

    await kernel.ctl("unplug", "plain")
    await live.until_held_back(one)
    await live.until_held_back(two)
    await kernel.ctl("plug", "plain")
    assert kernel.serial_port("PLAIN-1") == address
    await live.until_delivered(one, nodes_of, kernel.usb(line))
    await live.until_delivered(two, nodes_of, kernel.usb(keys))


async def test_a_twin_that_goes_is_not_replaced_by_the_other(live: Live, boot: str) -> None:
    first, second = kernel.serial_ports("SAME")
    one = await live.take(usb_name(f"{first}:1.0"), kernel.usb(first))
    two = await live.take(usb_name(f"{second}:1.0"), kernel.usb(second))
    before = live.delivered(two)

    await kernel.ctl("unplug", "twin-1")
    gone, left = (one, two) if not kernel.exists("usb", first) else (two, one)
    there = second if gone is one else first
    await live.until_held_back(gone)
    assert live.injected(left) is not None
    await kernel.ctl("plug", "hidvendor")  # another model takes its place
    assert kernel.serial_port("HID-1") in (first, second)
    await live.quiet()
    assert live.delivered(gone) == {}
    assert before
    own = kernel.nodes_below(kernel.usb(there), "tty", "usb")
    await live.until_delivered(left, numbered, *own)


async def test_a_serial_number_is_unique_again_once_its_twin_has_gone(
    live: Live, boot: str
) -> None:
    def unique() -> int:
        return sum(
            "serialUnique" in one["attributes"]
            for one in live.published.values()
            if one["attributes"].get("serial") == {"string": "SAME"}
        )

    assert unique() == 0
    await kernel.ctl("unplug", "twin-1")
    await live.until(lambda: unique() == 1, "it is unique", unique)
    await kernel.ctl("plug", "twin-1")
    await live.until(lambda: unique() == 0, "it is not", unique)


def test_strings_in_any_script_are_published(live: Live, boot: str) -> None:
    strings = [
        (device["attributes"].get("serial"), device["attributes"].get("name"))
        for device in live.published.values()
    ]
    name = "Müller & Söhne — ООО «Пример» 测试设备 🎛"

    assert ({"string": "№ 42/Ω"}, {"string": name}) in strings


@pytest.mark.parametrize(("extra", "subsystem"), [("hidvendor", "hidraw"), ("gser", "tty")])
async def test_a_function_that_comes_is_offered_with_its_node(
    live: Live, boot: str, extra: str, subsystem: str
) -> None:
    before = set(live.published)
    await kernel.ctl("plug", extra)
    address = kernel.serial_port({"hidvendor": "HID-1", "gser": "GSER1"}[extra])
    name = usb_name(interface(address, subsystem))
    await live.until_offered(name)
    assert set(live.published) - before == {name}

    claimed = await live.take(name, kernel.usb(address))
    assert kernel.nodes_below(kernel.usb(address), subsystem) <= set(live.delivered(claimed))
    await live.give_back(claimed)
    await kernel.ctl("unplug", extra)
    await live.until_gone(name)


async def test_the_module_of_all_lines_goes_and_comes_under_a_claim(live: Live, boot: str) -> None:
    address = kernel.serial_port("PLAIN-1")
    line = interface(address, "tty")
    claimed = await live.take(usb_name(line), kernel.usb(line))
    before = set(live.published)
    await kernel.run("modprobe", "-r", "cdc_acm")
    await live.until_held_back(claimed)

    await kernel.run("modprobe", "cdc_acm")
    await live.until(lambda: kernel.nodes_below(kernel.usb(line), "tty"), "the line is back")
    await live.until_delivered(claimed, nodes_of, kernel.usb(line))
    await live.until(
        lambda: set(live.published) == before,
        "as before",
        lambda: set(live.published) ^ before,
    )
