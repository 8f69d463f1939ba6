"""The kubelet's pod-resources socket, read each time over a new connection.

The path may lead to another kubelet's socket at any moment, and what an old one answered says
nothing of what the new one knows.

Pod-resources lists no ordinary init container (``IsRestartableInitContainer`` in the kubelet's
``podresources/server_v1.go``), however long it runs. The device manager's checkpoint has them all.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.to_thread

from hardpoint.errors import CallFailed
from hardpoint.kubelet.pods import HeldResource, PodUse

CHECKPOINT = "kubelet_internal_checkpoint"
"""In the device plugin directory; written at each allocation and at each list of a plugin's."""
_LONGEST = 64 << 20
"""Bytes: it holds every answer to ``Allocate`` of every container on the node."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the kubelet's device manager has written down. ``written`` differs with each time."""

    ids: frozenset[tuple[str, str]] = frozenset()
    """Resource and id of all that some container has, or had when it was written."""
    written: tuple[int, int] = (0, 0)
    pods: frozenset[tuple[str, str, str]] = frozenset()
    """Resource, id, and the UID of the pod that has it, empty where it is not said; a static pod's
    is the kubelet's own."""
    registered: frozenset[tuple[str, str]] = frozenset()
    """Resource and id of every healthy device of a plugin's; it outlasts a reboot."""


@dataclass(frozen=True, slots=True)
class Kubelet:
    """Which kubelet serves: its socket, which a later one may make under the same inode number."""

    device: int
    inode: int
    changed: int


class PodSource:
    """Reads which pods the kubelet lists. ``timeout_s`` is in seconds, for each call."""

    def __init__(
        self, kubelet_root: Path, device_plugins: Path | None = None, timeout_s: float = 5.0
    ) -> None:
        self._root, self._timeout = kubelet_root, timeout_s
        self._checkpoint = (device_plugins or kubelet_root / "device-plugins") / CHECKPOINT
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

    async def allocatable(self) -> tuple[HeldResource, ...]:
        """Return what device plugins have that may be given out. Raises as ``list`` does."""
        before = self._there()
        from hardpoint.kubelet.pod_resources import PodResources

        async with PodResources(self._root, timeout_s=self._timeout) as client:
            found = await client.allocatable()
        if self.kubelet() != before:
            raise self._failed("the kubelet was started anew meanwhile")
        return found

    async def get(self, namespace: str, name: str) -> PodUse | None:
        """Return one pod, None if the kubelet has none of that name. Raises as ``list`` does."""
        self._there()
        from hardpoint.kubelet.pod_resources import PodResources

        async with PodResources(self._root, timeout_s=self._timeout) as client:
            return await client.get(namespace, name)

    def written_at(self) -> tuple[int, int]:
        """Return what tells one checkpoint from the next, as ``Checkpoint.written`` does."""
        try:
            found = os.stat(self._checkpoint)
        except OSError:
            return 0, 0
        return found.st_ino, found.st_mtime_ns

    async def checkpoint(self) -> Checkpoint:
        """Return what the device manager has written down; nothing where there is no such file.

        Raises ``CallFailed`` for a file that cannot be read, or that says something else.
        """
        return await anyio.to_thread.run_sync(_read, self._checkpoint)

    def _there(self) -> Kubelet:
        found = self.kubelet()
        if found is None:
            raise self._failed("there is no such socket")
        return found

    def _failed(self, why: str) -> CallFailed:
        return CallFailed(str(self.path), "PodResourcesLister.List", "UNAVAILABLE", why)


def _read(path: Path) -> Checkpoint:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = json.loads(file.read(_LONGEST))["Data"]
        registered = (data.get("RegisteredDevices") or {}).items()
        had = frozenset(_ids(data["PodDeviceEntries"]))
        return Checkpoint(
            frozenset((resource, id_) for resource, id_, _ in had),
            (status.st_ino, status.st_mtime_ns),
            had,
            frozenset((str(name), str(id_)) for name, ids in registered for id_ in ids or ()),
        )
    except FileNotFoundError:
        return Checkpoint()
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CallFailed(str(path), "reading", "UNAVAILABLE", type(error).__name__) from error


def _ids(entries: Iterable[Any] | None) -> Iterator[tuple[str, str, str]]:
    """Yield resource, id and pod of each; ids stand below their NUMA node, or alone (1.19)."""
    for entry in entries or ():
        found = entry["DeviceIDs"] or ()
        lists = found.values() if isinstance(found, dict) else (found,)
        for ids in lists:
            for id_ in ids or ():
                yield str(entry["ResourceName"]), str(id_), str(entry.get("PodUID") or "")
