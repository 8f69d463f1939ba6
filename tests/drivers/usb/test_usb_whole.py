"""Devices that programs drive through usbfs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from usb_seen import Seen

from hardpoint import Taint, Version
from hardpoint.testing import FakeMachine

Look = Callable[..., Seen]

MAY_BIND = Taint("driver-may-bind")
IN_USE = Taint("in-use")


def test_a_device_without_a_kernel_driver_is_offered_whole(
    machine: FakeMachine, look: Look
) -> None:
    radio = machine.usb(
        "1-3", vendor="0bda", product="2838", serial="00000001", product_name="SDR", devnum=5
    )
    radio.interface(0, klass="ff", subclass="ff", protocol="0a")
    radio.interface(1, klass="0b")

    device = look().devices["usb-1-3"]

    assert dict(device.attributes) == {
        "bus": "usb",
        "address": "1-3",
        "portPath": "1-3",
        "driver": "usb",
        "class": "vendor-specific",
        "classCode": "ff",
        "subclassCode": "ff",
        "protocolCode": "0a",
        "subsystem": "usb",
        "name": "SDR",
        "serial": "00000001",
        "serialUnique": True,
        "vendor": "0bda",
        "product": "2838",
        "speed": 480,
        "bcdUSB": Version("2.0.0"),
        "bcdDevice": "0600",
        "usbfsNode": True,
    }
    assert [node.path for node in device.nodes] == ["/dev/bus/usb/001/005"]
    assert not device.shareable
    assert device.taints == ()


def test_one_driven_interface_and_the_device_is_not_offered_whole(
    machine: FakeMachine, look: Look
) -> None:
    card = machine.usb("1-6")
    card.interface(0, klass="01", driver="snd-usb-audio").node("sound", "snd/controlC2", 116, 9)
    card.interface(3, klass="03")

    assert look().names == ["usb-1-6-1-0"]


def test_a_driven_interface_without_nodes_keeps_the_device_from_being_whole(
    machine: FakeMachine, look: Look
) -> None:
    card = machine.usb("1-6")
    card.interface(0, driver="rtw88_8821cu")
    card.interface(1)

    assert look().names == []


def test_an_interface_that_is_not_authorised_keeps_the_device_from_being_whole(
    machine: FakeMachine, look: Look
) -> None:
    device = machine.usb("1-3")
    device.interface(0)
    device.interface(1, authorized=0)

    seen = look()

    assert seen.names == []
    assert seen.rules() == {"1-3:1.0": "undriven", "1-3:1.1": "unauthorized"}


def test_while_a_program_of_the_host_has_it_no_claim_may(machine: FakeMachine, look: Look) -> None:
    reader = machine.usb("1-9")
    reader.interface(0, klass="0b", driver="usbfs")

    assert look().devices["usb-1-9"].taints == (IN_USE,)


def test_an_interface_that_a_program_took_from_its_driver_is_not_offered(
    machine: FakeMachine, look: Look
) -> None:
    ups = machine.usb("1-9")
    ups.interface(0, klass="03", driver="usbfs")
    ups.interface(1, klass="03", driver="usbhid").node("hidraw", "hidraw0", 240, 0)

    seen = look()

    assert seen.names == ["usb-1-9-1-1"]
    assert seen.rules() == {"1-9:1.0": "in-use"}


# -- a driver may still come -----------------------------------------------------------------------


@pytest.mark.field_case("G20")
@pytest.mark.parametrize(
    ("milliseconds", "taints"), [(1200, (MAY_BIND,)), (5000, ()), (900000, ())]
)
def test_a_device_that_was_just_plugged_in_waits_for_its_driver(
    machine: FakeMachine, look: Look, milliseconds: int, taints: tuple[Taint, ...]
) -> None:
    stick = machine.usb("1-2").attribute("power/connected_duration", milliseconds)
    stick.interface(0)

    assert look().devices["usb-1-2"].taints == taints


def test_its_half_driven_interfaces_wait_too(machine: FakeMachine, look: Look) -> None:
    """With the second driver usbfs would leave the delivery, under a claim made in between."""
    board = machine.usb("1-2")
    board.attribute("power/connected_duration", 300)
    board.interface(0, driver="cdc_acm").node("tty", "ttyACM0", 166, 0)
    early = board.interface(1, klass="03")

    assert look().devices["usb-1-2-1-0"].taints == (MAY_BIND,)
    early.bind("usbhid").node("hidraw", "hidraw0", 240, 0)
    assert [d.taints for d in look().devices.values()] == [(), ()]


def test_a_device_that_has_all_its_drivers_waits_for_nothing(
    machine: FakeMachine, look: Look
) -> None:
    adapter = machine.usb("1-2")
    adapter.attribute("power/connected_duration", 10)
    adapter.interface(0, driver="ftdi_sio").node("tty", "ttyUSB0", 188, 0)

    assert look().devices["usb-1-2-1-0"].taints == ()


def test_how_long_to_wait_is_a_setting(machine: FakeMachine, look: Look) -> None:
    machine.usb("1-2").attribute("power/connected_duration", 20_000).interface(0)

    assert look().devices["usb-1-2"].taints == ()
    assert look(settle_seconds=30).devices["usb-1-2"].taints == (MAY_BIND,)
    assert look(settle_seconds=0).devices["usb-1-2"].taints == ()


# -- names -----------------------------------------------------------------------------------------


def test_a_port_that_reads_like_an_interface_of_its_hub_gets_another_name(
    machine: FakeMachine, look: Look
) -> None:
    machine.usb("2-1.4.1.1").interface(0)
    alone = look().names
    hub = machine.sys / "bus/usb/devices/2-1.4"
    machine.device(
        "usb", "2-1.4:1.1", below=str(hub.resolve().relative_to(machine.sys / "devices"))
    )
    both = look().names

    assert alone == ["usb-2-1-4-1-1"]
    assert len(both) == 1
    assert both[0].startswith("usb-2-1-4-1-1-")
    assert len(both[0]) == len("usb-2-1-4-1-1-") + 6
    assert both == look().names, "the same each time"
