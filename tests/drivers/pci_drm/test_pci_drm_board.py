from __future__ import annotations

from pathlib import Path

import pytest
from pci_drm_look import look

from hardpoint import Node
from hardpoint.testing.sysfs import FakeDevice, FakeMachine


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


def below(parent: FakeDevice, name: str, driver: str = "") -> FakeDevice:
    return parent.child(name, bus="platform", driver=driver)


def test_what_hangs_from_no_bus_is_found_by_its_node(machine: FakeMachine) -> None:
    machine.platform("ACME0001:00", driver="acme", modalias="acpi:ACME0001:").node(
        "acme", "acme0", 240, 0
    )

    device = look(machine.node()).devices["platform-acme0001-00"]

    assert device.kind == "acme"
    assert device.attributes == {
        "bus": "platform",
        "address": "ACME0001:00",
        "driver": "acme",
        "modalias": "acpi:ACME0001:",
        "subsystem": "acme",
    }
    assert [str(part) for part in device.all_parts] == [
        "char:240:0 (exclusive)",
        "platform:ACME0001:00 (exclusive)",
    ]


def test_the_outermost_driver_owns_the_node(machine: FakeMachine) -> None:
    controller = machine.platform("kbd", driver="i8042")
    port = below(controller, "serio0", "atkbd")
    port.node("input", "input/event0", 13, 64)

    assert list(look(machine.node()).devices) == ["platform-kbd"]


def test_a_bus_that_carries_a_whole_chip_owns_nothing(machine: FakeMachine) -> None:
    soc = machine.platform("soc", driver="simple-pm-bus")
    below(soc, "fe000000.uart", "uart").node("tty", "ttyAMA0", 204, 64)
    below(soc, "fe100000.dog", "wdt").node("watchdog", "watchdog0", 245, 0)

    assert list(look(machine.node()).devices) == [
        "platform-fe000000-uart",
        "platform-fe100000-dog",
    ]


def test_two_nodes_of_one_owner_are_one_device(machine: FakeMachine) -> None:
    port = machine.device("pnp", "00:00", driver="parport_pc")
    port.node("printer", "lp0", 6, 0).node("ppdev", "parport0", 99, 0)

    assert look(machine.node()).nodes == {"pnp-00-00": ["/dev/parport0", "/dev/lp0"]}


def test_nodes_without_hardware_and_those_of_other_buses_are_not_the_boards(
    machine: FakeMachine,
) -> None:
    machine.virtual("misc", "kvm", 10, 232)
    machine.usb("1-2").interface(0, driver="ftdi_sio").node("tty", "ttyUSB0", 188, 0)
    machine.pci("0000:00:1f.0", driver="lpc_ich").child("ACME:00", bus="platform", driver="a").node(
        "acme", "acme0", 240, 0
    )

    found = look(machine.node())

    assert list(found.devices) == ["pci-0000-00-1f-0"]
    assert not [subject for subject in found.rules if not subject.startswith("pci ")]


def test_what_hangs_from_a_function_without_a_driver_is_the_boards(machine: FakeMachine) -> None:
    bridge = machine.pci("0000:00:1f.0", klass="060100", driver="")
    below(bridge, "IPI0001:00", "ipmi_si").node("ipmi", "ipmi0", 245, 0)
    below(bridge, "ACME:00", "acme").node("acme", "acme0", 240, 0)

    found = look(machine.node())

    assert found.rules == {"pci 0000:00:1f.0": "plumbing", "platform IPI0001:00": "platform"}
    assert [str(part) for part in found.devices["platform-acme-00"].all_parts] == [
        "char:240:0 (exclusive)",
        "pci:0000:00:1f.0 (shared)",
        "platform:ACME:00 (exclusive)",
    ]


def test_a_node_that_no_driver_made_below_such_a_function_is_told_with_it(
    machine: FakeMachine,
) -> None:
    function = machine.pci("0000:00:05.0", klass="ff0000", driver="")
    below(function, "ACME:00").node("acme", "acme0", 240, 0)

    assert look(machine.node()).rules == {"pci 0000:00:05.0": "no-driver"}


