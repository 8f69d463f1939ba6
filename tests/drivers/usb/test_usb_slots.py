"""What names a device: the port, the interface and its nodes, whatever it says of itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from usb_seen import Seen

from hardpoint import DeviceNode
from hardpoint.attributes import publishable
from hardpoint.settings import Rule
from hardpoint.testing import FakeMachine
from hardpoint.testing.sysfs import FakeUsb

Look = Callable[..., Seen]


def _paths(nodes: tuple[DeviceNode, ...]) -> list[str]:
    return [node.path for node in nodes if node.subsystem == "tty"]


def _adapter(machine: FakeMachine, port: str, number: int = 0, **facts: Any) -> FakeUsb:
    adapter = machine.usb(port, vendor="1a86", product="7523", **facts)
    adapter.interface(0, driver="ch341").node("tty", f"ttyUSB{number}", 188, number)
    return adapter


@pytest.mark.field_case("G12")
def test_one_port_of_two_controllers_is_two_slots(machine: FakeMachine, look: Look) -> None:
    _adapter(machine, "1-9", 0, controller="0000:00:14.0")
    _adapter(machine, "2-9", 1, controller="0000:0a:00.0")

    seen = look()

    assert {name: _paths(d.nodes) for name, d in seen.devices.items()} == {
        "usb-1-9-1-0": ["/dev/ttyUSB0"],
        "usb-2-9-1-0": ["/dev/ttyUSB1"],
    }
    assert {d.attributes["portPath"] for d in seen.devices.values()} == {"1-9", "2-9"}


@pytest.mark.field_case("G13")
def test_an_interface_with_four_lines_is_one_device_and_four_interfaces_are_four(
    machine: FakeMachine, look: Look
) -> None:
    one = machine.usb("1-1", vendor="9710", product="7840").interface(0, driver="mos7840")
    four = machine.usb("1-2", vendor="0403", product="6011")
    for number in range(4):
        one.child(f"ttyUSB{number}").node("tty", f"ttyUSB{number}", 188, number)
        line = four.interface(number, driver="ftdi_sio")
        line.node("tty", f"ttyUSB{4 + number}", 188, 4 + number)

    lines = {name: _paths(device.nodes) for name, device in look().devices.items()}

    assert lines == {
        "usb-1-1-1-0": [f"/dev/ttyUSB{number}" for number in range(4)],
        **{f"usb-1-2-1-{number}": [f"/dev/ttyUSB{4 + number}"] for number in range(4)},
    }


@pytest.mark.field_case("G17")
def test_a_unit_without_a_serial_number_comes_back_to_its_slot(
    machine: FakeMachine, look: Look
) -> None:
    unit = _adapter(machine, "1-3", 0)
    first = look().devices["usb-1-3-1-0"]
    unit.remove()
    gone = look().names

    _adapter(machine, "1-3", 5, devnum=9)
    again = look().devices["usb-1-3-1-0"]

    assert gone == []
    assert (again.attributes, again.parts, again.taints) == (first.attributes, first.parts, ())
    assert _paths(again.nodes) == ["/dev/ttyUSB5"]


@pytest.mark.field_case("G15")
@pytest.mark.parametrize("serial", [None, "A1"])
def test_a_rule_that_names_no_serial_means_units_with_and_without_one(
    machine: FakeMachine, look: Look, serial: str | None
) -> None:
    _adapter(machine, "1-3", serial=serial)
    facts = look().devices["usb-1-3-1-0"].attributes

    assert Rule(action="allow", where={"vendor": "1a86"}).matches(facts)
    assert Rule(action="allow", where={"serial": "A1"}).matches(facts) is (serial == "A1")
    assert Rule(action="allow", where={"serial": False}).matches(facts) is (serial is None)


@pytest.mark.field_case("G11")
@pytest.mark.parametrize("serial", [None, "0001", "000000000000"])
def test_twins_are_two_slots_and_neither_is_the_unit_of_its_serial_number(
    machine: FakeMachine, look: Look, serial: str | None
) -> None:
    for number, port in enumerate(("1-1", "1-2")):
        _adapter(machine, port, number, serial=serial)

    seen = look()

    assert seen.names == ["usb-1-1-1-0", "usb-1-2-1-0"]
    assert not any("serialUnique" in d.attributes for d in seen.devices.values())


@pytest.mark.field_case("G08", "G09")
@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b"Natural\xae\x20Ergonomic\n", "Natural\ufffd Ergonomic"),
        (b"Keyboard \xe2\x82\n", "Keyboard \ufffd"),
        (b"Key\xed\xa0\xbdboard\n", "Key\ufffd\ufffd\ufffdboard"),
        (b"Key\x00board\x1b[2J\n", "Key board [2J"),
        (b"\xff\xff\xff\xff\xff\xff\n", "\ufffd" * 6),
        (b" \x00\n", None),
    ],
)
def test_a_string_that_was_cut_or_is_no_text_is_made_fit(
    machine: FakeMachine, look: Look, raw: bytes, name: str | None
) -> None:
    """A descriptor may end in the middle of a character, or be in no known code at all."""
    _adapter(machine, "1-1", product_name=raw, serial=raw)

    fit, problems = publishable(look().devices["usb-1-1-1-0"], "hardpoint.dev")

    assert (fit.attributes.get("name"), problems) == (name, ())


@pytest.mark.field_case("G09")
def test_a_name_of_udevs_with_its_escapes_is_published_as_it_stands(
    machine: FakeMachine, look: Look
) -> None:
    _adapter(machine, "1-1", 0)
    name = r"usb-Acme_Natural\xae\x20Ergonomic-if00"
    link = f"serial/by-id/{name}"
    machine.dev_link(f"/dev/{link}", "../../ttyUSB0")
    data = machine.run / "udev/data/c188:0"
    data.parent.mkdir(parents=True)
    data.write_text(f"S:{link}\n")

    assert look().devices["usb-1-1-1-0"].attributes["byId"] == name


@pytest.mark.field_case("G10")
def test_a_device_that_is_half_gone_costs_nothing_but_itself(
    machine: FakeMachine, look: Look
) -> None:
    for number, port in enumerate(("1-1", "1-2")):
        _adapter(machine, port, number)
    leaving = machine.sys / "bus/usb/devices/1-1"
    for one in ("uevent", "1-1:1.0/uevent", "1-1:1.0/ttyUSB0/uevent", "1-1:1.0/tty/ttyUSB0/uevent"):
        (leaving / one).unlink(missing_ok=True)

    seen = look()

    assert "usb-1-2-1-0" in seen.names
    assert not seen.unread
    assert all("/dev/ttyUSB0" not in _paths(d.nodes) for d in seen.devices.values())
