"""The machine's own kernel: what it says in sysfs, and what is plugged, bound and removed.

Read without Hardpoint's code, so that it is a witness.
"""

from __future__ import annotations

import importlib
import os
import select
import stat
import sys
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Self

import anyio
import anyio.to_thread

SYS = Path("/sys")


def _lab() -> Any:
    at = os.environ["HWLAB_LIB"]
    if at not in sys.path:
        sys.path.insert(0, at)
    return importlib.import_module("hwlab_ctl")


async def ctl(*words: str) -> Any:
    """Do what ``hwlab-ctl`` does; back once the kernel and udev have told of it."""
    return await anyio.to_thread.run_sync(partial(_lab().perform, list(words)))


async def plugged() -> dict[str, bool]:
    """Return what can be plugged in here, and whether it is."""
    found = await anyio.to_thread.run_sync(partial(_lab().call, op="list"))
    return {one["name"]: one["state"] == "plugged" for one in found["extras"]}


async def run(*words: str) -> str:
    """Run a program; return what it printed. Raises ``CalledProcessError``."""
    return (await anyio.run_process(words)).stdout.decode()


async def write(path: str | Path, text: str) -> None:
    """Write an attribute of sysfs, which may take as long as a driver likes."""
    await anyio.to_thread.run_sync(partial(Path(path).write_text, text))


class Events:
    """Counts the kernel's events while a block runs."""

    def __init__(self) -> None:
        self.count = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def _listen(self) -> None:
        while not self._over.is_set():
            if not select.select([self._socket], [], [], 0.1)[0]:
                continue
            source, _ = _lab().parse_event(self._socket.recv(1 << 16))
            self.count += source == "kernel"

    def __enter__(self) -> Self:
        self._socket = _lab().open_events()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()


# -- where things are -----------------------------------------------------------------------------


def device(bus: str, address: str) -> str:
    """Return the real directory of a device on a bus."""
    return os.path.realpath(SYS / "bus" / bus / "devices" / address)


def usb(address: str) -> str:
    return device("usb", address)


def pci(address: str) -> str:
    return device("pci", address)


def exists(bus: str, address: str) -> bool:
    return (SYS / "bus" / bus / "devices" / address).exists()


def ports() -> list[str]:
    """Return the address of every USB device that is plugged in: ``1-4.1.2``."""
    names = sorted(path.name for path in (SYS / "bus/usb/devices").iterdir())
    return [name for name in names if "-" in name and ":" not in name]


def serial_ports(number: str) -> list[str]:
    """Return the addresses of the USB devices that have a serial number."""
    return [port for port in ports() if _attribute(usb(port), "serial") == number]


def serial_port(number: str) -> str:
    """Return the address of the one USB device that has a serial number."""
    (port,) = serial_ports(number)
    return port


def usb_ports(vendor: str, product: str) -> list[str]:
    """Return the addresses of the USB devices of a model."""
    wanted = (vendor, product)
    return [
        port
        for port in ports()
        if (_attribute(usb(port), "idVendor"), _attribute(usb(port), "idProduct")) == wanted
    ]


def interfaces(port: str) -> list[str]:
    """Return the interfaces of a USB device: ``1-4.1.2:1.0``."""
    names = sorted(path.name for path in (SYS / "bus/usb/devices").iterdir())
    return [name for name in names if name.startswith(f"{port}:")]


def _attribute(directory: str, name: str) -> str:
    try:
        return Path(directory, name).read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def driver(bus: str, address: str) -> str:
    link = SYS / "bus" / bus / "devices" / address / "driver"
    return link.resolve().name if link.is_symlink() else ""


def owner(kind: str, numbers: tuple[int, int]) -> str:
    """Return the directory that a node's numbers stand for now; ``""`` where nothing has them."""
    at = SYS / "dev" / kind
    try:
        return os.path.normpath(at / os.readlink(at / f"{numbers[0]}:{numbers[1]}"))
    except OSError:
        return ""


def numbers(path: str) -> tuple[int, int]:
    found = os.stat(path).st_rdev
    return os.major(found), os.minor(found)


def group(path: str) -> int:
    return os.stat(path).st_gid


def nodes_below(directory: str, *subsystems: str) -> set[str]:
    """Return the nodes of /dev of everything below a device, of some subsystems or of all."""
    found = set()
    for at, _, files in os.walk(directory):
        if "dev" not in files or "uevent" not in files:
            continue
        facts = _uevent(at)
        subsystem = os.path.basename(os.path.realpath(f"{at}/subsystem"))
        if "DEVNAME" in facts and (not subsystems or subsystem in subsystems):
            found.add(f"/dev/{facts['DEVNAME']}")
    return found


def _uevent(at: str) -> dict[str, str]:
    try:
        lines = Path(at, "uevent").read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    return dict(line.split("=", 1) for line in lines if "=" in line)


def disks_of_the_machine() -> set[str]:
    """Return the disks that are mounted or swapped to, as their names in /sys/block."""
    mounted = {line.split()[2] for line in Path("/proc/1/mountinfo").read_text().splitlines()}
    swapped = {
        ":".join(map(str, numbers(line.split()[0])))
        for line in Path("/proc/swaps").read_text().splitlines()[1:]
        if stat.S_ISBLK(os.stat(line.split()[0]).st_mode)
    }
    return {name for one in mounted | swapped for name in _disk_of(one)}


def _disk_of(number: str) -> Iterable[str]:
    path = os.path.realpath(SYS / "dev/block" / number)
    below = path.partition("/block/")[2]
    return [below.split("/")[0]] if below else []


def resident(pid: int) -> int:
    """Return the memory of a process in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def disk_below(directory: str) -> str:
    """Return the disk that hangs from a device: ``sdc``."""
    found = [name for name in os.listdir("/sys/block") if _hangs(name, directory)]
    (name,) = found
    return name


def _hangs(disk: str, directory: str) -> bool:
    return os.path.realpath(f"/sys/block/{disk}").startswith(f"{directory}/")
