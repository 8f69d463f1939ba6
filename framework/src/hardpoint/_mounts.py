"""What the host has mounted and swaps to, from procfs, as strictly as data at stake deserves."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from hardpoint.node import Node, clean

_LARGEST = 64 << 20
_OCTAL = re.compile(r"\\([0-7]{3})")
_DEVICE_OPTION = re.compile(r"=(/dev/[^,]+)")
SPANNING = frozenset({"btrfs", "bcachefs"})
"""File systems over several disks; sysfs lists their members below ``fs/<name>``."""
_PLACE = 80
"""Characters shown of a mount point."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo (Documentation/filesystems/proc.rst, 3.5)."""

    numbers: str
    where: str
    kind: str
    spans: tuple[str, ...] = ()
    """Paths in /dev of the disks of btrfs and bcachefs, whose numbers belong to no device."""
    beside: tuple[str, ...] = ()
    """Further paths in /dev, of disks or not: a journal on a disk of its own; a device node that is
    mounted on a file, as the kubelet does for raw block volumes."""


@dataclass(frozen=True, slots=True)
class Mounts:
    """All mounts; ``unknown`` is a sentence where some may be missing."""

    all: tuple[Mount, ...] = ()
    unknown: str = ""


def mounts_of(node: Node) -> Mounts:
    """Read the mounts of the host, also from within a pod. Raises ``OSError`` where it cannot.

    Process 1 has them where the host's processes can be seen (``hostPID``, or its /proc mounted).
    In a pod without that, process 1 is the pod's own and knows nothing of the host's mounts.
    """
    if not node.recorded and not _is_host(node):
        return Mounts(
            unknown="the host's mounts cannot be seen: run with hostPID, or with the host's /proc"
        )
    text = _whole(node, "1/mountinfo")
    if not text and node.recorded:
        text = _whole(node, "self/mountinfo")
    if not text.strip():
        return Mounts(unknown="what this machine has mounted is not recorded in procfs")
    try:
        return Mounts(tuple(_mount(line) for line in text.splitlines() if line.strip()))
    except ValueError:
        return Mounts(unknown="what this machine has mounted is in a form that is not understood")


def _is_host(node: Node) -> bool:
    """Say whether procfs shows the host's processes: the second is the kernel's thread daemon."""
    return node.proc_text("2/comm").strip() == "kthreadd"


def _whole(node: Node, path: str) -> str:
    """Read a table to its end: half of one would hide disks that are in use."""
    try:
        with open(os.path.join(node.proc, path), "rb") as file:
            raw = file.read(_LARGEST + 1)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    if len(raw) > _LARGEST:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    return raw.decode("utf-8", "surrogateescape")


def _mount(line: str) -> Mount:
    """Read ``36 35 98:0 /root /at rw master:1 - ext4 /dev/root rw,errors=continue``."""
    before, dash, after = line.partition(" - ")
    fields, rest = before.split(" "), after.split(" ")
    if not dash or len(fields) < 6 or len(rest) < 2:
        raise ValueError(line)
    numbers, root, where = fields[2:5]
    kind, source = rest[0], _plain(rest[1])
    spans = source.split(":") if numbers.startswith("0:") and kind in SPANNING else ()
    beside = [_plain(path) for path in _DEVICE_OPTION.findall(" ".join(rest[2:]))]
    if kind == "devtmpfs" and root != "/":
        beside.append("/dev" + _plain(root))
    place = clean(os.fsencode(_plain(where)))[:_PLACE]
    return Mount(numbers, place, kind, tuple(spans), tuple(beside))


def _plain(word: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), word)


def swaps_of(node: Node) -> Iterator[str]:
    """Yield the paths in /dev of disks that are swapped to; files lie on disks that are mounted."""
    for line in _whole(node, "swaps").splitlines()[1:]:
        words = line.split()
        if len(words) > 1 and words[1] == "partition":
            yield _plain(words[0]).removesuffix(" (deleted)")
