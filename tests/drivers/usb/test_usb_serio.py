"""USB-CEC adapters that the settings name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from usb_seen import Seen

from hardpoint import Refuse, exclusive, shared
from hardpoint.testing import FakeMachine
from hardpoint.testing.fake_hardware import FakeInterface, FakeUsb
from hardpoint_usb import Usb
from hardpoint_usb.settings import UsbParameters

Look = Callable[..., Seen]

PULSE8 = {"protocol": "pulse8-cec", "vendor": "2548", "product": "1002"}


def _adapter(machine: FakeMachine, serial: str | None = "v12") -> tuple[FakeUsb, FakeInterface]:
    adapter = machine.usb("2-1", vendor="2548", product="1002", serial=serial)
    line = adapter.interface(0, klass="02", subclass="02", driver="cdc_acm")
    line.node("tty", "ttyACM0", 166, 0)
    adapter.interface(1, klass="0a", driver="cdc_acm")
    return adapter, line


def _attach(line: FakeInterface, *, remote: bool = True) -> None:
    """Do what serport and pulse8_cec do below the line."""
    port = line.child("tty/ttyACM0/serio0", bus="serio", driver="pulse8_cec")
    port.node("cec", "cec0", 250, 0)
    if remote:
        port.child("rc/rc0", klass="rc").child("input7", klass="input").node(
            "input", "input/event7", 13, 71
        )


def test_an_attached_adapter_is_its_bus_and_its_remote_control(
    machine: FakeMachine, look: Look
) -> None:
    _, line = _adapter(machine)
    _attach(line)

    devices = look(serio=[PULSE8]).devices

    assert list(devices) == ["usb-2-1-1-0-cec", "usb-2-1-1-0-input"]
    bus, remote = devices.values()
    assert [n.path for n in bus.nodes] == ["/dev/cec0"]
    assert [n.path for n in remote.nodes] == ["/dev/input/event7"]
    assert bus.attributes["subsystem"] == "cec"
    assert bus.attributes["cecNode"] is True
    assert remote.attributes["subsystem"] == "input"
    assert {d.attributes["address"] for d in devices.values()} == {"2-1:1.0"}
    assert "usbfsNode" not in {**bus.attributes, **remote.attributes}


def test_its_two_devices_may_have_two_owners(machine: FakeMachine, look: Look) -> None:
    _, line = _adapter(machine)
    _attach(line)

    bus, remote = look(serio=[PULSE8]).devices.values()

    assert not any(a.contends(b) for a in bus.all_parts for b in remote.all_parts)
    assert shared("usb:2-1:1.0") in bus.all_parts
    assert exclusive("char:250:0") in bus.all_parts


def test_an_adapter_without_a_remote_control_is_its_bus(machine: FakeMachine, look: Look) -> None:
    _, line = _adapter(machine)
    _attach(line, remote=False)

    assert look(serio=[PULSE8]).names == ["usb-2-1-1-0-cec"]


def test_before_its_line_is_attached_there_is_nothing(machine: FakeMachine, look: Look) -> None:
    _adapter(machine)

    seen = look(serio=[PULSE8])

    assert seen.names == []
    assert seen.rules() == {"2-1:1.0": "not-attached", "2-1:1.1": "second-half"}
    assert "hardpoint-serio" in seen.withheld["2-1:1.0"].reason


def test_half_an_attached_adapter_is_not_yet_one(machine: FakeMachine, look: Look) -> None:
    _, line = _adapter(machine)
    line.child("tty/ttyACM0/serio0", bus="serio").node("input", "input/event7", 13, 71)

    seen = look(serio=[PULSE8])
    assert seen.rules() == {"2-1:1.0": "not-attached", "2-1:1.1": "second-half"}


def test_before_its_module_is_loaded_it_is_not_offered_whole(
    machine: FakeMachine, look: Look
) -> None:
    adapter = machine.usb("2-1", vendor="2548", product="1002")
    adapter.interface(0, klass="02")

    assert look(serio=[PULSE8]).names == []
    assert look().names == ["usb-2-1"]


def test_nobody_can_reset_it_through_its_keyboard(machine: FakeMachine, look: Look) -> None:
    adapter, line = _adapter(machine)
    adapter.interface(2, klass="03", driver="usbhid").node("hidraw", "hidraw0", 240, 0)
    _attach(line)

    seen = look(serio=[PULSE8])
    keyboard = seen.devices["usb-2-1-1-2"]

    assert [n.path for n in keyboard.nodes] == ["/dev/hidraw0"]
    for device in seen.devices.values():
        with pytest.raises(Refuse, match="attached serial line"):
            Usb(machine.node(), Usb.Settings()).deliver_device(device, UsbParameters(usbfs=True))


def test_its_keyboard_alone_loses_usbfs_too(machine: FakeMachine, look: Look) -> None:
    adapter, _ = _adapter(machine)
    adapter.interface(2, klass="03", driver="usbhid").node("hidraw", "hidraw0", 240, 0)

    assert [n.path for n in look(serio=[PULSE8]).devices["usb-2-1-1-2"].nodes] == ["/dev/hidraw0"]


def test_without_an_entry_it_is_a_serial_line(machine: FakeMachine, look: Look) -> None:
    _adapter(machine)

    assert [n.path for n in look().devices["usb-2-1-1-0"].nodes] == [
        "/dev/ttyACM0",
        "/dev/bus/usb/002/002",
    ]


@pytest.mark.field_case("G15")
@pytest.mark.parametrize(
    ("wanted", "matches"), [("v12", True), ("v13", False), (None, True)], ids=str
)
def test_an_entry_may_mean_one_unit(
    machine: FakeMachine, look: Look, wanted: str | None, matches: bool
) -> None:
    _adapter(machine)

    names = look(serio=[PULSE8 | {"serial": wanted}]).names

    assert names == ([] if matches else ["usb-2-1-1-0"])


@pytest.mark.field_case("G15")
def test_an_entry_with_a_serial_does_not_mean_a_unit_that_has_none(
    machine: FakeMachine, look: Look
) -> None:
    _adapter(machine, serial=None)

    assert look(serio=[PULSE8 | {"serial": "v12"}]).names == ["usb-2-1-1-0"]


def test_a_line_that_somebody_attached_without_an_entry_is_not_handed_out(
    machine: FakeMachine, look: Look
) -> None:
    _, line = _adapter(machine)
    _attach(line)

    (device,) = look().devices.values()

    assert {n.path for n in device.nodes} == {"/dev/cec0", "/dev/input/event7"}
