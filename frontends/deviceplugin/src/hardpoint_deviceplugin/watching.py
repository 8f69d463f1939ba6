"""The kubelet's socket and our own, looked at several times a second.

A kubelet that starts removes every socket in its directory and makes its own anew; that is how a
plugin learns of it. The new socket may have the old one's inode number, so its time of change is
looked at too (kubevirt/kubevirt#17122: a watch on the wrong directory never saw it). A look costs
microseconds, needs no notice of the kernel's, and a directory that was replaced, unmounted or is
not there yet cannot escape it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import anyio

from hardpoint.kubelet.server import SocketServer
from hardpoint_deviceplugin.names import KUBELET

LOOK_EVERY = 0.2
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Which socket a path led to."""

    device: int
    inode: int
    changed: int
    """Nanoseconds: ``st_ctime``."""


class Directory:
    """The kubelet's device plugin directory. ``run`` looks at it until that is cancelled."""

    def __init__(self, path: Path, look_every: float = LOOK_EVERY) -> None:
        self.path = path
        self.kubelet: Seen | None = None
        """The kubelet's socket as it was last seen."""
        self.is_there = False
        self._look_every = look_every
        self._guarded: dict[SocketServer, tuple[Callable[[], None], bool]] = {}
        """Whom to wake, and whether the server's socket was in its place when last looked at."""
        self.look()

    @property
    def kubelet_socket(self) -> Path:
        """Where the kubelet takes registrations."""
        return self.path / KUBELET

    def guard(self, server: SocketServer, wake: Callable[[], None]) -> None:
        """Call ``wake`` whenever the kubelet's socket is another, or this server's is lost.

        Said again once the server serves: a socket may be lost before the next look.
        """
        self._guarded[server] = (wake, server.is_ours())

    def forget(self, server: SocketServer) -> None:
        """Do not, any more."""
        self._guarded.pop(server, None)

    async def run(self) -> None:
        """Look for ever."""
        last: tuple[Seen | None, bool] | None = None
        while True:
            self.look()
            last, changed = (self.kubelet, self.is_there), last != (self.kubelet, self.is_there)
            for server, (wake, was_ours) in list(self._guarded.items()):
                is_ours = server.is_ours()
                self._guarded[server] = (wake, is_ours)
                if changed or was_ours > is_ours:
                    wake()
            await anyio.sleep(self._look_every)

    def look(self) -> None:
        """Look now: who is about to act must not act on what was so a moment ago."""
        self.kubelet = _seen(self.kubelet_socket)
        self.is_there = self.kubelet is not None or os.path.isdir(self.path)


def _seen(path: Path) -> Seen | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISSOCK(found.st_mode):
        return None
    return Seen(found.st_dev, found.st_ino, found.st_ctime_ns)
