from __future__ import annotations

from pathlib import Path

import pytest
from pci_drm_look import look

from hardpoint import Node
from hardpoint.testing.sysfs import FakeDevice, FakeMachine, FakePci, WithDisks


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


@pytest.fixture
def hba(machine: FakeMachine) -> FakePci:
    return machine.pci("0000:03:00.0", klass="010700", driver="mpt3sas")


def test_a_controller_is_never_one_device(machine: FakeMachine, hba: FakePci) -> None:
    for target in (0, 1):
        lun = hba.scsi(7, target)
        lun.node("scsi_generic", f"sg{target}", 21, target)
        lun.node("bsg", f"bsg/7:0:{target}:0", 248, target)
        lun.disk(f"sd{'ab'[target]}", 8, 16 * target)

    found = look(machine.node())

    assert found.nodes == {
        "pci-0000-03-00-0-scsi-0-0-0-0": ["/dev/sda"],
        "pci-0000-03-00-0-scsi-0-0-1-0": ["/dev/sdb"],
    }
    first, second = found.devices.values()
    assert not any(a.contends(b) for a in first.all_parts for b in second.all_parts)


def test_a_disk_does_not_contend_with_what_else_its_card_has(
    machine: FakeMachine, hba: FakePci
) -> None:
    hba.scsi(0).disk("sda", 8, 0)
    hba.node("ptp", "ptp0", 249, 0)

    disk, clock = look(machine.node()).devices.values()

    assert (disk.kind, clock.kind) == ("disk", "ptp")
    assert not any(a.contends(b) for a in disk.all_parts for b in clock.all_parts)


def test_one_disk_in_use_costs_only_itself(machine: FakeMachine, hba: FakePci) -> None:
    hba.scsi(7, 0).disk("sda", 8, 0).partition(1, 8, 1)
    hba.scsi(7, 1).disk("sdb", 8, 16)
    machine.mount("8:1", "/")

    found = look(machine.node())

    assert found.nodes == {"pci-0000-03-00-0-scsi-0-0-1-0": ["/dev/sdb"]}
    withheld = found.withheld["pci 0000:03:00.0 sda"]
    assert withheld.rule == "disk-in-use"
    assert withheld.reason == "/dev/sda1 is in use: it is mounted at /"


def test_where_nothing_says_what_is_mounted_no_disk_is_published_and_a_gpu_is(
    machine: FakeMachine, hba: FakePci
) -> None:
    hba.scsi(7, 0).disk("sda", 8, 0)
    machine.pci("0000:00:02.0", driver="i915").drm(card=0, render=128)
    (machine.proc / "1/mountinfo").unlink()
    (machine.proc / "self/mountinfo").unlink()

    found = look(machine.node())

    assert list(found.devices) == ["pci-0000-00-02-0", "pci-0000-00-02-0-display"]
    assert found.rules["pci 0000:03:00.0 sda"] == "disk-in-use"


def test_the_number_of_a_host_is_told_from_its_controllers_first(
    machine: FakeMachine, hba: FakePci
) -> None:
    hba.scsi(11, 4).disk("sda", 8, 0)
    hba.scsi(9, 4).disk("sdb", 8, 16)

    assert look(machine.node()).nodes == {
        "pci-0000-03-00-0-scsi-0-0-4-0": ["/dev/sdb"],
        "pci-0000-03-00-0-scsi-1-0-4-0": ["/dev/sda"],
    }


def test_a_sas_disk_is_named_by_its_address(machine: FakeMachine, hba: FakePci) -> None:
    end = hba.path / "host0/port-0:0/end_device-0:0"
    FakeDevice(machine, end / "sas_device/end_device-0:0").set(sas_address="0x5000c500abcdef01")
    lun = WithDisks(machine, end / "target0:0:0/0:0:0:0")
    lun.set(type=0).on_bus("scsi").disk("sda", 8, 0)

    assert list(look(machine.node()).devices) == ["pci-0000-03-00-0-sas-5000c500abcdef01-lun-0"]


