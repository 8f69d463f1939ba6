from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded_machines import Recorded

from hardpoint import DeviceNode, Node, NodeType
from hardpoint.platform import Platform, Suspected
from hardpoint.testing.sysfs import FakeDevice, FakeDisk, FakeMachine, FakeUsb


def block(path: str, major: int | None = None, minor: int | None = None) -> DeviceNode:
    return DeviceNode(path=path, type=NodeType.BLOCK, major=major, minor=minor)


def char(path: str, major: int | None = None, minor: int | None = None) -> DeviceNode:
    return DeviceNode(path=path, major=major, minor=minor)


def reasons(node: Node) -> dict[str, str]:
    """Return why each node that sysfs lists is kept back, by path."""
    platform = Platform.of(node)
    listed = [e.device_node() for d in ("dev/block", "dev/char") for e in node.entries(d)]
    found = [(n.path, platform.reason(n)) for n in listed if n]
    return {path: reason for path, reason in found if reason}


def is_block(node: Node, path: str) -> bool:
    info = node.info(path)
    return info is not None and info.type is NodeType.BLOCK


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    """A machine with two SATA disks, sda of two partitions and sdb of none."""
    machine = FakeMachine(tmp_path)
    sata = machine.pci("0000:00:1f.2", klass="010601", driver="ahci")
    sda = sata.ata(1).disk("sda", 8, 0)
    sda.partition(1, 8, 1)
    sda.partition(2, 8, 2)
    sata.ata(2).disk("sdb", 8, 16)
    return machine


# -- recorded machines ----------------------------------------------------------------------------


def test_each_disk_in_use_of_the_recorded_machine_is_kept_and_the_free_ones_are_not(
    recorded: Recorded,
) -> None:
    kept = reasons(recorded("disks"))

    # From its profile: / on nvme0n1p2, swap on nvme0n1p3, vda and zram0, ext4 on sdc, a stick sdk,
    # md0 over sdd and sde, dm-0 over sdf, an LVM signature on sdg, LUKS on sdh.
    assert {os.path.basename(path) for path in kept if is_block(recorded("disks"), path)} == {
        *("nvme0n1", "nvme0n1p1", "nvme0n1p2", "nvme0n1p3"),
        *("vda", "zram0", "sdc", "sdk", "sdk1", "sdd", "sde", "sdf", "sdg", "sdh"),
    }
    assert kept["/dev/nvme0n1p3"] == "/dev/nvme0n1p2 is in use: it is mounted at /"
    assert kept["/dev/sdd"] == "/dev/sdd is in use: md0 stands on it"
    assert kept["/dev/sdf"] == "/dev/sdf is in use: dm-0 stands on it"
    assert kept["/dev/sdg"] == (
        "/dev/sdg may be in use: it carries a signature of LVM2_member, which wipefs removes if "
        "nobody needs it"
    )


def test_what_reaches_a_disk_in_use_is_kept_too_and_what_reaches_a_free_one_is_not(
    recorded: Recorded,
) -> None:
    kept = reasons(recorded("disks"))

    for path in ("nvme0", "ng0n1", "sg4", "bsg/6:0:0:0", "bus/usb/002/002", "bus/usb/002/001"):
        assert "is reached through it" in kept[f"/dev/{path}"]
    for path in ("nvme1", "ng1n1", "ng1n2", "sg0", "bsg/6:0:7:0", "bus/usb/002/003"):
        assert f"/dev/{path}" not in kept


def test_the_free_disks_of_a_machine_that_runs_from_memory_are_free(recorded: Recorded) -> None:
    node = recorded("desktop")

    assert not [path for path in reasons(node) if is_block(node, path)]


# -- mounts and swap ------------------------------------------------------------------------------


def test_a_mounted_partition_keeps_its_disk_and_its_sibling(machine: FakeMachine) -> None:
    machine.mount("8:1", "/data")

    assert set(reasons(machine.node())) == {"/dev/sda", "/dev/sda1", "/dev/sda2"}


def test_a_disk_that_is_swapped_to_is_kept(machine: FakeMachine) -> None:
    machine.swap("/dev/sdb")

    assert reasons(machine.node()) == {"/dev/sdb": "/dev/sdb is in use: it is swapped to"}


def test_a_swap_file_names_no_disk(machine: FakeMachine) -> None:
    machine.swap("/var/swap", kind="file")

    assert not reasons(machine.node())


def test_the_hosts_mounts_count_and_not_those_of_the_pod(machine: FakeMachine) -> None:
    machine.mount("8:1", "/data")
    (machine.proc / "self/mountinfo").write_text("1 1 0:9 / / rw - overlay overlay rw\n")

    assert "/dev/sda" in reasons(machine.node())


def test_a_btrfs_keeps_every_disk_that_it_spans(machine: FakeMachine) -> None:
    machine.mount("0:44", "/data", kind="btrfs", source="/dev/sda2")
    members = machine.sys / "fs/btrfs/5f3c/devices"
    members.mkdir(parents=True)
    for name in ("sda2", "sdb"):
        (members / name).symlink_to((machine.sys / "class/block" / name).resolve())

    assert {"/dev/sda", "/dev/sdb"} <= set(reasons(machine.node()))


def test_a_btrfs_that_sysfs_does_not_list_is_told_by_its_source(machine: FakeMachine) -> None:
    machine.mount("0:44", "/data", kind="btrfs", source="/dev/sdb")

    assert set(reasons(machine.node())) == {"/dev/sdb"}


def test_a_bcachefs_keeps_the_disks_that_its_source_lists(machine: FakeMachine) -> None:
    machine.mount("0:44", "/data", kind="bcachefs", source="/dev/sda1:/dev/sdb")

    assert {"/dev/sda", "/dev/sdb"} <= set(reasons(machine.node()))


def test_a_journal_on_another_disk_keeps_that_disk(machine: FakeMachine) -> None:
    for who in ("1", "self"):
        table = machine.proc / who / "mountinfo"
        line = "30 1 8:1 / /x rw - xfs /dev/sda1 rw,logdev=/dev/sdb,noquota\n"
        table.write_text(table.read_text() + line)

    assert "/dev/sdb" in reasons(machine.node())


def test_a_node_that_is_mounted_on_a_file_is_a_raw_volume_of_a_pod(machine: FakeMachine) -> None:
    for who in ("1", "self"):
        table = machine.proc / who / "mountinfo"
        where = "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/pv/dev/uid"
        table.write_text(
            table.read_text()
            + f"30 1 0:5 /sdb {where} rw - devtmpfs udev rw\n"
            + "31 1 0:5 /null /run/masked rw - devtmpfs udev rw\n"
        )

    assert set(reasons(machine.node())) == {"/dev/sdb"}


def test_blanks_in_a_path_are_read_as_the_kernel_writes_them(machine: FakeMachine) -> None:
    machine.mount("8:1", "/my\\040data")

    assert "mounted at /my data" in reasons(machine.node())["/dev/sda"]


# -- what stands on a disk ------------------------------------------------------------------------


def test_a_disk_with_a_holder_is_in_use_and_what_holds_it_is_free(machine: FakeMachine) -> None:
    machine.pci("0000:00:1e.0").ata(9).disk("sdc", 8, 32).held_by(
        machine.virtual_disk("dm-0", 253, 0)
    )

    assert set(reasons(machine.node())) == {"/dev/sdc"}


def test_a_mounted_mapping_is_found_by_its_name(machine: FakeMachine) -> None:
    machine.virtual_disk("dm-0", 253, 0).attribute("dm/name", "vg-swap")
    machine.swap("/dev/mapper/vg-swap")

    assert set(reasons(machine.node())) == {"/dev/dm-0"}


def test_a_link_in_dev_leads_to_the_disk_it_means(machine: FakeMachine) -> None:
    machine.dev_link("/dev/disk/by-uuid/77", "../../sdb")
    machine.swap("/dev/disk/by-uuid/77")

    assert set(reasons(machine.node())) == {"/dev/sdb"}


def test_a_loop_device_over_a_disk_keeps_the_disk(machine: FakeMachine) -> None:
    machine.virtual_disk("loop0", 7, 0).attribute("loop/backing_file", "/dev/sdb")
    machine.virtual_disk("loop1", 7, 1).attribute("loop/backing_file", "/srv/image")

    assert set(reasons(machine.node())) == {"/dev/sdb"}


@pytest.mark.parametrize(
    ("signature", "is_kept"),
    [
        ("E:ID_FS_TYPE=zfs_member\nE:ID_FS_USAGE=filesystem", True),
        ("E:ID_FS_TYPE=linux_raid_member\nE:ID_FS_USAGE=raid", True),
        ("E:ID_FS_TYPE=ceph_bluestore\nE:ID_FS_USAGE=other", True),
        ("E:ID_FS_TYPE=ext4\nE:ID_FS_USAGE=filesystem", False),
        ("E:ID_FS_TYPE=crypto_LUKS\nE:ID_FS_USAGE=crypto", True),
        ("rubbish\nE:", False),
    ],
)
def test_a_disk_that_carries_the_signature_of_a_storage_system_is_its_own(
    machine: FakeMachine, signature: str, is_kept: bool
) -> None:
    record = machine.run / "udev/data/b8:16"
    record.parent.mkdir(parents=True)
    record.write_text(signature)

    assert ("/dev/sdb" in reasons(machine.node())) is is_kept


