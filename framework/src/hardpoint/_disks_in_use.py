"""Which disks the machine uses: what is mounted, swapped to, or stood on by something else.

A partition in use is its whole disk in use. What cannot be told counts as in use: a claim on a disk
that only looked free destroys data.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from hardpoint._mounts import SPANNING, Mount, mounts_of, swaps_of
from hardpoint.node import Entry, Node, clean, said

STORAGE = frozenset({"ceph_bluestore", "drbd", "bcache", "zfs_member", "LVM2_member"})
"""Signatures (udev's ID_FS_TYPE) of disks that belong to a storage system, beside those of
``STORAGE_USAGE``: nothing in sysfs says that such a disk is open."""
STORAGE_USAGE = frozenset({"raid", "crypto"})
"""ID_FS_USAGE likewise. What is in a locked LUKS disk cannot be told: an encrypted Ceph OSD that is
not yet started looks no different."""

REACHING = frozenset({"nvme", "nvme-generic", "scsi_generic", "bsg", "mmc_rpmb", "usb"})
"""Subsystems of char nodes that disks are reached through."""

_NUMBERS = re.compile(r"\d+:\d+")
_GENERIC = re.compile(r"ng(\d+n\d+)")


class Suspected(str):
    """A reason that a person may know better: nothing says that the disk is open."""

    __slots__ = ()


class BlockDevices:
    """Every block device that sysfs lists: numbers, names and paths, and the whole disk of each."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.by_numbers: dict[str, str] = {}
        self.by_name: dict[str, str] = {}
        self.paths: set[str] = set()
        for entry in node.entries("dev/block"):
            if _NUMBERS.fullmatch(entry.name) and entry.exists():
                self._add(entry.name, entry.path)
        for entry in node.entries("class/block"):
            if entry.path not in self.paths and entry.exists():
                self._add(entry.get("dev"), entry.path)

    def _add(self, numbers: str, path: str) -> None:
        self.paths.add(path)
        self.by_numbers[numbers] = path
        self.by_name[_devname(path)] = path

    def entry(self, path: str) -> Entry:
        """Return the sysfs entry at the path of one of them."""
        return Entry(self._node, path, path)

    def whole(self, path: str) -> str:
        """Return the path of the disk that a partition is on: ``sda1`` lies in ``sda``."""
        while os.path.dirname(path) in self.paths:
            path = os.path.dirname(path)
        return path

    def find(self, source: str) -> str | None:
        """Return the sysfs path of a block device by its path in /dev, links followed."""
        name = source.removeprefix("/dev/")
        if name in self.by_name:
            return self.by_name[name]
        if name.startswith("mapper/"):
            mapped = self._mapped(name.removeprefix("mapper/"))
            if mapped is not None:
                return mapped
        at = os.path.realpath(self._node.at_dev(source))
        real = os.path.relpath(at, os.path.realpath(self._node.dev))
        if real in self.by_name:
            return self.by_name[real]
        info = self._node.info(source)
        return self.by_numbers.get(f"{info.major}:{info.minor}") if info else None

    def _mapped(self, name: str) -> str | None:
        for candidate, path in self.by_name.items():
            if candidate.startswith("dm-") and self.entry(path).get("dm/name") == name:
                return path
        return None

    def in_database(self, path: str) -> bool:
        """Say whether udev's database, where it has one, knows a block device."""
        numbers = self.entry(path).get("dev")
        return os.path.exists(os.path.join(self._node.run, f"udev/data/b{numbers}"))

    def signature(self, path: str) -> tuple[str, str]:
        """Return ID_FS_TYPE and ID_FS_USAGE of udev's database; empty where there is none."""
        numbers = self.entry(path).get("dev")
        lines = self._node.run_text(f"udev/data/b{numbers}").splitlines() if numbers else []
        facts = dict(line[2:].split("=", 1) for line in lines if line[:2] == "E:" and "=" in line)
        return clean(facts.get("ID_FS_TYPE", "").encode())[:32], facts.get("ID_FS_USAGE", "")


class DisksInUse:
    """What one look at the machine said of its disks."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._uses: dict[str, str] = {}
        """Path of a whole disk to a sentence."""
        self._unknown = ""
        self._listed = False
        self._has_database = os.path.isdir(os.path.join(node.run, "udev/data"))
        try:
            self._blocks = BlockDevices(node)
            self._listed = True
            self._look()
        except OSError as error:
            self._unknown = f"which disks this machine uses cannot be read ({said(error)})"
        self._reached = dict(self._reach())

    # -- answers ----------------------------------------------------------------------------------

    def of_block(self, major: int, minor: int) -> str | None:
        """Say why a block device must be left alone; None for one that nothing uses."""
        if self._unknown:
            return self._unknown
        path = self._blocks.by_numbers.get(f"{major}:{minor}")
        if path is None:
            return f"sysfs does not know the block device {major}:{minor}"
        return self._uses.get(self._blocks.whole(path))

    def of_char(self, entry: Entry, owner: str) -> str | None:
        """Say why a char node must be left alone: a disk that is in use is reached through it.

        ``entry`` stands for the node in sysfs and ``owner`` is the device that it belongs to: the
        SCSI device of an ``sg`` node, the NVMe controller, the USB device of a usbfs node.
        """
        generic = _GENERIC.fullmatch(os.path.basename(entry.path))
        if generic:
            owner = os.path.join(os.path.dirname(entry.path), f"nvme{generic[1]}")
        nvme = entry.subsystem.startswith("nvme")  # its disks may hang from another controller
        if self._unknown and entry.subsystem in REACHING and (nvme or self._has_a_disk(owner)):
            return self._unknown
        return self._reached.get(owner)

    def _has_a_disk(self, owner: str) -> bool:
        """Say whether a block device hangs from a device, or may: a serial adapter has none."""
        if not self._listed:
            return True
        return any(path.startswith(f"{owner}/") for path in self._blocks.paths)

    # -- the look ---------------------------------------------------------------------------------

    def _look(self) -> None:
        for path in sorted(self._blocks.paths):
            self._use(path, self._stood_on(path) or self._unseen(path))
            self._suspect(path, self._signed(path))
        mounts = mounts_of(self._node)
        self._unknown = mounts.unknown
        listed = set(self._spanning())
        for mount in mounts.all:
            self._mounted(mount, told=mount.kind in listed)
        for source in swaps_of(self._node):
            self._must_find(source, "it is swapped to")
        for source in self._looped():
            self._use(self._blocks.find(source), "a loop device reads it")
        self._zfs()

    def _use(self, path: str | None, reason: str) -> None:
        """Note a use of a disk or partition; the first one found is the one that is told."""
        if path and reason:
            whole = self._blocks.whole(path)
            if isinstance(self._uses.get(whole, Suspected()), Suspected):
                self._uses[whole] = f"/dev/{_devname(path)} is in use: {reason}"

    def _suspect(self, path: str, kind: str) -> None:
        """Note whose member a disk may be; of an imported ZFS pool nothing says more than that."""
        if not kind:
            return
        reason = f"it carries a signature of {kind}, which wipefs removes if nobody needs it"
        if kind == "zfs_member" and self._zfs_is_imported():
            self._use(path, reason)
        said = Suspected(f"/dev/{_devname(path)} may be in use: {reason}")
        self._uses.setdefault(self._blocks.whole(path), said)

    def _must_find(self, source: str, reason: str) -> None:
        path = self._blocks.find(source)
        if path is None:
            self._unknown = f"which disk {source[:80]} is cannot be told, and {reason}"
        self._use(path, reason)

    def _stood_on(self, path: str) -> str:
        """Say what stands on a block device."""
        try:
            holders = os.listdir(f"{path}/holders")
        except FileNotFoundError:
            holders = []
        except OSError as error:
            return f"what stands on it cannot be read ({said(error)})"
        return f"{clean(os.fsencode(min(holders)))} stands on it" if holders else ""

    def _unseen(self, path: str) -> str:
        """Say that udev, which keeps a database here, has not come to a disk that is just there.

        Whose member it is, is known only then; the kernel's event wakes udev and us alike.
        """
        if self._has_database and not self._blocks.in_database(path):
            return "udev has not yet said what is on it"
        return ""

    def _signed(self, path: str) -> str:
        """Say whose member the signature of a block device makes it; "" for a plain one."""
        kind, usage = self._blocks.signature(path)
        belongs = usage in STORAGE_USAGE or kind in STORAGE
        return (kind or "a storage system") if belongs else ""

    def _mounted(self, mount: Mount, *, told: bool) -> None:
        """Note the disks of a mount; ``told``: sysfs has listed the disks that it spans."""
        here = f"it is mounted at {mount.where}"
        self._use(self._blocks.by_numbers.get(mount.numbers), here)
        for source in mount.beside:
            self._use(self._blocks.find(source), f"it belongs to what is mounted at {mount.where}")
        for source in mount.spans:
            if told:
                self._use(self._blocks.find(source), here)
            else:
                self._must_find(source, here)

    def _looped(self) -> Iterator[str]:
        """Yield the paths of disks that loop devices read; files lie on disks that are mounted."""
        for name, path in self._blocks.by_name.items():
            if name.startswith("loop"):
                backing = self._blocks.entry(path).get("loop/backing_file")
                if backing.startswith("/dev/"):
                    yield backing

    def _spanning(self) -> Iterator[str]:
        """Note the members of file systems that span disks; yield the kinds that sysfs lists."""
        for kind in sorted(SPANNING):
            for system in self._node.entries(f"fs/{kind}"):
                for member in _members(system):
                    if member in self._blocks.paths:
                        self._use(member, f"it belongs to a {kind} file system")
                        yield kind

    def _zfs(self) -> None:
        """Leave every disk alone that might be of an imported pool: nothing says which ones are."""
        if not self._zfs_is_imported():
            return
        divided = {os.path.dirname(path) for path in self._blocks.paths}
        for path in self._blocks.paths - divided:
            if not self._blocks.signature(path)[0]:
                self._use(path, "a ZFS pool is imported, and nothing says which disks it has")

    def _zfs_is_imported(self) -> bool:
        base = os.path.join(self._node.proc, "spl/kstat/zfs")
        try:
            return any(os.path.isdir(os.path.join(base, name)) for name in os.listdir(base))
        except FileNotFoundError:
            return False

    def _reach(self) -> Iterator[tuple[str, str]]:
        """Yield every directory that a disk in use is in or below, with the reason."""
        for whole, reason in self._uses.items():
            said = type(reason)(f"the disk {_devname(whole)} is reached through it: {reason}")
            for path in (whole, *_controllers(whole)):
                while path not in (self._node.devices, "/"):
                    yield path, said
                    path = os.path.dirname(path)


def _devname(path: str) -> str:
    """Return the name in /dev of a block device: ``cciss!c0d0`` is ``cciss/c0d0`` there."""
    return os.path.basename(path).replace("!", "/")


def _controllers(disk: str) -> Iterator[str]:
    """Yield the controllers of an NVMe disk with several paths, which it is not below."""
    subsystem = os.path.dirname(disk)
    if re.fullmatch(r"nvme-subsys\d+", os.path.basename(subsystem)):
        for name in sorted(os.listdir(subsystem)):
            if re.fullmatch(r"nvme\d+", name):
                yield os.path.realpath(os.path.join(subsystem, name))


def _members(system: Entry) -> Iterator[str]:
    """Yield the disks of a file system: links in ``devices`` (btrfs), or one in each ``dev-N``."""
    for name in sorted(system.child("devices").names):
        yield os.path.realpath(f"{system.path}/devices/{name}")
    for name in sorted(system.names):
        if name.startswith("dev-"):
            yield os.path.realpath(f"{system.path}/{name}/block")
