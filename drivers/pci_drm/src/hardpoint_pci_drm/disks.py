"""Disks and other drives, each by itself: a storage controller is never handed over whole.

A disk is named by where it is plugged in, in the words of udev's ``ID_PATH``, and delivered as its
block nodes. The nodes beside them (``sg``, ``bsg``, ``nvme0``, ``ng0n1``) pass commands to a drive
or controller unseen, and are not delivered.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, field

from hardpoint import Capacity, Device, DeviceNode, Entry
from hardpoint.attributes import LONGEST_STRING, text
from hardpoint.model import AttributeValue, slug
from hardpoint.node import clean

BESIDE = frozenset({"nvme", "nvme-generic", "scsi_generic", "bsg", "mmc_rpmb"})
SUBSYSTEMS = frozenset({"block", "scsi_tape", "scsi_changer", *BESIDE})
"""Subsystems of nodes that are a disk, or that one is reached through."""

_LUN = re.compile(r"\d+:(\d+):(\d+):(\d+)")
_SECTOR = 512
"""Bytes in which sysfs counts the size of a block device, whatever its sectors are."""
_OPTICAL = "5"
"""SCSI peripheral device type of CD and DVD drives (include/scsi/scsi_proto.h, TYPE_ROM)."""
_NO_DISC = 0x1FFFFF
"""Sectors that a CD drive has, it says, with no disc in it (drivers/scsi/sr.c, get_sectorsize)."""

Found = tuple[Entry, DeviceNode]


@dataclass(slots=True)
class Drive:
    """A disk with its partitions, or a tape drive or changer: what is given to one holder."""

    entry: Entry
    kind: str
    nodes: list[DeviceNode] = field(default_factory=list)

    @property
    def home(self) -> Entry:
        """The device that it is the node of: a SCSI device, an NVMe controller, an SD card."""
        linked = self.entry.child("device")
        return linked if linked.exists() else self.entry


def drives(found: list[Found]) -> list[Drive]:
    """Group the nodes of a storage controller into the drives that it has."""
    by_path: dict[str, Drive] = {}
    for entry, node in found:
        if node.subsystem == "block":
            whole = by_path.get(os.path.dirname(entry.path))  # the walk meets a disk first
            drive = whole or Drive(entry, _disk_kind(entry))
            by_path[entry.path] = drive
            drive.nodes.append(node)
        elif node.subsystem in ("scsi_tape", "scsi_changer"):
            drive = Drive(entry, "tape" if node.subsystem == "scsi_tape" else "changer")
            drive = by_path.setdefault(drive.home.path, drive)
            drive.nodes.append(node)
    return list({id(drive): drive for drive in by_path.values()}.values())


def _disk_kind(entry: Entry) -> str:
    return "disk.optical" if entry.child("device").get("type") == _OPTICAL else "disk"


# -- where it is plugged in -----------------------------------------------------------------------


def suffixes(found: list[Drive], owner: Entry) -> list[str]:
    """Return the port of each drive on its controller, as the end of a device name: ``-ata-1-0``.

    Numbers that the kernel gives in the order of discovery (``host3``, ``ata5``, ``nvme1``) are
    not in it, but where nothing else tells the drives of one controller apart.
    """
    ports = [_port(drive, owner) for drive in found]
    often = Counter(ports)
    return [
        f"-{port}" if often[port] == 1 else f"-{port}-{slug(drive.entry.name)}"
        for port, drive in zip(ports, found, strict=True)
    ]


def _port(drive: Drive, owner: Entry) -> str:
    above = _between(owner, drive.entry)
    lun = next((m for name in reversed(above) if (m := _LUN.fullmatch(name))), None)
    if lun is not None:
        return _scsi_port(owner, above, lun)
    namespace = drive.entry.get("nsid")
    if namespace:
        return f"nvme-{slug(namespace)}"
    if any(name.startswith("mmc") and ":" in name for name in above):
        return f"mmc-{_order(owner, above, 'mmc')}"
    return "disk"


def _between(owner: Entry, entry: Entry) -> list[str]:
    return os.path.relpath(entry.path, owner.path).split("/")


def _scsi_port(owner: Entry, above: list[str], lun: re.Match[str]) -> str:
    channel, target, number = lun.groups()
    for name in above:
        if name.startswith("end_device-"):
            where = f"{'/'.join(above[: above.index(name) + 1])}/sas_device/{name}/sas_address"
            address = slug(owner.get(where).removeprefix("0x"))
            if address:
                return f"sas-{address}-lun-{number}"
        if re.fullmatch(r"ata\d+", name):
            port = slug(owner.get(f"{name}/ata_port/{name}/port_no")) or name[3:]
            # behind a port multiplier the channel is its port
            return f"ata-{port}-{channel}-{target}" if channel != "0" else f"ata-{port}-{target}"
    return f"scsi-{_order(owner, above, 'host')}-{channel}-{target}-{number}"


def _order(owner: Entry, above: list[str], word: str) -> int:
    """Return which of the hosts in one directory this is: 0 for the first that was made."""
    numbered = re.compile(rf"{word}(\d+)")
    for depth, name in enumerate(above):
        if numbered.fullmatch(name):
            beside = os.path.join(owner.path, *above[:depth])
            numbers = sorted(int(m[1]) for n in os.listdir(beside) if (m := numbered.fullmatch(n)))
            return numbers.index(int(name.removeprefix(word)))
    return 0


# -- what it is -----------------------------------------------------------------------------------


def attributes(drive: Drive) -> dict[str, AttributeValue]:
    """Return what tells one drive from another; absent facts are left out."""
    entry, home = drive.entry, drive.home
    facts: dict[str, AttributeValue] = {
        "model": home.get("model") or home.get("name"),
        "serial": _serial(entry, home),
        "wwid": _wwid(entry, home),
        "firmware": home.get("firmware_rev") or home.get("rev") or home.get("fwrev"),
        "rotational": entry.get("queue/rotational") == "1",
        "removable": entry.get("removable") == "1",
        "readOnly": entry.get("ro") == "1",
        "blockNode": any(node.subsystem == "block" for node in drive.nodes),
    }
    block_size = entry.number("queue/logical_block_size")
    if block_size:
        facts["logicalBlockSize"] = block_size
    return {name: value for name, value in facts.items() if value not in ("", False)}


def may_be_one(held: Device, now: Device) -> bool:
    """Say whether two disks in one place may be one: nothing that both say of themselves differs.

    What is held was cut for publishing.
    """
    for name in ("model", "serial", "wwid"):
        before, after = held.attributes.get(name), now.attributes.get(name)
        if before and after and before != text(str(after)):
            return False
    return True


def _wwid(entry: Entry, home: Entry) -> str:
    """Return the name that is unique in the world; ``""`` for one too long to publish.

    The namespaces of one NVMe drive, and drives of one model, differ in the last characters alone:
    cut, it would name another disk too.
    """
    whole = entry.get("wwid") or home.get("wwid")
    return whole if len(whole.encode()) <= LONGEST_STRING else ""


def _serial(entry: Entry, home: Entry) -> str:
    """Return the serial number: virtio has it in the disk, NVMe and SD in its device.

    A SCSI device has it in page 80h of its vital product data, after a header of four bytes.
    """
    plain = entry.get("serial") or home.get("serial")
    if plain:
        return plain
    try:
        with open(os.path.join(home.path, "vpd_pg80"), "rb") as page:
            return clean(page.read(256)[4:])
    except OSError:
        return ""


def capacity(drive: Drive) -> dict[str, Capacity]:
    """Return its size in bytes; nothing for a drive without a medium."""
    try:
        sectors = drive.entry.number("size")
    except OSError:
        sectors = None
    if not sectors or (drive.kind == "disk.optical" and sectors == _NO_DISC):
        return {}
    return {"size": Capacity(value=str(sectors * _SECTOR))}
