"""One directory of sysfs: a device, an interface, a member of a class."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hardpoint.model import DeviceNode, NodeType, Part, Topology, exclusive, shared, slug
from hardpoint.reading import decimal, listdir, read_raw, read_text

if TYPE_CHECKING:
    from hardpoint.node import Node

_ABSENT = {errno.ENOENT, errno.ENOTDIR}
_BUSES = ("pci", "usb")

_WRITE = os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC
"""Truncated as by a shell's redirection, which sysfs ignores: on a machine of files a shorter value
must not keep the end of a longer one."""

_NO_DEVICES = re.compile(r"power|ep_[0-9a-f]{2}")
"""Directories below which no device is: the attribute group of power management, which every device
has (drivers/base/power), and the endpoints of USB interfaces (drivers/usb/core/endpoint.c)."""

_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
"""A PCI root bus in sysfs (drivers/pci/probe.c, ``pci_register_host_bridge``)."""

PRUNED = frozenset({"pci", "usb", "bluetooth"})
"""Subsystems that end a walk below a device: each of their devices is judged by itself."""


class Entry:
    """One directory of sysfs: a device, an interface, a class member."""

    __slots__ = ("_names", "_path", "link_path", "node")

    def __init__(self, node: Node, path: str, real: str | None = None) -> None:
        self.node, self.link_path = node, path
        self._path = real
        self._names: frozenset[str] | None = None

    # -- where it is ------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The real directory, links resolved."""
        if self._path is None:
            self._path = os.path.realpath(self.link_path)
        return self._path

    @property
    def name(self) -> str:
        """Its name in the directory it was found in: ``0000:0a:00.0``, ``1-2:1.0``, ``card0``."""
        return os.path.basename(self.link_path)

    address = name
    """A device's name on its bus is its address there."""

    @property
    def key(self) -> str:
        """Its path below the sysfs root, as it was found."""
        root = f"{self.node.sys}/"
        if self.link_path.startswith(root):
            return self.link_path[len(root) :]
        return os.path.relpath(self.link_path, root)

    @property
    def slug(self) -> str:
        """Its bus and address as a piece of a device name: ``pci-0000-0a-00-0``."""
        return slug(f"{self.subsystem}-{self.address}" if self.subsystem else self.address)

    def exists(self) -> bool:
        """Say whether it is still there."""
        return os.path.isdir(self.link_path)

    # -- attributes -------------------------------------------------------------------------------

    def text(self, attribute: str) -> str:
        """Read an attribute: control characters and blanks at the ends removed, ``""`` if absent.

        Raises ``OSError`` if it exists and cannot be read.
        """
        return read_text(f"{self.path}/{attribute}")

    def get(self, attribute: str) -> str:
        """Read an attribute that may fail for reasons of its own; ``""`` then."""
        try:
            return self.text(attribute)
        except OSError:
            return ""

    def number(self, attribute: str, base: int = 10) -> int | None:
        """Read a number; None where it is absent or not one. Base 0 understands ``0x``."""
        try:
            return int(self.text(attribute), base)
        except ValueError:
            return None

    def has(self, attribute: str) -> bool:
        """Say whether the directory holds this name."""
        if "/" in attribute or self._names is None:
            return os.path.lexists(f"{self.path}/{attribute}")
        return attribute in self._names

    @property
    def names(self) -> frozenset[str]:
        """Names in the directory, read once."""
        if self._names is None:
            self._names = frozenset(listdir(self.path))
        return self._names

    def link(self, attribute: str) -> str:
        """Return the last word of a link's target (``driver``, ``subsystem``); ``""`` if absent."""
        try:
            return os.path.basename(os.readlink(f"{self.path}/{attribute}"))
        except OSError as error:
            if error.errno in _ABSENT or error.errno == errno.EINVAL:
                return ""
            raise

    @property
    def driver(self) -> str:
        """The kernel driver bound to it; ``""`` if none."""
        return self.link("driver")

    @property
    def subsystem(self) -> str:
        """The bus or class it belongs to."""
        return self.link("subsystem")

    def uevent(self) -> dict[str, str]:
        """Its uevent variables: DEVNAME, MAJOR, PCI_SLOT_NAME …"""
        lines = read_raw(f"{self.path}/uevent").splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def write(self, attribute: str, value: str) -> None:
        """Write an attribute, without creating it; for ``prepare_device`` and ``unprepare_device``.

        Raises ``PermissionError`` on a recorded machine.
        """
        if self.node.recorded:
            raise PermissionError(errno.EROFS, "a recorded machine is not written", attribute)
        descriptor = os.open(f"{self.path}/{attribute}", _WRITE)
        try:
            os.write(descriptor, value.encode())
        finally:
            os.close(descriptor)

    # -- neighbours -------------------------------------------------------------------------------

    def child(self, name: str) -> Entry:
        """Return the entry below it of that name."""
        return Entry(self.node, f"{self.path}/{name}")

    def children(self) -> Iterator[Entry]:
        """Yield the real directories in it (no links), in order of name."""
        with os.scandir(self.path) as scan:
            names = sorted(e.name for e in scan if e.is_dir(follow_symlinks=False))
        for name in names:
            yield Entry(self.node, f"{self.path}/{name}", f"{self.path}/{name}")

    def ancestors(self) -> Iterator[Entry]:
        """Yield the directories above it, nearest first, as far as sysfs's ``devices``."""
        root = self.node.devices
        above = os.path.dirname(self.path)
        while above.startswith(root + "/"):
            yield Entry(self.node, above, above)
            above = os.path.dirname(above)

    def _on_bus(self, bus: str) -> Entry:
        for candidate in (self, *self.ancestors()):
            if candidate.subsystem == bus and (bus != "usb" or ":" not in candidate.name):
                return candidate.node.entry(f"bus/{bus}/devices/{os.path.basename(candidate.path)}")
        raise LookupError(f"{self.key} is not on the {bus} bus")

    @property
    def pci(self) -> Entry:
        """The PCI function it is, or hangs from. Raises ``LookupError`` if there is none."""
        return self._on_bus("pci")

    @property
    def usb(self) -> Entry:
        """The USB device it is, or hangs from. Raises ``LookupError`` if there is none."""
        return self._on_bus("usb")

    # -- parts ------------------------------------------------------------------------------------

    @property
    def part(self) -> str:
        """Its part: ``pci:0000:0a:00.0``, ``usb:1-2``, ``usb:1-2:1.0``."""
        return f"{self.subsystem or 'sys'}:{os.path.basename(self.path)}"

    def whole(self) -> tuple[Part, ...]:
        """Take it alone, and share the PCI and USB devices it hangs from."""
        return (exclusive(self.part), *self._above())

    def beside(self) -> tuple[Part, ...]:
        """Share it and what it hangs from: for a device that is one node of it."""
        return (shared(self.part), *self._above())

    def _above(self) -> tuple[Part, ...]:
        return tuple(shared(a.part) for a in self.ancestors() if a.subsystem in _BUSES)

    # -- nodes ------------------------------------------------------------------------------------

    def device_node(self) -> DeviceNode | None:
        """Return the node of /dev that this directory itself stands for, or None.

        A directory stands for a node when it has both a ``dev`` attribute (its numbers) and a
        DEVNAME (drivers/base/core.c, ``dev_uevent``).
        """
        if not self.has("dev"):
            return None
        uevent = self.uevent()
        name, major, minor = (uevent.get(word, "") for word in ("DEVNAME", "MAJOR", "MINOR"))
        if not (major and minor):
            major, _, minor = self.text("dev").partition(":")
        numbers = decimal(major), decimal(minor)
        if not name or None in numbers:
            return None
        subsystem = self.subsystem
        path = f"/dev/{name}"
        info = self.node.info(path)
        return DeviceNode(
            path=path,
            type=NodeType.BLOCK if subsystem == "block" else NodeType.CHAR,
            major=numbers[0],
            minor=numbers[1],
            subsystem=subsystem,
            gid=info.gid if info and info.gid else None,
        )

    def below(self, prune: frozenset[str] = PRUNED, *, prune_here: bool = False) -> Iterator[Entry]:
        """Yield it and every directory below it, depth first, without what belongs elsewhere.

        A directory that vanishes while it is walked is not an error.
        """
        try:
            with os.scandir(self.path) as scan:
                found = [(e.name, e.is_dir(follow_symlinks=False)) for e in scan]
        except FileNotFoundError:
            return
        self._names = frozenset(name for name, _ in found)
        if prune_here and "subsystem" in self._names and self.subsystem in prune:
            return
        yield self
        for name in sorted(name for name, is_directory in found if is_directory):
            if not _NO_DEVICES.fullmatch(name):
                path = f"{self.path}/{name}"
                yield from Entry(self.node, path, path).below(prune, prune_here=True)

    def nodes(self, prune: frozenset[str] = PRUNED) -> tuple[DeviceNode, ...]:
        """Return the nodes of /dev that it and what is below it stand for, in the walk's order."""
        return tuple(node for e in self.below(prune) if (node := e.device_node()) is not None)

    def topology(self) -> Topology:
        """Where it sits: the nearest NUMA node that the machine really has, and the PCIe root.

        The root is the first host bridge above it: ``pci0000:00``, on ARM below a platform device.
        """
        above = os.path.relpath(self.path, self.node.devices).split("/")
        return Topology(self._numa_node(), next(filter(_HOST_BRIDGE.fullmatch, above), None))

    def _numa_node(self) -> int | None:
        known = self.node.numa_nodes()
        for candidate in (self, *self.ancestors()):
            number = candidate.number("numa_node")
            if number is not None:
                return number if number >= 0 and (not known or number in known) else None
        return None

    def __str__(self) -> str:
        return self.key

    __repr__ = __str__