def test_an_owner_that_its_bus_does_not_list_is_left_out(machine: FakeMachine) -> None:
    machine.platform("ghost", driver="acme").node("acme", "acme0", 240, 0)
    (machine.sys / "bus/platform/devices/ghost").unlink()

    found = look(machine.node())

    assert (found.devices, found.withheld) == ({}, {})


def test_nodes_that_no_driver_answers_for_are_told(machine: FakeMachine) -> None:
    machine.platform("vgem").node("drm", "dri/card0", 226, 0)

    (withheld,) = look(machine.node()).withheld.values()

    assert (withheld.subject, withheld.rule) == ("platform vgem", "no-driver")
    assert "/dev/dri/card0" in withheld.reason


def test_the_order_is_that_of_bus_and_address(machine: FakeMachine) -> None:
    for number, (bus, address) in enumerate(
        [("pnp", "00:05"), ("platform", "b"), ("acpi", "c"), ("platform", "a")]
    ):
        machine.device(bus, address, driver="acme").node("acme", f"acme{number}", 240, number)

    assert list(look(machine.node()).devices) == ["acpi-c", "platform-a", "platform-b", "pnp-00-05"]


def test_two_addresses_that_come_to_one_name_are_told_apart(machine: FakeMachine) -> None:
    for number, address in enumerate(("acme:1", "acme.1", "other")):
        machine.platform(address, driver="acme").node("acme", f"acme{number}", 240, number)

    first = sorted(look(machine.node()).devices)
    colliding = [name for name in first if name.startswith("platform-acme-1-")]

    assert len(colliding) == 2
    assert "platform-other" in first
    assert sorted(look(machine.node()).devices) == first


def test_a_long_address_leaves_room_for_what_the_device_is(machine: FakeMachine) -> None:
    for number, tail in enumerate(("a", "b")):
        board = machine.platform("x" * 80 + tail, driver="simple-framebuffer")
        board.node("drm", f"dri/card{number}", 226, number)
        board.node("i2c-dev", f"i2c-{number}", 89, number)

    names = list(look(machine.node()).devices)

    assert len(set(names)) == 4
    assert all(len(name) <= 63 for name in names)
    assert sum(name.endswith("-display") for name in names) == 2
    assert sum(name.endswith("-i2c-dev") for name in names) == 2


def test_the_consoles_line_goes_and_its_neighbour_on_the_card_stays(machine: FakeMachine) -> None:
    machine.consoles("ttyS1")
    card = machine.pci("0000:00:0b.0", klass="070002", driver="serial")
    card.node("tty", "ttyS1", 4, 65, type=4).node("tty", "ttyS2", 4, 66, type=4)
    card.node("tty", "ttyS3", 4, 67, type=0)

    found = look(machine.node())

    assert found.nodes == {"pci-0000-00-0b-0": ["/dev/ttyS2"]}
    assert found.rules == {
        "pci 0000:00:0b.0 /dev/ttyS1": "platform",
        "pci 0000:00:0b.0 /dev/ttyS3": "platform",
    }


def test_an_owner_that_cannot_be_read_costs_only_itself(machine: FakeMachine) -> None:
    machine.platform("bad", driver="acme").node("acme", "acme0", 240, 0)
    machine.platform("good", driver="acme").node("acme", "acme1", 240, 1)
    spoiled = machine.sys / "class/acme/acme0/uevent"
    spoiled.unlink()
    spoiled.mkdir()

    found = look(machine.node())

    assert list(found.devices) == ["platform-good"]
    assert list(found.unread) == ["bus/platform/devices/bad"]


def test_a_machine_without_an_index_of_nodes_has_no_board_devices(machine: FakeMachine) -> None:
    machine.pci("0000:00:02.0", driver="i915").drm(card=0)
    node: Node = machine.node()
    (machine.sys / "dev/char/226:0").unlink()
    (machine.sys / "dev/char").rmdir()
    (machine.sys / "dev").rmdir()

    assert list(look(node).devices) == ["pci-0000-00-02-0-display"]
