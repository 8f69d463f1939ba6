"""Names, serial numbers and udev's names."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from usb_seen import Seen

from hardpoint import Version
from hardpoint.testing import FakeMachine
from hardpoint_usb.identity import bcd_version, device_name, is_real_serial, megabits

Look = Callable[..., Seen]


@pytest.mark.parametrize(
    ("address", "name"),
    [("1-2", "usb-1-2"), ("2-1.4:1.0", "usb-2-1-4-1-0"), ("11-3.2.1:2.15", "usb-11-3-2-1-2-15")],
)
def test_a_name_is_the_address_with_dashes(address: str, name: str) -> None:
    assert device_name(address) == name


def test_only_a_port_that_reads_like_an_existing_interface_gets_a_hash() -> None:
    plain = device_name("2-1.4.1.1", {"2-1.4:1.0"})
    hashed = device_name("2-1.4.1.1", {"2-1.4:1.1"})

    assert plain == "usb-2-1-4-1-1"
    assert hashed.startswith("usb-2-1-4-1-1-")
    assert device_name("2-1.4:1.1", {"2-1.4:1.1"}) == "usb-2-1-4-1-1"
    assert device_name("2-1", {"2-1:1.0"}) == "usb-2-1"


@pytest.mark.parametrize("serial", ["A50285BI", "0001", "1", "12", "00000000000A", "№ 42/Ω"])
def test_a_serial_number_that_says_something_is_real(serial: str) -> None:
    assert is_real_serial(serial)


@pytest.mark.parametrize("serial", ["", "0", "000000000000", "FFFFFFFF", "ffff", "0.0.0", "xxxx"])
def test_a_blank_serial_number_is_not(serial: str) -> None:
    assert not is_real_serial(serial)


@pytest.mark.parametrize(
    ("text", "version"),
    [("2.00", "2.0.0"), ("2.10", "2.1.0"), ("3.20", "3.2.0"), ("1.10", "1.1.0"), ("2.01", "2.0.1")],
)
def test_a_usb_version_is_a_semantic_one(text: str, version: str) -> None:
    assert bcd_version(text) == Version(version)


@pytest.mark.parametrize("text", ["", "2", "2.0", "x.yz", "2.000", "-1.00", "٢.00"])
def test_what_is_no_version_is_none(text: str) -> None:
    assert bcd_version(text) is None


@pytest.mark.parametrize(
    ("text", "speed"), [("1.5", 1), ("12", 12), ("480", 480), ("5000", 5000), ("20000", 20000)]
)
def test_a_speed_is_in_megabits(text: str, speed: int) -> None:
    assert megabits(text) == speed


@pytest.mark.parametrize("text", ["", "unknown", "-5", "9" * 30, "٣"])
def test_what_is_no_speed_is_none(text: str) -> None:
    assert megabits(text) is None


# -- on the bus ------------------------------------------------------------------------------------


def _serial(machine: FakeMachine, port: str, serial: str | None, product: str = "ea60") -> None:
    line = len(list((machine.sys / "class/tty").glob("*")))
    machine.usb(port, vendor="10c4", product=product, serial=serial).interface(
        0, driver="cp210x"
    ).node("tty", f"ttyUSB{line}", 188, line)


def test_twins_are_not_unique_and_a_third_with_another_number_is(
    machine: FakeMachine, look: Look
) -> None:
    for port, serial in (("1-1", "0001"), ("1-2", "0001"), ("1-3", "0002")):
        _serial(machine, port, serial)

    unique = {n: d.attributes.get("serialUnique") for n, d in look().devices.items()}

    assert unique == {"usb-1-1-1-0": None, "usb-1-2-1-0": None, "usb-1-3-1-0": True}


def test_equal_numbers_of_different_models_are_unique(machine: FakeMachine, look: Look) -> None:
    _serial(machine, "1-1", "0001")
    _serial(machine, "1-2", "0001", product="ea61")

    assert all(d.attributes["serialUnique"] for d in look().devices.values())


def test_two_interfaces_of_one_unit_do_not_make_it_twins(machine: FakeMachine, look: Look) -> None:
    unit = machine.usb("1-1", serial="A1")
    for n in range(2):
        unit.interface(n, driver="ftdi_sio").node("tty", f"ttyUSB{n}", 188, n)

    assert [d.attributes["serialUnique"] for d in look().devices.values()] == [True, True]


def test_numbers_that_are_equal_as_far_as_they_are_published_are_not_unique(
    machine: FakeMachine, look: Look
) -> None:
    _serial(machine, "1-1", "X" * 64 + "1")
    _serial(machine, "1-2", "X" * 64 + "2")

    assert not any("serialUnique" in d.attributes for d in look().devices.values())


def test_a_neighbour_that_cannot_be_read_costs_only_itself(
    machine: FakeMachine, look: Look
) -> None:
    _serial(machine, "1-1", "0001")
    machine.usb("1-2").unreadable("serial")

    seen = look()

    assert seen.names == ["usb-1-1-1-0"]
    assert list(seen.unread) == ["bus/usb/devices/1-2"]


def _named_by_udev(
    machine: FakeMachine, minor: int, name: str, target: str = "", *, noted: bool = True
) -> None:
    at = machine.run / f"udev/data/c188:{minor}"
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_text(f"S:serial/by-path/p{minor}\nS:serial/by-id/{name}\nI:1\nE:ID_BUS=usb\n")
    if noted:
        claim = machine.run / f"udev/links/serial\\x2fby-id\\x2f{name}/c188:{minor}"
        claim.parent.mkdir(parents=True, exist_ok=True)
        claim.write_text("")
    if target:
        machine.dev_link(f"/dev/serial/by-id/{name}", f"../../{target}")


@pytest.mark.parametrize("noted", [True, False])
def test_udevs_name_is_published_where_it_leads_to_the_device(
    machine: FakeMachine, look: Look, noted: bool
) -> None:
    _serial(machine, "1-1", "A1")
    _named_by_udev(machine, 0, "usb-Acme_A1-if00-port0", "ttyUSB0", noted=noted)

    assert look().devices["usb-1-1-1-0"].attributes["byId"] == "usb-Acme_A1-if00-port0"


def test_a_name_is_published_while_udev_has_its_lock_beside_it(
    machine: FakeMachine, look: Look
) -> None:
    """The lock file is there from udev's first work to some seconds after its last: found on a
    live kernel, where `udevadm trigger` took the names of all adapters away."""
    _serial(machine, "1-1", "A1")
    _named_by_udev(machine, 0, "usb-Acme_A1-if00-port0", "ttyUSB0")
    (lock,) = (machine.run / "udev/links").iterdir()
    (lock / ".lock").touch()

    assert look().devices["usb-1-1-1-0"].attributes["byId"] == "usb-Acme_A1-if00-port0"


@pytest.mark.field_case("G11")
def test_a_name_that_two_devices_want_is_nobodys(machine: FakeMachine, look: Look) -> None:
    for minor, port in enumerate(("1-1", "1-2")):
        _serial(machine, port, "A1")
        _named_by_udev(machine, minor, "usb-Acme_A1-if00-port0", "" if minor else "ttyUSB0")

    assert not any("byId" in d.attributes for d in look().devices.values())


def test_a_name_that_leads_elsewhere_is_not_published(machine: FakeMachine, look: Look) -> None:
    _serial(machine, "1-1", "A1")
    _named_by_udev(machine, 0, "usb-Acme_A1-if00-port0", "ttyUSB7", noted=False)

    assert "byId" not in look().devices["usb-1-1-1-0"].attributes


def test_a_name_too_long_for_an_attribute_is_not_cut(machine: FakeMachine, look: Look) -> None:
    _serial(machine, "1-1", "A1")
    _named_by_udev(machine, 0, "usb-" + "X" * 64, "ttyUSB0")

    assert "byId" not in look().devices["usb-1-1-1-0"].attributes