def test_a_sata_disk_is_named_by_its_port_and_one_behind_a_multiplier_by_both(
    machine: FakeMachine,
) -> None:
    sata = machine.pci("0000:00:1f.2", klass="010601", driver="ahci")
    sata.ata(5).disk("sda", 8, 0)
    sata.attribute("ata5/ata_port/ata5/port_no", 2)
    sata.scsi(4, 0, channel=3, below="ata5").disk("sdb", 8, 16)

    assert look(machine.node()).nodes == {
        "pci-0000-00-1f-2-ata-2-0": ["/dev/sda"],
        "pci-0000-00-1f-2-ata-2-3-0": ["/dev/sdb"],
    }


def test_each_namespace_of_an_nvme_is_a_disk_and_its_controller_is_nobodys(
    machine: FakeMachine,
) -> None:
    nvme = machine.pci("0000:01:00.0", klass="010802", driver="nvme").nvme(
        3, model="ACME SSD   ", serial="  A1\xff".encode("latin-1"), firmware_rev="7"
    )
    for number in (1, 2):
        namespace = nvme.child(f"nvme3n{number}", klass="block", nsid=number, size=8)
        namespace.is_node(f"nvme3n{number}", 259, number)
        (namespace.path / "device").symlink_to("../../nvme3")

    found = look(machine.node())

    assert found.nodes == {
        "pci-0000-01-00-0-nvme-1": ["/dev/nvme3n1"],
        "pci-0000-01-00-0-nvme-2": ["/dev/nvme3n2"],
    }
    disk = found.devices["pci-0000-01-00-0-nvme-1"]
    assert disk.attributes["model"] == "ACME SSD"
    assert disk.attributes["serial"] == "A1\ufffd"
    assert disk.capacity["size"].value == "4096"


def test_a_scsi_disk_has_its_serial_number_in_a_page_of_its_data(
    machine: FakeMachine, hba: FakePci
) -> None:
    lun = hba.scsi(0)
    lun.disk("sda", 8, 0)
    lun.set(vpd_pg80=b"\x00\x80\x00\x08  S4EV01", wwid="naa.5000c500")

    disk = look(machine.node()).devices["pci-0000-03-00-0-scsi-0-0-0-0"]

    assert disk.attributes["serial"] == "S4EV01"
    assert disk.attributes["wwid"] == "naa.5000c500"


def _signed(machine: FakeMachine) -> Node:
    """Give sda a file of udev's in which it belongs to a storage system."""
    record = machine.run / "udev/data/b8:0"
    record.parent.mkdir(parents=True)
    record.write_text("E:ID_FS_TYPE=crypto_LUKS\nE:ID_FS_USAGE=crypto\n")
    return machine.node()


@pytest.mark.parametrize(
    ("serial", "stays"), [("S-1", True), ("", True), ("S-2", False)], ids=["it", "silent", "other"]
)
def test_a_disk_that_its_holder_gave_a_signature_stays_unless_another_took_its_place(
    machine: FakeMachine, serial: str, stays: bool
) -> None:
    machine.mount("0:5", "/")
    sata = machine.pci("0000:00:1f.2", klass="010601", driver="ahci").ata(1)
    sata.set(model="ACME", serial="S-1").disk("sda", 8, 0)
    (device,) = look(machine.node()).devices.values()
    sata.set(serial=serial)
    node = _signed(machine)

    assert list(look(node).devices) == [device.name]  # the framework keeps it, or a rule names it
    node.held = lambda: {"renamed": device}
    assert list(look(node).devices) == (["pci-0000-00-1f-2-ata-1-0"] if stays else [])


