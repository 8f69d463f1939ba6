"""What a system call that waits would change: a word for it, and a path."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache

from hardpoint.testing._seccomp import Held

_CURRENT = -100
_REMOVE_DIRECTORY = 0x200
_LONGEST = 4096

_OF_DESCRIPTOR = {
    "write": "write",
    "pwrite64": "write",
    "writev": "write",
    "pwritev": "write",
    "pwritev2": "write",
    "sendfile": "write",
    "copy_file_range": "write",
    "fsync": "sync",
    "fdatasync": "sync",
    "ftruncate": "truncate",
    "fallocate": "write",
    "fchmod": "chmod",
    "sendto": "write",
    "sendmsg": "write",
}
"""Calls on a descriptor: the first argument, but for copy_file_range, which writes to the third."""
_OF_PATH = {
    "open": ("open", None, 0),
    "creat": ("open", None, 0),
    "openat": ("open", 0, 1),
    "mkdir": ("mkdir", None, 0),
    "mkdirat": ("mkdir", 0, 1),
    "rmdir": ("rmdir", None, 0),
    "unlink": ("unlink", None, 0),
    "unlinkat": ("unlink", 0, 1),
    "rename": ("rename", None, 1),
    "renameat": ("rename", 2, 3),
    "renameat2": ("rename", 2, 3),
    "link": ("link", None, 1),
    "linkat": ("link", 2, 3),
    "symlink": ("link", None, 1),
    "symlinkat": ("link", 1, 2),
    "truncate": ("truncate", None, 0),
    "chmod": ("chmod", None, 0),
    "fchmodat": ("chmod", 0, 1),
}
"""Calls on a path: the word, where its directory's descriptor is, and where the path is."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a call is about to do. ``path`` is absolute; of a ``reply``, the socket's."""

    call: str
    path: str


def change_of(held: Held) -> Change | None:
    """Return what a call would change; None for pipes, other sockets, and a caller that is gone."""
    try:
        if held.name in _OF_DESCRIPTOR:
            number = held.arguments[2 if held.name == "copy_file_range" else 0]
            return _on_descriptor(held.thread, _OF_DESCRIPTOR[held.name], number)
        return _on_path(held)
    except (OSError, ValueError):
        return None


def _on_descriptor(thread: int, call: str, number: int) -> Change | None:
    target = os.readlink(f"/proc/{thread}/fd/{number & 0xFFFFFFFF}")
    if target.startswith("socket:["):
        path = _unix_path(target[8:-1])
        return Change("reply", path) if path else None
    if not target.startswith("/"):
        return None
    return Change(call, target.removesuffix(" (deleted)"))


def _on_path(held: Held) -> Change:
    call, directory, where = _OF_PATH[held.name]
    if held.name == "unlinkat" and held.arguments[2] & _REMOVE_DIRECTORY:
        call = "rmdir"
    if call == "open" and held.name != "creat" and held.arguments[where + 1] & os.O_DIRECTORY:
        call = "opendir"
    path = _text(held.thread, held.arguments[where])
    return Change(call, os.path.normpath(os.path.join(_base(held, directory), path)))


def _base(held: Held, directory: int | None) -> str:
    number = _CURRENT
    if directory is not None:
        number = held.arguments[directory] & 0xFFFFFFFF
        number -= (number >> 31) << 32
    place = "cwd" if number == _CURRENT else f"fd/{number}"
    return os.readlink(f"/proc/{held.thread}/{place}")


def _text(thread: int, address: int) -> str:
    with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        raw = b""
        while b"\0" not in raw and len(raw) < _LONGEST:  # never across a page that is not there
            raw += memory.read(_LONGEST - (address + len(raw)) % _LONGEST)
    return os.fsdecode(raw.partition(b"\0")[0])


@lru_cache(4096)
def _unix_path(inode: str) -> str:
    """Return where a unix socket was bound, as a connection that was accepted there is too."""
    with open("/proc/net/unix") as table:
        for line in table:
            fields = line.split()
            if len(fields) == 8 and fields[6] == inode:
                return fields[7]
    return ""
