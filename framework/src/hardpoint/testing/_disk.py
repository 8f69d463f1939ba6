"""What of a directory would be there after a power cut: what was flushed, and nothing else.

As strict as POSIX lets a file system be: a file is what it was when it was last flushed, empty if
it never was, and it is under the name that its directory had when *that* was last flushed. Real
file systems keep more, each something else.
"""

from __future__ import annotations

import os
import shutil
import stat
from itertools import count
from pathlib import Path

from hardpoint.testing._calls import Change

_ENDS = ("unlink", "rename", "rmdir")


class Disk:
    """Follows the changes below some directories, whose content is durable at first."""

    def __init__(self, *roots: Path) -> None:
        self._roots = roots
        self._durable = {root for root in roots if root.exists()}
        self._numbers = count()
        self._known: dict[tuple[int, int], int] = {}
        self._contents: dict[int, tuple[bytes, int]] = {}
        self._entries: dict[int, dict[str, tuple[int, bool]]] = {}
        for root in self._durable:
            self._flush_all(root)

    def before(self, change: Change) -> None:
        """Note what a change does to what is durable, before it happens."""
        path = Path(change.path)
        if change.call == "sync":
            self._durable |= {root for root in self._roots if root.parent == path and root.exists()}
            self._flush(path)
        elif change.call in _ENDS and path.exists() and path.lstat().st_nlink < 2 + path.is_dir():
            self._known.pop(_identity(path), None)  # its number may be given to another file

    def cut(self) -> None:
        """Leave only what is durable. Nothing may run that has the files open."""
        for root in self._roots:
            number = self._number(root) if root in self._durable else None
            shutil.rmtree(root, ignore_errors=True)
            if number is not None:
                self._restore(root, number)

    def _flush_all(self, path: Path) -> None:
        self._flush(path)
        if path.is_dir() and not path.is_symlink():
            for child in path.iterdir():
                self._flush_all(child)

    def _flush(self, path: Path) -> None:
        try:
            mode = path.lstat().st_mode
            number = self._number(path)
            if stat.S_ISDIR(mode):
                self._entries[number] = {
                    child.name: (self._number(child), child.is_dir())
                    for child in path.iterdir()
                    if child.is_file() or child.is_dir()
                }
            elif stat.S_ISREG(mode):
                self._contents[number] = path.read_bytes(), stat.S_IMODE(mode)
        except FileNotFoundError:
            return

    def _number(self, path: Path) -> int:
        identity = _identity(path)
        if identity not in self._known:
            self._known[identity] = next(self._numbers)
        return self._known[identity]

    def _restore(self, path: Path, number: int, *, folder: bool = True) -> None:
        if not folder:
            content, mode = self._contents.get(number, (b"", 0o600))
            path.write_bytes(content)
            path.chmod(mode)
            return
        path.mkdir(mode=0o700)
        for name, (child, is_folder) in self._entries.get(number, {}).items():
            self._restore(path / name, child, folder=is_folder)


def _identity(path: Path) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino
