"""The node that a plugin runs on: where its sysfs, devfs and procfs are, and how to read them.

Everything a driver knows of the machine comes through a ``Node``, so that a recorded machine and a
fake one are read by the same code as the real one. An ``Entry`` is one directory of sysfs.

A read answers in one of three ways: the text; ``""`` where the attribute is absent (the kernel
leaves out what a device lacks); ``OSError`` where it exists and cannot be read. ``Node.each`` turns
the last into a lost look at that one entry, never into a lost device.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import overload

from hardpoint.model import (
    Device,
    DeviceNode,
    Listed,
    NodeType,
    Part,
    Topology,
    Unread,
    exclusive,
    shared,
    slug,
)

_ABSENT = {errno.ENOENT, errno.ENOTDIR}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_BUSES = ("pci", "usb")
_PAGE = 4096
"""Bytes asked for at once: an attribute has at most so many (fs/sysfs/file.c), and a larger buffer
costs more than the read."""
_LONGEST = 1 << 20
"""Bytes read of one file: tables of procfs are longer than a page."""

_NO_DEVICES = re.compile(r"power|ep_[0-9a-f]{2}")
"""Directories below which no device is: the attribute group of power management, which every device
has (drivers/base/power), and the endpoints of USB interfaces (drivers/usb/core/endpoint.c)."""

_INDEX = re.compile(r"(bus/[^/]+/(?:devices|drivers)|class/[^/]+|dev/char|dev/block)/([^/]+)")
"""Where sysfs has directories of links into its tree of devices, each one step away from it."""

PRUNED = frozenset({"pci", "usb", "bluetooth"})
"""Subsystems that end a walk below a device: each of their devices is judged by itself."""


@dataclass(slots=True)
class Walk:
    """What one call of ``publish_devices`` is looking at; kept by ``Node.each``."""

    skip: set[str] = field(default_factory=set)
    current: Entry | None = None


walking: ContextVar[Walk | None] = ContextVar("walking", default=None)


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What the host says of a node in /dev."""

    type: NodeType
    major: int
    minor: int
    mode: int
    gid: int


