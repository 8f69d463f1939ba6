"""One device of a fake machine: a directory with attributes, links and nodes, as in sysfs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from hardpoint.model import NodeType
from hardpoint.node import NodeInfo

if TYPE_CHECKING:
    from hardpoint.testing.sysfs import FakeMachine

Value = str | int | bytes | None
"""What an attribute may be set to: text gets a newline as in sysfs, None removes it."""


def put(path: Path, value: Value) -> None:
    """Write an attribute file, or remove it."""
    if value is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = value if isinstance(value, bytes) else f"{value}\n".encode(errors="surrogateescape")
    path.write_bytes(raw)


def link(path: Path, target: Path) -> None:
    """Make a relative link, as sysfs has them, in place of what is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        path.unlink()
    # the kernel climbs to a directory that the target is below, and names the target last
    path.symlink_to(os.path.join(os.path.relpath(target.parent, path.parent), target.name))


class FakeDevice:
    """A directory below ``sys/devices``. Calls that add to it return it, so that they chain."""

    def __init__(self, machine: FakeMachine, path: Path) -> None:
        self.machine, self.path = machine, path
        path.mkdir(parents=True, exist_ok=True)

    @property
    def name(self) -> str:
        """Its name on its bus: ``0000:00:02.0``, ``1-2:1.0``."""
        return self.path.name

    # -- attributes -------------------------------------------------------------------------------

    def set(self, **attributes: Value) -> Self:
        """Set attributes; ``klass`` writes ``class``, bytes are written raw, None removes."""
        for name, value in attributes.items():
            self.attribute("class" if name == "klass" else name, value)
        return self

    def attribute(self, name: str, value: Value) -> Self:
        """Set one attribute whose name is no keyword: ``power/control``."""
        put(self.path / name, value)
        return self

    def unreadable(self, *names: str) -> Self:
        """Make attributes exist and fail to be read, for root too (a directory: EISDIR)."""
        for name in names:
            put(self.path / name, None)
            (self.path / name).mkdir()
        return self

    def uevent(self, **variables: Value) -> Self:
        """Add variables to its uevent file."""
        path = self.path / "uevent"
        known = path.read_text(errors="surrogateescape").splitlines() if path.is_file() else []
        lines = dict(line.partition("=")[::2] for line in known)
        lines |= {key: str(value) for key, value in variables.items()}
        text = "".join(f"{key}={value}\n" for key, value in lines.items())
        put(path, text.encode(errors="surrogateescape"))
        return self

    # -- where it belongs -------------------------------------------------------------------------

    def on_bus(self, bus: str) -> Self:
        """List it in ``bus/<bus>/devices``."""
        link(self.path / "subsystem", self.machine.sys / "bus" / bus)
        link(self.machine.sys / "bus" / bus / "devices" / self.name, self.path)
        return self

    def in_class(self, word: str) -> Self:
        """List it in ``class/<word>``."""
        link(self.path / "subsystem", self.machine.sys / "class" / word)
        link(self.machine.sys / "class" / word / self.name, self.path)
        return self

    def bind(self, driver: str | None) -> Self:
        """Bind a kernel driver, in place of the one that is bound; None or ``""`` unbinds."""
        self.unbind()
        if driver:
            bus = os.path.basename(os.readlink(self.path / "subsystem"))
            home = self.machine.sys / "bus" / bus / "drivers" / driver
            link(self.path / "driver", home)
            link(home / self.name, self.path)
            self.uevent(DRIVER=driver)
        return self

    def unbind(self) -> Self:
        """Unbind its driver, if it has one."""
        at = self.path / "driver"
        if at.is_symlink():
            (at.resolve() / self.name).unlink(missing_ok=True)
            at.unlink()
        return self

    # -- what is below it -------------------------------------------------------------------------

    def child(
        self, name: str, /, *, bus: str = "", klass: str = "", driver: str = "", **attributes: Value
    ) -> FakeDevice:
        """Add a directory below it, on a bus or in a class, and return *that*."""
        device = FakeDevice(self.machine, self.path / name).set(**attributes)
        if bus:
            device.on_bus(bus)
        if klass:
            device.in_class(klass)
        return device.bind(driver) if driver else device

    def node(
        self,
        subsystem: str,
        name: str,
        major: int,
        minor: int,
        /,
        *,
        mode: int = 0o660,
        gid: int = 0,
        **attributes: Value,
    ) -> Self:
        """Add a node of /dev: ``node("tty", "ttyUSB0", 188, 0)`` is ``/dev/ttyUSB0``.

        ``name`` may have directories (``snd/pcmC0D0p``). The directory that stands for it lies in
        one named for its subsystem, as class devices do; ``block`` makes a block node.
        """
        base = self.path / subsystem / name.rpartition("/")[2]
        FakeDevice(self.machine, base).in_class(subsystem).set(**attributes).is_node(
            name, major, minor, mode=mode, gid=gid
        )
        link(base / "device", self.path)
        return self

    def is_node(
        self, name: str, major: int, minor: int, *, mode: int = 0o660, gid: int = 0
    ) -> Self:
        """Make it stand for a node of /dev itself, as a USB device does for its usbfs node."""
        subsystem = os.path.basename(os.readlink(self.path / "subsystem"))
        kind = NodeType.BLOCK if subsystem == "block" else NodeType.CHAR
        self.set(dev=f"{major}:{minor}").uevent(MAJOR=major, MINOR=minor, DEVNAME=name)
        index = "block" if kind is NodeType.BLOCK else "char"
        link(self.machine.sys / "dev" / index / f"{major}:{minor}", self.path)
        self.machine.dev_node(f"/dev/{name}", NodeInfo(kind, major, minor, mode, gid))
        return self

    def remove(self) -> None:
        """Unplug it: its directory, the links that lead into it, and its nodes."""
        self._forget_nodes()
        for base in ("bus", "class", "dev", "block"):
            for at in _links_below(self.machine.sys / base):
                if at.resolve().is_relative_to(self.path.resolve()):
                    at.unlink()
        shutil.rmtree(self.path)

    def _forget_nodes(self) -> None:
        for path in self.path.rglob("uevent"):
            for line in path.read_bytes().decode(errors="replace").splitlines():
                if line.startswith("DEVNAME="):
                    self.machine.dev_gone(f"/dev/{line.removeprefix('DEVNAME=')}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path.relative_to(self.machine.sys)})"


def _links_below(base: Path) -> list[Path]:
    found = []
    for directory, names, files in os.walk(base):
        found += [Path(directory, n) for n in (*names, *files) if Path(directory, n).is_symlink()]
    return found


def dev_table(nodes: Mapping[str, NodeInfo]) -> dict[str, dict[str, object]]:
    """Return nodes of /dev as ``dev.json`` states them."""
    words = {NodeType.CHAR: "char", NodeType.BLOCK: "block"}
    return {
        path: {
            "type": words[info.type],
            "major": info.major,
            "minor": info.minor,
            "mode": f"{info.mode:04o}",
            "uid": 0,
            "gid": info.gid,
        }
        for path, info in sorted(nodes.items())
    }