@pytest.mark.parametrize(
    ("more", "suspected"),
    [
        (lambda machine: None, True),
        (lambda machine: machine.mount("8:17", "/data"), False),
        (lambda machine: machine.swap("/dev/sdb1"), False),
        (lambda machine: (machine.proc / "spl/kstat/zfs/tank").mkdir(parents=True), False),
    ],
    ids=["free", "mounted", "swapped", "imported"],
)
def test_a_signature_alone_is_a_suspicion(
    machine: FakeMachine, more: Callable[[FakeMachine], object], suspected: bool
) -> None:
    FakeDisk(machine, (machine.sys / "class/block/sdb").resolve()).partition(1, 8, 17)
    record = machine.run / "udev/data/b8:16"
    record.parent.mkdir(parents=True)
    record.write_text("E:ID_FS_TYPE=zfs_member\nE:ID_FS_USAGE=filesystem\n")
    (record.parent / "b8:17").write_text("")
    more(machine)

    reason = reasons(machine.node())["/dev/sdb"]

    assert isinstance(reason, Suspected) is suspected


def test_while_a_zfs_pool_is_imported_only_disks_known_to_hold_something_else_are_free(
    machine: FakeMachine,
) -> None:
    (machine.proc / "spl/kstat/zfs/tank").mkdir(parents=True)
    records = machine.run / "udev/data"
    records.mkdir(parents=True)
    for numbers in ("8:1", "8:2"):
        (records / f"b{numbers}").write_text("E:ID_FS_TYPE=ext4\nE:ID_FS_USAGE=filesystem\n")
    for numbers in ("8:0", "8:16"):
        (records / f"b{numbers}").write_text("")

    assert set(reasons(machine.node())) == {"/dev/sdb"}


def test_a_disk_that_udev_has_not_come_to_yet_is_left_alone(machine: FakeMachine) -> None:
    """It may be a volume that udev is about to start; where no udev is, nobody would."""
    assert "/dev/sdb" not in reasons(machine.node())
    records = machine.run / "udev/data"
    records.mkdir(parents=True)
    for numbers in ("8:0", "8:1", "8:2"):
        (records / f"b{numbers}").write_text("I:1\n")

    (reason,) = {v for k, v in reasons(machine.node()).items() if k == "/dev/sdb"}
    assert "udev has not yet said what is on it" in reason
    assert not isinstance(reason, Suspected)

    (records / "b8:16").write_text("I:1\n")
    assert "/dev/sdb" not in reasons(machine.node())


def test_the_controller_of_an_nvme_disk_with_several_paths_is_kept(machine: FakeMachine) -> None:
    machine.pci("0000:01:00.0", klass="010802", driver="nvme").nvme(0)
    subsystem = machine.sys / "devices/virtual/nvme-subsystem/nvme-subsys0"
    FakeDevice(machine, subsystem / "nvme0n1").in_class("block").is_node("nvme0n1", 259, 0)
    (subsystem / "nvme0").symlink_to((machine.sys / "class/nvme/nvme0").resolve())
    machine.mount("259:0", "/data")

    platform = Platform.of(machine.node())

    assert "is reached through it" in str(platform.reason(char("/dev/nvme0", 240, 0)))


# -- what cannot be told --------------------------------------------------------------------------


def unreadable_mounts(machine: FakeMachine) -> None:
    (machine.proc / "1/mountinfo").unlink()
    (machine.proc / "1/mountinfo").mkdir()


def no_mounts(machine: FakeMachine) -> None:
    for who in ("1", "self"):
        (machine.proc / who / "mountinfo").unlink()


def garbled_mounts(machine: FakeMachine) -> None:
    (machine.proc / "1/mountinfo").write_text("30 1 8:1 / /x rw - ext4 /dev/sda1 rw\nrubbish\n")


def unreadable_disks(machine: FakeMachine) -> None:
    (machine.sys / "class/block").rename(machine.sys / "class/gone")
    (machine.sys / "class/block").write_text("")
    (machine.sys / "dev/block").rename(machine.sys / "dev/gone")
    (machine.sys / "dev/block").write_text("")


def strange_swap(machine: FakeMachine) -> None:
    machine.swap("/dev/no-such-disk")


def strange_btrfs(machine: FakeMachine) -> None:
    machine.mount("0:44", "/data", kind="btrfs", source="/dev/root")


