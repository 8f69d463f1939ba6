"""The node that a plugin runs on: where its sysfs, devfs and procfs are, and how to read them.

Everything a driver knows of the machine comes through a ``Node``, so that a recorded machine and a
fake one are read by the same code as the real one. An ``Entry`` is one directory of sysfs.

A read answers in one of three ways: the text; ``""`` where the attribute is absent (the kernel
leaves out what a device lacks); ``OSError`` where it exists and cannot be read. ``Node.each`` turns
the last into a lost look at that one entry, never into a lost device.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import overload

from hardpoint.entry import PRUNED, Entry
from hardpoint.model import Device, Listed, NodeType, Unread
from hardpoint.reading import clean, decimal, listdir, read_raw, said

__all__ = [
    "PRUNED",
    "Entry",
    "Node",
    "NodeInfo",
    "Walk",
    "clean",
    "described",
    "from_entry",
    "said",
    "walking",
]

_INDEX = re.compile(r"(bus/[^/]+/(?:devices|drivers)|class/[^/]+|dev/char|dev/block)/([^/]+)")
"""Where sysfs has directories of links into its tree of devices, each one step away from it."""


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

    ``sys``, ``dev``, ``proc`` and ``run`` are roots to look below; ``name`` is the Kubernetes node,
    ``kubelet`` and ``device_plugins`` are its kubelet's directories, which need not exist.
    """

    def __init__(
        self,
        *,
        name: str = "",
        sys: str | Path = "/sys",
        dev: str | Path = "/dev",
        proc: str | Path = "/proc",
        run: str | Path = "/run",
        kubelet: str | Path = "/var/lib/kubelet",
        device_plugins: str | Path = "/var/lib/kubelet/device-plugins",
        recorded: bool = False,
    ) -> None:
        self.name = name or socket.gethostname().strip().lower()  # as the kubelet names its node
        self.sys, self.dev, self.proc, self.run = Path(sys), Path(dev), Path(proc), Path(run)
        self.kubelet, self.device_plugins = Path(kubelet), Path(device_plugins)
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
        return read_raw(os.path.join(self.proc, path), by_pages=True)

    def run_text(self, path: str) -> str:
        """Read a file below /run (``udev/data/c188:0``), lines and all; ``""`` if it is absent."""
        return read_raw(os.path.join(self.run, path))

    @property
    def boot_id(self) -> str:
        """A UUID that changes at every boot (Documentation/admin-guide/sysctl/kernel.rst)."""
        return self.proc_text("sys/kernel/random/boot_id").strip() or "unknown"

    def numa_nodes(self) -> frozenset[int]:
        """The NUMA nodes that the machine has; empty where sysfs does not say.

        Every device asks for it, and none must be lost for it.
        """
        try:
            names = listdir(os.path.join(self.sys, "devices/system/node"))
        except OSError:
            return frozenset()
        found = (decimal(name[4:]) for name in names if name.startswith("node"))
        return frozenset(number for number in found if number is not None)


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