class Node:
    """A Linux machine, real or recorded.

    ``sys``, ``dev``, ``proc`` and ``run`` are roots to look below; ``name`` is the Kubernetes node.
    """

    def __init__(
        self,
        *,
        name: str = "",
        sys: str | Path = "/sys",
        dev: str | Path = "/dev",
        proc: str | Path = "/proc",
        run: str | Path = "/run",
        recorded: bool = False,
    ) -> None:
        self.name = name or socket.gethostname()
        self.sys, self.dev, self.proc, self.run = Path(sys), Path(dev), Path(proc), Path(run)
        self.recorded = recorded
        """True for a tree that stands for a machine: nothing is written and no uevents come."""
        self.held: Callable[[], Mapping[str, Device]] = dict
        """The devices that claims hold now, by name, as they were when taken: the agent sets this.
        A driver that asks keeps listing a device which its holder changed (a program that detached
        the kernel's driver), instead of taking it for unplugged."""

    # -- sysfs ------------------------------------------------------------------------------------

    @overload
    def each(self, directory: str) -> Iterator[Entry]: ...
    @overload
    def each(
        self, directory: str, describe: Callable[[Entry], Iterable[Listed]]
    ) -> Iterator[Listed]: ...
    def each(
        self, directory: str, describe: Callable[[Entry], Iterable[Listed]] | None = None
    ) -> Iterator[Entry] | Iterator[Listed]:
        """Visit every entry of a sysfs directory (``bus/usb/devices``), in order of name.

        One bad entry costs one entry: whatever is raised while it is being looked at leaves the
        devices last read from it as they were, marked stale. With ``describe``, its answers are
        yielded, which saves a second walk when an entry is bad. A directory that does not exist is
        a bus that this kernel lacks: empty. Raises ``OSError`` where sysfs itself cannot be read.
        """
        walk = walking.get() or Walk()
        entries = (e for e in self.entries(directory) if e.key not in walk.skip)
        return _visit(entries, walk) if describe is None else _describe(entries, describe)

    def entries(self, directory: str) -> Iterator[Entry]:
        """Yield the entries of a sysfs directory, links resolved, in order of name."""
        base = os.path.join(self.sys, directory)
        try:
            names = sorted(os.listdir(base))
        except FileNotFoundError:
            os.listdir(self.sys)  # raises where sysfs is not there at all: not an empty machine
            return
        real = os.path.realpath(base)
        for name in names:
            yield Entry(self, f"{base}/{name}", _target(real, name))

    def entry(self, path: str) -> Entry:
        """Return the entry at a sysfs path, which need not exist."""
        found = _INDEX.fullmatch(path)
        real = found and _target(os.path.join(self._real_sys, found[1]), found[2])
        return Entry(self, os.path.join(self.sys, path), real)

    def pci(self, address: str) -> Entry:
        """Return the PCI function at ``0000:0a:00.0``."""
        return self.entry(f"bus/pci/devices/{address}")

    def usb(self, address: str) -> Entry:
        """Return the USB device ``1-2`` or interface ``1-2:1.0``."""
        return self.entry(f"bus/usb/devices/{address}")

    @cached_property
    def devices(self) -> str:
        """The real path of sysfs's tree of devices."""
        return os.path.realpath(self.sys / "devices")

    @cached_property
    def _real_sys(self) -> str:
        return os.path.realpath(self.sys)

    # -- the rest of the machine ------------------------------------------------------------------

    def info(self, path: str) -> NodeInfo | None:
        """Return what the host says of a node such as ``/dev/dri/card0``; None without it."""
        try:
            status = os.stat(self.at_dev(path))
        except OSError:
            return None
        kind = {0o020000: NodeType.CHAR, 0o060000: NodeType.BLOCK}.get(status.st_mode & 0o170000)
        if kind is None:
            return None
        return NodeInfo(
            kind,
            os.major(status.st_rdev),
            os.minor(status.st_rdev),
            status.st_mode & 0o7777,
            status.st_gid,
        )

    def at_dev(self, path: str) -> str:
        """Return where ``/dev/…`` is on this machine."""
        return os.path.join(self.dev, path.removeprefix("/dev/"))

    def proc_text(self, path: str) -> str:
        """Read a file of procfs, lines and all; ``""`` if it is absent."""
        return _read_raw(os.path.join(self.proc, path))

    def run_text(self, path: str) -> str:
        """Read a file below /run (``udev/data/c188:0``), lines and all; ``""`` if it is absent."""
        return _read_raw(os.path.join(self.run, path))

    @property
    def boot_id(self) -> str:
        """A UUID that changes at every boot (Documentation/admin-guide/sysctl/kernel.rst)."""
        return self.proc_text("sys/kernel/random/boot_id").strip() or "unknown"

    def numa_nodes(self) -> frozenset[int]:
        """The NUMA nodes that the machine has; empty where sysfs does not say."""
        names = _listdir(os.path.join(self.sys, "devices/system/node"))
        return frozenset(int(n[4:]) for n in names if n.startswith("node") and n[4:].isdigit())


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
        return _read(f"{self.path}/{attribute}")

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
            self._names = frozenset(_listdir(self.path))
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
        lines = _read_raw(f"{self.path}/uevent").splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def write(self, attribute: str, value: str) -> None:
        """Write an attribute, without creating it; for ``prepare_device`` and ``unprepare_device``.

        Raises ``PermissionError`` on a recorded machine.
        """
        if self.node.recorded:
            raise PermissionError(errno.EROFS, "a recorded machine is not written", attribute)
        descriptor = os.open(f"{self.path}/{attribute}", os.O_WRONLY | os.O_CLOEXEC)
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
        if not name or not (major.isdigit() and minor.isdigit()):
            return None
        subsystem = self.subsystem
        path = f"/dev/{name}"
        info = self.node.info(path)
        return DeviceNode(
            path=path,
            type=NodeType.BLOCK if subsystem == "block" else NodeType.CHAR,
            major=int(major),
            minor=int(minor),
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
        """Where it sits: the nearest NUMA node that the machine really has, and the PCIe root."""
        above = os.path.relpath(self.path, self.node.devices).split("/")
        return Topology(self._numa_node(), above[0] if above[0].startswith("pci") else None)

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


def _target(directory: str, name: str) -> str:
    """Return where a link of a bus or class leads: one step, into the tree of real directories."""
    try:
        return os.path.normpath(os.path.join(directory, os.readlink(f"{directory}/{name}")))
    except OSError:
        return f"{directory}/{name}"


def _visit(entries: Iterator[Entry], walk: Walk) -> Iterator[Entry]:
    for entry in entries:
        outermost = walk.current is None
        if outermost:
            walk.current = entry  # stays, if the driver raises here: then this entry is the bad one
        yield entry
        if outermost:
            walk.current = None


def _describe(
    entries: Iterator[Entry], describe: Callable[[Entry], Iterable[Listed]]
) -> Iterator[Listed]:
    for entry in entries:
        yield from described(entry, describe)


def described(entry: Entry, describe: Callable[[Entry], Iterable[Listed]]) -> list[Listed]:
    """Describe one entry; what it raises becomes an ``Unread``, what vanished meanwhile nothing."""
    try:
        listed = [from_entry(item, entry.key) for item in describe(entry)]
    except Exception as error:  # noqa: BLE001 - a hostile descriptor may raise anything
        return [Unread(entry.key, said(error))] if entry.exists() else []
    return listed if entry.exists() else []


def from_entry(item: Listed, key: str) -> Listed:
    """Say which entry a device was read from, unless the driver did."""
    return replace(item, entry=key) if isinstance(item, Device) and not item.entry else item


def said(error: BaseException) -> str:
    """Return an error as a few words, without the value that caused it (it may be hostile)."""
    if isinstance(error, OSError) and error.errno:
        where = f" ({os.path.basename(str(error.filename))})" if error.filename else ""
        return f"{errno.errorcode.get(error.errno, error.errno)}: {error.strerror}{where}"
    return type(error).__name__


def clean(raw: bytes) -> str:
    """Return bytes of the hardware as text: UTF-8, no control characters, no blanks at the ends."""
    return _CONTROL.sub(" ", raw.decode("utf-8", "replace")).strip()


def _read_raw(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _ABSENT:
            return ""
        raise
    try:
        raw = more = os.read(descriptor, _PAGE)
        while more and len(raw) < _LONGEST:  # procfs answers a page at a time, whatever is asked
            more = os.read(descriptor, _PAGE)
            raw += more
        return raw.decode("utf-8", "replace")
    finally:
        os.close(descriptor)


def _read(path: str) -> str:
    return _CONTROL.sub(" ", _read_raw(path)).strip()


def _listdir(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
