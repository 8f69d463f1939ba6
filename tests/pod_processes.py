"""Real processes that stand for those of pods: only the file that names their cgroup is made up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hardpoint.model import DeviceNode

UID = "0a1b2c3d-1111-2222-3333-444455556666"
SYSTEMD = (
    "0::/kubepods.slice/kubepods-burstable.slice/"
    f"kubepods-burstable-pod{UID.replace('-', '_')}.slice/cri-containerd-77aa.scope"
)

_OPENS = "keep = os.open(path, os.O_RDWR | os.O_NOCTTY)"
_MAPS = """
libc, fd = ctypes.CDLL(None), os.open(path, os.O_RDWR)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t] * 5]
size = mmap.PAGESIZE
assert libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE, fd, 0) != ctypes.c_void_p(-1).value
os.close(fd)
"""  # not by mmap.mmap, which keeps a descriptor of its own
_THREAD = """
def run():
    os.unshare(os.CLONE_FILES) if hasattr(os, "unshare") else libc.unshare(0x400)
    keep.append(os.open(path, os.O_RDWR | os.O_NOCTTY))
    ready.set()
    threading.Event().wait()
libc, keep, ready = ctypes.CDLL(None), [], threading.Event()
threading.Thread(target=run, daemon=True).start()
ready.wait()
"""
_LEFT_BEHIND = """
def run():
    keep.append(os.open(path, os.O_RDWR | os.O_NOCTTY))
    ready.set()
    threading.Event().wait()
libc, keep, ready = ctypes.CDLL(None), [], threading.Event()
threading.Thread(target=run).start()
ready.wait()
print("ready", flush=True)
libc.syscall({exit}, 0)
"""
_WAYS = {
    "nothing": "",
    "opens": _OPENS,
    "maps": _MAPS,
    "a thread of its own table opens": _THREAD,
}
_MODULES = "import ctypes, mmap, os, sys, threading\npath = sys.argv[1]\n"
_EXIT = {"x86_64": 60, "aarch64": 93}


@dataclass(frozen=True, slots=True)
class Terminal:
    """A character device that nobody else has open: one end of a pseudo-terminal."""

    path: str
    number: int

    @property
    def node(self) -> DeviceNode:
        """It, as a driver states it."""
        return DeviceNode(
            path="/dev/acme0", major=os.major(self.number), minor=os.minor(self.number)
        )


@contextmanager
def terminal() -> Iterator[Terminal]:
    """Make a device; it is gone afterwards."""
    master, slave = os.openpty()
    try:
        yield Terminal(os.ttyname(slave), os.fstat(slave).st_rdev)
    finally:
        os.close(master)
        os.close(slave)


@contextmanager
def process(way: str, path: str) -> Iterator[int]:
    """Start a process that has a device in one of the ways above, and end it afterwards."""
    if way == "the first thread ends":
        code = _LEFT_BEHIND.format(exit=_EXIT[os.uname().machine])
    else:
        code = _WAYS[way] + '\nprint("ready", flush=True)\nsys.stdin.read()'
    started = subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", _MODULES + code, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert started.stdout is not None
    try:
        assert started.stdout.readline() == b"ready\n"
        yield started.pid
    finally:
        started.kill()
        started.communicate()


class Procfs:
    """A procfs of chosen processes: what is in their directories is the kernel's own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.comm("2", "kthreadd")

    def comm(self, pid: str, name: str) -> Path:
        """Show a process that only has a name."""
        directory = self.root / pid
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "comm").write_text(f"{name}\n")
        return directory

    def show(self, pid: int, cgroup: str = SYSTEMD, comm: str = "player") -> Path:
        """Show a real process in a cgroup."""
        directory = self.comm(str(pid), comm)
        (directory / "cgroup").write_text(f"{cgroup}\n")
        for name in ("fd", "task", "maps", "map_files", "root", "stat"):
            (directory / name).symlink_to(f"/proc/{pid}/{name}")
        return directory