@pytest.mark.parametrize(
    "harm",
    [
        unreadable_mounts,
        no_mounts,
        garbled_mounts,
        unreadable_disks,
        strange_swap,
        strange_btrfs,
    ],
)
def test_what_cannot_be_told_keeps_every_disk_and_nothing_else(
    machine: FakeMachine, harm: Callable[[FakeMachine], None]
) -> None:
    machine.pci("0000:00:02.0").drm(card=0, render=128)
    machine.pci("0000:01:00.0", klass="010802", driver="nvme").nvme(0)
    harm(machine)
    platform = Platform.of(machine.node())

    assert platform.reason(block("/dev/sda", 8, 0))
    assert platform.reason(block("/dev/sdb", 8, 16))
    assert platform.reason(char("/dev/nvme0", 240, 0))
    assert platform.reason(char("/dev/dri/renderD128", 226, 128)) is None


def test_in_a_pod_that_does_not_see_the_host_every_disk_is_kept(machine: FakeMachine) -> None:
    node = machine.node(writable=True)  # a live node, and process 2 is not the kernel's
    hidden = Platform.of(node).reason(block("/dev/sdb", 8, 16))
    (machine.proc / "2").mkdir()
    (machine.proc / "2/comm").write_text("kthreadd\n")

    assert "hostPID" in str(hidden)
    assert Platform.of(node).reason(block("/dev/sdb", 8, 16)) is None


def test_a_disk_whose_holders_cannot_be_read_is_kept_alone(machine: FakeMachine) -> None:
    holders = machine.sys / "class/block/sdb/holders"
    holders.rmdir()
    holders.write_text("")

    assert set(reasons(machine.node())) == {"/dev/sdb"}


def test_a_table_of_mounts_longer_than_a_page_is_read_to_its_end(machine: FakeMachine) -> None:
    for number in range(20_000):
        machine._mounts.append(f"{number + 50} 1 0:77 / /pods/{number} rw - tmpfs tmpfs rw")
    machine.mount("8:16", "/last")

    assert "/dev/sdb" in reasons(machine.node())


# -- strangers' nodes -----------------------------------------------------------------------------


def test_a_block_node_that_nothing_knows_is_kept(machine: FakeMachine) -> None:
    platform = Platform.of(machine.node())

    assert "does not know" in str(platform.reason(block("/dev/odd", 7, 99)))
    assert "cannot be told" in str(platform.reason(block("/dev/odd")))


def test_a_node_is_judged_by_what_the_host_has_at_its_path(machine: FakeMachine) -> None:
    machine.mount("8:1", "/data")
    platform = Platform.of(machine.node())

    innocent = DeviceNode(path="/dev/data", host_path="/dev/sda1", major=1, minor=3)
    assert "mounted at /data" in str(platform.reason(innocent))
    assert "mounted at /data" in str(platform.reason(char("/dev/sda")))  # called a char node
    assert platform.reason(char("/dev/nvidia0", 195, 0)) is None  # unknown to sysfs


def test_a_path_that_no_kernel_takes_is_kept(machine: FakeMachine) -> None:
    assert Platform.of(machine.node()).reason(block("/dev/\0", None, None))


def test_the_usbfs_node_of_a_stick_in_use_is_kept_and_its_neighbours_is_not(
    machine: FakeMachine,
) -> None:
    def stick(address: str, name: str, minor: int) -> FakeUsb:
        usb = machine.usb(address)
        disk = usb.interface(0, klass="08", driver="usb-storage")
        disk.disk(name, 8, minor)
        return usb

    stick("1-2", "sdx", 64)
    stick("1-3", "sdy", 80)
    machine.mount("8:64", "/media/x")
    node = machine.node()

    kept = {path for path in reasons(node) if "usb" in path}
    assert kept == {node.usb(a).nodes()[0].path for a in ("usb1", "1-2")}


def test_keep_parts_the_nodes_and_says_why(machine: FakeMachine) -> None:
    machine.mount("8:1", "/data")
    nodes = [block("/dev/sda", 8, 0), block("/dev/sdb", 8, 16)]

    kept, dropped = Platform.of(machine.node()).keep(nodes)

    assert kept == (nodes[1],)
    assert dropped == ((nodes[0], "/dev/sda1 is in use: it is mounted at /data"),)


def test_without_the_mounts_of_the_host_only_what_leads_to_a_disk_is_kept(
    machine: FakeMachine,
) -> None:
    for who in ("1", "self"):
        (machine.proc / who / "mountinfo").unlink()
    serial = machine.usb("1-2", vendor="0403", product="6001")
    serial.interface(0, klass="ff", driver="ftdi_sio").node("tty", "ttyUSB0", 188, 0)
    stick = machine.usb("1-3", vendor="0781", product="5581")
    stick.interface(0, klass="08", driver="usb-storage").disk("sdz", 8, 240)

    kept = reasons(machine.node())

    assert "/dev/bus/usb/001/003" in kept
    assert {"/dev/sda", "/dev/sdb", "/dev/sdz"} <= set(kept)
    assert not {"/dev/bus/usb/001/002", "/dev/ttyUSB0"} & set(kept)
