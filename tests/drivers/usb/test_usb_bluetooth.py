"""Bluetooth adapters, until a driver of their own publishes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from usb_seen import Seen

from hardpoint import Device, exclusive
from hardpoint.testing import FakeMachine
from hardpoint.testing.fake_hardware import FakeUsb

Look = Callable[..., Seen]

EVENTS = [f"/dev/input/event{n}" for n in range(32)]


def _adapter(machine: FakeMachine, port: str = "1-6") -> FakeUsb:
    adapter = machine.usb(port, vendor="0a12", product="0001")
    for number in range(2):
        interface = adapter.interface(
            number, klass="e0", subclass="01", protocol="01", driver="btusb"
        )
        if number == 0:
            interface.child("bluetooth/hci0", bus="bluetooth").node("hidraw", "hidraw2", 240, 2)
    return adapter


def _paths(device: Device) -> list[str]:
    return [node.path for node in device.nodes]


@pytest.mark.field_case("H06")
def test_a_controller_with_two_interfaces_is_one_device(machine: FakeMachine, look: Look) -> None:
    _adapter(machine)

    seen = look()

    assert seen.names == ["usb-1-6-1-0"]
    assert seen.rules() == {"1-6:1.1": "second-half"}
    device = seen.devices["usb-1-6-1-0"]
    assert device.kind == "bluetooth.adapter"
    assert device.attributes["driver"] == "btusb"
    assert "subsystem" not in device.attributes
    assert {exclusive("usb:1-6:1.0"), exclusive("usb:1-6:1.1")} <= set(device.parts)
    assert exclusive("usb:1-6") in device.all_parts


def test_what_is_connected_to_it_is_not_the_adapters(machine: FakeMachine, look: Look) -> None:
    _adapter(machine)

    assert _paths(look().devices["usb-1-6-1-0"]) == ["/dev/bus/usb/001/002"]


@pytest.mark.field_case("H04")
def test_its_stack_can_make_input_devices_before_they_exist(
    machine: FakeMachine, look: Look
) -> None:
    _adapter(machine)
    machine.virtual("misc", "uhid", 10, 239)
    machine.virtual("misc", "uinput", 10, 223)

    device = look().devices["usb-1-6-1-0"]

    assert _paths(device) == ["/dev/bus/usb/001/002", "/dev/uhid", "/dev/uinput", *EVENTS]
    events = [node for node in device.nodes if node.path in EVENTS]
    assert {(n.major, n.minor) for n in events} == {(13, 64 + n) for n in range(32)}
    assert all((n.mode, n.absent_ok, n.shared) == (0o600, True, True) for n in events)
    assert all(n.shared for n in device.nodes[1:]), "two adapters may be held by two claims"
    assert "inputNode" not in device.attributes


def test_an_adapter_whose_node_is_gone_says_that_there_is_nothing_to_hand_over(
    machine: FakeMachine, look: Look
) -> None:
    adapter = _adapter(machine)
    (adapter.path / "dev").unlink()

    seen = look()

    assert seen.names == []
    assert seen.rules() == {"1-6:1.0": "no-node", "1-6:1.1": "second-half"}


def test_without_uinput_there_are_no_event_nodes(machine: FakeMachine, look: Look) -> None:
    _adapter(machine)
    machine.virtual("misc", "uhid", 10, 239)

    assert _paths(look().devices["usb-1-6-1-0"])[1:] == ["/dev/uhid"]


def test_somebodys_keyboard_is_not_the_adapters(machine: FakeMachine, look: Look) -> None:
    _adapter(machine)
    machine.virtual("misc", "uinput", 10, 223)
    keyboard = machine.usb("1-2").interface(0, klass="03", driver="usbhid")
    keyboard.node("input", "input/event5", 13, 69)
    machine.virtual("input", "input/event6", 13, 70)

    devices = look().devices

    assert "/dev/input/event5" not in _paths(devices["usb-1-6-1-0"])
    assert "/dev/input/event6" in _paths(devices["usb-1-6-1-0"])
    assert not any(
        a.contends(b)
        for a in devices["usb-1-6-1-0"].all_parts
        for b in devices["usb-1-2-1-0"].all_parts
    )


def test_a_peer_below_the_adapter_keeps_its_event_node_there(
    machine: FakeMachine, look: Look
) -> None:
    adapter = _adapter(machine)
    machine.virtual("misc", "uinput", 10, 223)
    hci = adapter.path / "1-6:1.0/bluetooth/hci0"
    machine.device(
        "bluetooth", "hci0:11", below=str(hci.relative_to(machine.sys / "devices"))
    ).node("input", "input/event9", 13, 73)

    assert "/dev/input/event9" in _paths(look().devices["usb-1-6-1-0"])


def test_two_adapters_may_be_held_at_once(machine: FakeMachine, look: Look) -> None:
    _adapter(machine, "1-6")
    _adapter(machine, "1-7")
    machine.virtual("misc", "uhid", 10, 239)
    machine.virtual("misc", "uinput", 10, 223)

    one, two = look().devices.values()

    assert not any(a.contends(b) for a in one.all_parts for b in two.all_parts)


def test_an_adapter_keeps_usbfs_beside_another_function(machine: FakeMachine, look: Look) -> None:
    adapter = _adapter(machine)
    adapter.interface(2, klass="03", driver="usbhid").node("hidraw", "hidraw5", 240, 5)

    devices = look().devices

    assert "/dev/bus/usb/001/002" in _paths(devices["usb-1-6-1-0"])
    assert _paths(devices["usb-1-6-1-2"]) == ["/dev/hidraw5"]


def test_an_adapter_on_one_chip_with_a_network_card_cannot_be_reset(
    machine: FakeMachine, look: Look
) -> None:
    adapter = _adapter(machine)
    adapter.interface(2, driver="rtw88_8821cu").child("net/wlan0", klass="net")
    bare = look()
    machine.virtual("misc", "uhid", 10, 239)
    with_uhid = look()

    assert bare.names == []
    assert bare.rules() == {
        "1-6:1.0": "no-node",
        "1-6:1.1": "second-half",
        "1-6:1.2": "no-node",
    }
    assert "uhid" in bare.withheld["1-6:1.0"].reason
    assert _paths(with_uhid.devices["usb-1-6-1-0"]) == ["/dev/uhid"]
