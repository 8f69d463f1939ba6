"""A fake machine looks like a real one to whoever reads it through a Node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recorded_machines import Recorded

from hardpoint import NodeType
from hardpoint.node import NodeInfo
from hardpoint.recorded import open_machine
from hardpoint.testing.sysfs import FakeMachine


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


def test_a_device_is_a_real_directory_that_bus_and_driver_link_to(machine: FakeMachine) -> None:
    machine.pci("0000:00:02.0", vendor="8086", device="46d2", klass="030000", driver="i915")
    function = machine.node().pci("0000:00:02.0")

    assert function.path == str(machine.sys / "devices/pci0000:00/0000:00:02.0")
    assert (function.subsystem, function.driver) == ("pci", "i915")
    assert function.text("class") == "0x030000"
    assert os.path.samefile(machine.sys / "bus/pci/drivers/i915/0000:00:02.0", function.path)


def test_a_function_behind_a_bridge_lies_in_it(machine: FakeMachine) -> None:
    machine.pci("0000:00:1c.0", driver="pcieport")
    machine.pci("0000:05:00.0", behind="0000:00:1c.0")

    above = [entry.name for entry in machine.node().pci("0000:05:00.0").ancestors()]
    assert above == ["0000:00:1c.0", "pci0000:00"]


def test_a_modalias_reads_as_the_kernel_writes_it(machine: FakeMachine, recorded: Recorded) -> None:
    real = recorded("desktop").pci("0000:00:02.0")  # 1234:1111, class 0x038000
    machine.pci("0000:00:02.0", vendor="1234", device="1111", klass="038000")
    fake = machine.node().pci("0000:00:02.0")

    def without_card(alias: str) -> str:
        return alias.partition("sv")[0] + alias.partition("bc")[2]

    assert without_card(fake.text("modalias")) == without_card(real.text("modalias"))


def test_a_usb_device_has_what_a_real_one_has(machine: FakeMachine, recorded: Recorded) -> None:
    stick = machine.usb("1-1", vendor="0403", product="6001", serial="FT1", product_name="FT232")
    stick.interface(0, klass="ff", driver="ftdi_sio").node("tty", "ttyUSB0", 188, 0)
    real, fake = recorded("desktop"), machine.node()

    for address in ("1-1", "1-1:1.0", "usb1", "1-0:1.0"):
        theirs, ours = real.usb(address), fake.usb(address)
        assert (ours.subsystem, ours.driver) == (theirs.subsystem, theirs.driver)
        assert not {n for n in ours.names if os.path.isfile(f"{ours.path}/{n}")} - theirs.names
        assert set(ours.uevent()) <= set(theirs.uevent())
    shape = fake.usb("1-1:1.0").text("modalias").partition("d0")[0]
    assert shape == "usb:v0403p6001"


def test_hubs_and_controllers_above_a_port_are_made_with_it(machine: FakeMachine) -> None:
    machine.usb("3-2.4.1")
    node = machine.node()

    assert [entry.name for entry in node.entries("bus/usb/devices")] == [
        *("3-0:1.0", "3-2", "3-2.4", "3-2.4.1", "3-2.4:1.0", "3-2:1.0", "usb3"),
    ]
    assert node.usb("3-2.4").driver == "usb"
    assert node.usb("3-2.4:1.0").driver == "hub"


def test_a_node_is_found_from_its_class_its_numbers_and_dev(machine: FakeMachine) -> None:
    machine.pci("0000:00:02.0").drm(card=0, gid=44)
    node = machine.node()

    for path in ("class/drm/card0", "dev/char/226:0"):
        assert os.path.samefile(machine.sys / path, machine.sys / "class/drm/card0")
    assert node.info("/dev/dri/card0") == NodeInfo(NodeType.CHAR, 226, 0, 0o660, 44)
    assert node.entry("class/drm/card0").link("device") == "0000:00:02.0"


def test_a_disk_has_partitions_holders_and_a_block_node(machine: FakeMachine) -> None:
    disk = machine.pci("0000:00:1f.2").ata(1).disk("sda", 8, 0, device__model="ACME")
    disk.partition(1, 8, 1).held_by(machine.virtual_disk("dm-0", 253, 0))
    node = machine.node()

    assert node.info("/dev/sda1") == NodeInfo(NodeType.BLOCK, 8, 1, 0o660, 6)
    assert os.listdir(machine.sys / "class/block/sda1/holders") == ["dm-0"]
    assert os.listdir(machine.sys / "class/block/dm-0/slaves") == ["sda1"]
    assert node.entry("class/block/sda").child("device").text("model") == "ACME"
    assert (machine.sys / "block/sda").exists()


def test_unplugging_takes_directory_links_and_nodes(machine: FakeMachine) -> None:
    gpu = machine.pci("0000:00:02.0", driver="i915").drm(card=0, render=128)
    machine.pci("0000:00:03.0").drm(card=1)
    gpu.remove()
    node = machine.node()

    assert [entry.name for entry in node.entries("bus/pci/devices")] == ["0000:00:03.0"]
    assert [entry.name for entry in node.entries("class/drm")] == ["card1"]
    assert [entry.name for entry in node.entries("dev/char")] == ["226:1"]
    assert os.listdir(machine.sys / "bus/pci/drivers/i915") == []
    assert (node.info("/dev/dri/card0"), node.info("/dev/dri/card1") is None) == (None, False)


def test_a_replug_gives_another_number_and_takes_the_old_node_away(machine: FakeMachine) -> None:
    device = machine.usb("1-2", devnum=7)
    machine.renumber(device, 12)
    node = machine.node()

    assert [n.path for n in node.usb("1-2").nodes()] == ["/dev/bus/usb/001/012"]
    assert node.info("/dev/bus/usb/001/007") is None
    assert node.info("/dev/bus/usb/001/012") == NodeInfo(NodeType.CHAR, 189, 11, 0o664, 0)


def test_attributes_can_be_bytes_absent_or_unreadable(machine: FakeMachine) -> None:
    function = machine.pci("0000:00:02.0").set(label=b"\xff\x00x", revision=None)
    function.unreadable("vendor")
    entry = machine.node().pci("0000:00:02.0")

    assert entry.text("label") == "\ufffd x"
    assert not entry.has("revision")
    with pytest.raises(IsADirectoryError):
        entry.text("vendor")


def test_only_a_writable_machine_is_written(machine: FakeMachine) -> None:
    machine.pci("0000:00:02.0")
    machine.node(writable=True).pci("0000:00:02.0").write("enable", "0")

    assert machine.node().pci("0000:00:02.0").text("enable") == "0"
    with pytest.raises(PermissionError):
        machine.node().pci("0000:00:02.0").write("enable", "1")


def test_a_saved_machine_opens_like_a_recorded_one(machine: FakeMachine) -> None:
    machine.usb("1-2").interface(0, driver="ftdi_sio").node("tty", "ttyUSB0", 188, 0, gid=20)
    machine.dev_link("/dev/serial/by-id/usb-acme", "../../ttyUSB0")

    with open_machine(machine.save()) as node:
        assert node.info("/dev/ttyUSB0") == NodeInfo(NodeType.CHAR, 188, 0, 0o660, 20)
        assert node.info("/dev/serial/by-id/usb-acme") == node.info("/dev/ttyUSB0")
        assert os.listdir(node.dev / "serial/by-id") == ["usb-acme"]
