"""The files of a fake machine, as the contract suite looks at them and breaks them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hardpoint.model import Device
from hardpoint.testing.sysfs import FakeMachine


def fingerprint(root: Path) -> dict[str, tuple[int, int]]:
    """Return when each file was last written, and its size: equal where nothing was written."""
    return {
        str(path): (path.lstat().st_mtime_ns, path.lstat().st_size)
        for path in sorted(root.rglob("*"))
    }


def remove(machine: FakeMachine, entry: str) -> Path | None:
    """Take a device off the machine: its directory, and the links that led to it."""
    if not entry or not (machine.sys / entry).exists():
        return None
    gone = (machine.sys / entry).resolve()
    shutil.rmtree(gone)
    for link in machine.sys.rglob("*"):
        if link.is_symlink() and not link.exists():
            link.unlink()
    return gone


def put_back(tree: Path, kept: Path) -> None:
    """Make a tree what its copy is: hardware after a boot has forgotten what it was set to."""
    shutil.rmtree(tree)
    shutil.copytree(kept, tree, symlinks=True)


def files(machine: FakeMachine, devices: Iterable[Device]) -> list[list[Path]]:
    """Return the attributes of the entries that devices were read from, each by itself."""
    entries = sorted({device.entry for device in devices if device.entry})
    found = [(machine.sys / entry).resolve() for entry in entries]
    return [[file] for at in found if at.is_dir() for file in sorted(at.iterdir()) if _plain(file)]


def _plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


@contextmanager
def spoilt(chosen: list[Path]) -> Iterator[None]:
    """Make attributes exist and be unreadable for a while, for root too: a directory is EISDIR."""
    kept = {file: file.read_bytes() for file in chosen}
    for file in chosen:
        file.unlink()
        file.mkdir()
    try:
        yield
    finally:
        for file, raw in kept.items():
            file.rmdir()
            file.write_bytes(raw)


_CHOSEN = re.compile(rb"(?:\S+ )*\[(\S+)\](?: \S+)*")
"""How an attribute shows a choice, as an LED's trigger does: ``none [heartbeat] timer``."""


def contents(root: Path) -> dict[str, bytes]:
    """Return every attribute's value and every link's target.

    What is written to a choice is the chosen word alone, so that alone is compared.
    """
    found = {}
    for directory, names, files in os.walk(root):
        for path in (os.path.join(directory, name) for name in (*names, *files)):
            if os.path.islink(path):
                found[path] = os.fsencode(os.readlink(path))
            elif os.path.isfile(path):
                raw = Path(path).read_bytes().strip()
                chosen = _CHOSEN.fullmatch(raw)
                found[path] = chosen[1] if chosen else raw
    return found