def test_that_one_disk_is_held_frees_no_other_of_its_controller(
    machine: FakeMachine, hba: FakePci
) -> None:
    machine.mount("0:5", "/")
    hba.scsi(0, 1).disk("sdb", 8, 16)
    (held,) = look(machine.node()).devices.values()
    hba.scsi(0, 0).disk("sda", 8, 0)
    machine.mount("8:0", "/data")
    node = machine.node()
    node.held = lambda: {held.name: held}

    assert look(node).rules == {"pci 0000:03:00.0 sda": "disk-in-use"}


def test_a_name_that_is_too_long_to_publish_is_left_out_rather_than_cut(
    machine: FakeMachine,
) -> None:
    nvme = machine.pci("0000:01:00.0", klass="010802", driver="nvme").nvme(0)
    name = "nvme.1b36-4e564d452d46524545-51454d55204e564d65204374726c-0000000"
    for number, wwid in ((1, f"{name}1"), (2, f"{name}2"), (3, "eui.0025385b71b00a3f")):
        namespace = nvme.child(f"nvme0n{number}", klass="block", nsid=number, size=8, wwid=wwid)
        namespace.is_node(f"nvme0n{number}", 259, number)

    wwids = [d.attributes.get("wwid") for d in look(machine.node()).devices.values()]

    assert wwids == [None, None, "eui.0025385b71b00a3f"]


def test_a_drive_without_a_disc_has_no_size(machine: FakeMachine) -> None:
    sata = machine.pci("0000:00:1f.2", klass="010601", driver="ahci")
    sata.ata(1).set(type=5).disk("sr0", 11, 0).set(size=0x1FFFFF)
    sata.ata(2).set(type=5).disk("sr1", 11, 1).set(size=32768)
    sata.ata(3).disk("sda", 8, 0).set(size=0x1FFFFF)

    sizes = [dict(d.capacity) for d in look(machine.node()).devices.values()]

    assert [bool(size) for size in sizes] == [False, True, True]


def test_a_tape_drive_and_a_changer_are_devices_and_an_enclosure_is_not(
    machine: FakeMachine, hba: FakePci
) -> None:
    tape = hba.scsi(0, 0)
    tape.set(type=1).node("scsi_tape", "st0", 9, 0).node("scsi_tape", "nst0", 9, 128)
    tape.node("scsi_generic", "sg0", 21, 0)
    hba.scsi(0, 1).set(type=8).node("scsi_changer", "sch0", 86, 0)
    hba.scsi(0, 2).set(type=13).node("scsi_generic", "sg2", 21, 2)

    found = look(machine.node())

    assert found.kinds == {
        "pci-0000-03-00-0-scsi-0-0-0-0": "tape",
        "pci-0000-03-00-0-scsi-0-0-1-0": "changer",
    }
    assert sorted(found.nodes["pci-0000-03-00-0-scsi-0-0-0-0"]) == ["/dev/nst0", "/dev/st0"]


def test_a_controller_with_nothing_but_an_enclosure_is_withheld(
    machine: FakeMachine, hba: FakePci
) -> None:
    hba.scsi(0, 2).set(type=13).node("scsi_generic", "sg2", 21, 2)

    assert look(machine.node()).rules == {"pci 0000:03:00.0": "controller"}


def test_several_disks_without_a_port_are_told_apart_by_their_names(machine: FakeMachine) -> None:
    raid = WithDisks(machine, machine.pci("0000:04:00.0", klass="010400", driver="cciss").path)
    raid.disk("cciss!c0d0", 104, 0)
    raid.disk("cciss!c0d1", 104, 16)

    assert list(look(machine.node()).devices) == [
        "pci-0000-04-00-0-disk-cciss-c0d0",
        "pci-0000-04-00-0-disk-cciss-c0d1",
    ]


def test_a_disk_on_usb_is_not_this_drivers(machine: FakeMachine) -> None:
    machine.usb("1-2").interface(0, klass="08", driver="usb-storage").disk("sdz", 65, 144)

    assert not look(machine.node()).devices
