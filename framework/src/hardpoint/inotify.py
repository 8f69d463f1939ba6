"""Learn at once that something in a directory of the host has changed.

The kernel says so (inotify); where it refuses, for want of watches, the directory is looked at
twice a second. It may be missing, appear, be replaced or be mounted over meanwhile.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeAlias

import anyio
import anyio.to_thread

POLL = 0.5
"""Seconds between two looks where the kernel does not tell."""
_IDENTITY = 5.0
"""Seconds between two looks whether it is the same directory: of a mount over it nobody tells."""
_SPELL = 120
"""Polls after which the kernel is asked again whether it would tell."""

_MODIFY_ENDS, _ATTRIB = 0x8, 0x4  # include/uapi/linux/inotify.h
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _UNMOUNT, _IGNORED = 0x400, 0x800, 0x2000, 0x8000
_ONLYDIR = 0x1000000
_WANTED = (_MODIFY_ENDS | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE) | (
    _DELETE_SELF | _MOVE_SELF | _ONLYDIR
)
_GONE = _DELETE_SELF | _MOVE_SELF | _UNMOUNT | _IGNORED
_EVENT = struct.Struct("iIII")

_Identity: TypeAlias = "tuple[int, int] | None"


async def watch(directory: Path, changed: Callable[[], None]) -> None:
    """Call ``changed`` when something in a directory may be other than it was; until cancelled.

    Also once at first, and when the directory itself comes, goes, or is another one. Calls come in
    bursts and for nothing; they say "look", not what.
    """
    while True:
        try:
            with _Watch(directory) as watching:
                changed()
                await watching.until_gone(changed)
        except OSError:
            await _poll(directory, changed)


async def _poll(directory: Path, changed: Callable[[], None]) -> None:
    """Look again and again, for a minute, or until the directory appears."""
    before = await anyio.to_thread.run_sync(_signature, directory)
    changed()
    for _ in range(_SPELL):
        await anyio.sleep(POLL)
        now = await anyio.to_thread.run_sync(_signature, directory)
        if now == before:
            continue
        changed()
        if before is None:
            return
        before = now


def _signature(directory: Path) -> Any:
    """Return something that is another when a file is; None where there is no directory."""
    try:
        with os.scandir(directory) as entries:
            found = [(entry.name, _state(entry)) for entry in entries]
    except OSError:
        return None
    return _identity(directory), sorted(found)


def _state(entry: os.DirEntry[str]) -> tuple[int, ...]:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _identity(directory: Path) -> _Identity:
    try:
        status = os.stat(directory)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class _Watch:
    """One watch on one directory. Raises ``OSError`` where the kernel refuses it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor = -1
        self._watched: _Identity = None

    def __enter__(self) -> Self:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = _checked(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._watched = _identity(self._directory)  # before: one that is replaced now is noticed
        try:
            _checked(
                libc.inotify_add_watch(self._descriptor, os.fsencode(self._directory), _WANTED)
            )
        except OSError:
            os.close(self._descriptor)
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._descriptor)

    async def until_gone(self, changed: Callable[[], None]) -> None:
        """Tell of changes until there is another directory of that name, or none."""
        while True:
            told = False
            with anyio.move_on_after(_IDENTITY):
                await anyio.wait_readable(self._descriptor)
                told = True
            gone = told and self._drain() & _GONE
            if told:
                changed()
            now = await anyio.to_thread.run_sync(_identity, self._directory)
            if gone or now != self._watched:
                return

    def _drain(self) -> int:
        """Read what has been told; return the kinds of events there were."""
        kinds = 0
        while True:
            try:
                raw = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                return kinds
            at = 0
            while at < len(raw):
                _, mask, _, length = _EVENT.unpack_from(raw, at)
                kinds |= mask
                at += _EVENT.size + length


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno() or errno.ENOSYS
        raise OSError(number, os.strerror(number))
    return result
