"""Unix sockets as files: how long a path may be, whose a socket is, whether anybody answers."""

from __future__ import annotations

import errno
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hardpoint.errors import SocketPathTooLong

LONGEST_PATH = 107
"""Bytes: ``sun_path`` holds 108, and gRPC wants its closing NUL."""

_HIDDEN = re.compile(r"\.hp[0-9a-f]{4}")
_LEFT_BEHIND = 60.0
"""Seconds after which a hidden socket that refuses connections is nobody's unfinished start."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which file a path led to: another process may have put its own there since."""

    device: int
    inode: int


def fits(path: str | Path) -> bool:
    """Say whether a path is short enough for a unix socket."""
    return len(os.fsencode(path)) <= LONGEST_PATH


def check_path(path: str | Path) -> None:
    """Raise ``SocketPathTooLong`` for a path that no socket can have."""
    if not fits(path):
        raise SocketPathTooLong(str(path), len(os.fsencode(path)), LONGEST_PATH)


def identify(path: str | Path) -> Identity | None:
    """Return which socket is at a path; None for none, or for a file that is no socket."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return Identity(found.st_dev, found.st_ino) if stat.S_ISSOCK(found.st_mode) else None


def is_live(path: str | Path) -> bool:
    """Say whether somebody listens at a socket, also one that is too busy to accept."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        code = _connect(probe, path)
    return code not in (errno.ECONNREFUSED, errno.ENOENT, errno.ENOTDIR, errno.ENOTSOCK)


def _connect(probe: socket.socket, path: str | Path) -> int:
    try:
        return probe.connect_ex(os.fspath(path))
    except OSError:  # a path that is too long: nobody can listen there
        return errno.ENOENT


def remove_own(path: str | Path, own: Identity) -> bool:
    """Unlink a socket only if it is still the one we made: gRPC itself would unlink any."""
    if identify(path) != own:
        return False
    Path(path).unlink(missing_ok=True)
    return True


def remove_stale(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Unlink sockets that refuse connections: their process was killed. Returns which."""
    removed = []
    for path in paths:
        found = identify(path)
        if found is not None and not is_live(path) and remove_own(path, found):
            removed.append(path)
    return tuple(removed)


def hidden_name(directory: Path) -> Path:
    """Return an unused short name that the kubelet's watcher ignores: it begins with a dot."""
    while True:
        path = directory / f".hp{secrets.token_hex(2)}"
        if not os.path.lexists(path):
            return path


def remove_left_behind(directory: Path) -> tuple[Path, ...]:
    """Unlink hidden sockets of processes that were killed between binding and renaming."""
    before = time.time() - _LEFT_BEHIND
    return remove_stale(
        path
        for path in sorted(directory.glob(".hp*"))
        if _HIDDEN.fullmatch(path.name) and path.lstat().st_mtime < before
    )
