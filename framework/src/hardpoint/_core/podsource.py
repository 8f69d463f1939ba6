"""The kubelet's pod-resources socket, as the agent reads it: each time over a new connection.

The path may lead to another kubelet's socket at any moment, and what an old one answered says
nothing of what the new one knows.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from hardpoint.errors import CallFailed
from hardpoint.kubelet.pods import PodUse


@dataclass(frozen=True, slots=True)
class Kubelet:
    """Which kubelet serves: its socket, which a later one may make under the same inode number."""

    device: int
    inode: int
    changed: int


class PodSource:
    """Reads which pods the kubelet lists. ``timeout_s`` is in seconds, for each call."""

    def __init__(self, kubelet_root: Path, timeout_s: float = 5.0) -> None:
        self._root, self._timeout = kubelet_root, timeout_s
        self.path = kubelet_root / "pod-resources" / "kubelet.sock"

    def kubelet(self) -> Kubelet | None:
        """Return whose socket is there; None for none."""
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        if not stat.S_ISSOCK(found.st_mode):
            return None
        return Kubelet(found.st_dev, found.st_ino, found.st_ctime_ns)

    async def list(self) -> tuple[PodUse, ...]:
        """Return every pod. Raises ``CallFailed``, or ``SocketError`` for a path that is too long.

        Raises ``CallFailed`` too where the kubelet was another one before than after.
        """
        before = self._there()
        from hardpoint.kubelet.pod_resources import PodResources

        async with PodResources(self._root, timeout_s=self._timeout) as client:
            pods = await client.list()
        if self.kubelet() != before:
            raise self._failed("the kubelet was started anew meanwhile")
        return pods

    async def get(self, namespace: str, name: str) -> PodUse | None:
        """Return one pod, None if the kubelet has none of that name. Raises as ``list`` does."""
        self._there()
        from hardpoint.kubelet.pod_resources import PodResources

        async with PodResources(self._root, timeout_s=self._timeout) as client:
            return await client.get(namespace, name)

    def _there(self) -> Kubelet:
        found = self.kubelet()
        if found is None:
            raise self._failed("there is no such socket")
        return found

    def _failed(self, why: str) -> CallFailed:
        return CallFailed(str(self.path), "PodResourcesLister.List", "UNAVAILABLE", why)
