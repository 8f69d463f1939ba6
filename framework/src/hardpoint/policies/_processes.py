"""Which processes of pods have a device open, read from procfs alone.

A container's file descriptors, those of its threads that have a table of their own, and what it has
mapped are looked at: a mapping stays when its descriptor is closed. Devices are known by number,
whatever their node is called in a container and whether it is still there.

What cannot be seen: a descriptor that is in flight in a unix socket's queue, memory of a device
that was exported as a dma-buf, and what a thread with a table of its own has under the very numbers
that the first thread's table has: to look at all of every thread takes three times as long.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hardpoint.model import DeviceNode, NodeType
from hardpoint.node import Node
from hardpoint.reading import said

_ROUNDS = 3
"""Looks at a list of processes: who forks while it is read has children that it lacks."""

_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_POD = re.compile(rf"(?:^|[/-])pod({_UID})(?:\.slice)?(?=/|$)", re.MULTILINE)
"""A pod's cgroup, by the systemd driver (``kubepods-burstable-pod1234_….slice``) or by cgroupfs
(``kubepods/burstable/pod1234-…``); a static pod's UID is a hash. Seen from a cgroup namespace of
one's own the path begins at the nearest directory above both, which may be below ``kubepods``
(cgroup_namespaces(7))."""
_KUBEPODS = "kubepods"

_RUNTIMES = frozenset(
    ("kubelet", "containerd", "crio", "dockerd", "k3s-server", "k3s-agent", "k0s", "kubelite")
)
"""Who makes the pods' processes. Whoever sees one of them sees all that it has made, since PID
namespaces are nested (pid_namespaces(7))."""

_DELETED = " (deleted)"
"""What procfs puts behind the path of a file that has none any more."""
_GONE = (FileNotFoundError, ProcessLookupError)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The nodes that are looked for; ``paths`` are those whose numbers nobody knows any more."""

    numbers: frozenset[tuple[int, int]]
    """File type and device number, as ``stat`` says them."""
    paths: frozenset[str] = frozenset()

    @classmethod
    def of(cls, nodes: Iterable[DeviceNode], node: Node) -> Wanted:
        """Return what to look for; numbers that a device does not state are the host's."""
        numbers, paths = set[tuple[int, int]](), set[str]()
        for one in nodes:
            found = set(_numbers(one, node))
            numbers |= found
            if not found:
                paths |= {one.path, one.source}
        return cls(frozenset(numbers), frozenset(paths))

    def has(self, status: os.stat_result) -> bool:
        """Say whether a file is one of them."""
        return (stat.S_IFMT(status.st_mode), status.st_rdev) in self.numbers


def _numbers(one: DeviceNode, node: Node) -> Iterator[tuple[int, int]]:
    if one.major is not None and one.minor is not None:
        yield _format(one.type), os.makedev(one.major, one.minor)
        return
    info = node.info(one.source)
    if info is not None:
        yield _format(info.type), os.makedev(info.major, info.minor)


def _format(type_: NodeType) -> int:
    return stat.S_IFCHR if type_ is NodeType.CHAR else stat.S_IFBLK


@dataclass(frozen=True, slots=True)
class Found:
    """A process of a pod that has a device open, or of which ``why`` says that nobody can tell."""

    pid: int
    pod: str
    """Its UID; empty where the cgroup does not say it."""
    why: str = ""


@dataclass(slots=True)
class Look:
    """One look at all processes."""

    wanted: Wanted
    own: str
    """The agent's own cgroup: its drivers may have devices open."""
    found: list[Found] = field(default_factory=list)
    mapped: dict[bytes, bool] = field(default_factory=dict)
    """Whether a mapped file is a wanted device: a library is mapped by every process."""


class Processes:
    """The processes that one procfs shows."""

    def __init__(self, proc: Path) -> None:
        self._proc = str(proc)

    def sees_pods(self) -> bool:
        """Say whether this procfs shows the processes of all pods.

        It does where it shows the kernel's own threads, or whoever makes containers.
        """
        if self._text("2/comm") == "kthreadd":
            return True
        pids = (name for name, _ in self._listed())
        return any(self._text(f"{pid}/comm") in _RUNTIMES and self._is_outside(pid) for pid in pids)

    def _is_outside(self, pid: str) -> bool:
        """Say whether a process is in no pod; what is in one may call itself anything."""
        cgroup = self._text(f"{pid}/cgroup")
        return bool(cgroup) and pod_of(cgroup) is None and pid != self._text_of_link("self")

    def look(self, wanted: Wanted) -> tuple[Found, ...]:
        """Look at every process of every pod. Raises ``OSError`` where procfs cannot be listed."""
        look, seen = Look(wanted, self._text("self/cgroup")), set[tuple[str, int]]()
        for _ in range(_ROUNDS):
            fresh = [one for one in self._listed() if one not in seen]
            seen.update(fresh)
            for name, _inode in fresh:
                self._examine(name, look)
        return tuple(look.found)

    def _listed(self) -> Iterator[tuple[str, int]]:
        """Yield each process's number and its directory's: a number that is used again has another.

        Procfs makes the inode with the process (fs/proc/base.c, ``proc_pid_make_inode``).
        """
        with os.scandir(self._proc) as entries:
            for entry in entries:
                if entry.name.isdigit():
                    yield entry.name, entry.inode()

    # -- one process ------------------------------------------------------------------------------

    def _examine(self, pid: str, look: Look) -> None:
        pod = ""
        try:
            cgroup = _read(f"{self._proc}/{pid}/cgroup").decode("utf-8", "replace").strip()
            known = pod_of(cgroup)
            if known is None or cgroup == look.own:
                return
            pod = known
            if self._uses(f"{self._proc}/{pid}", pid, look):
                look.found.append(Found(int(pid), pod))
        except _GONE:
            pass  # it has ended
        except OSError as error:
            if not self._is_over(pid):
                look.found.append(Found(int(pid), pod, said(error)))

    def _uses(self, directory: str, pid: str, look: Look) -> bool:
        """Say whether a process has a device open or mapped.

        A thread that has a table of its own (``clone`` without CLONE_FILES) is told by its numbers
        being others than the first one's, which may have ended before the process.
        """
        first = os.listdir(f"{directory}/fd")
        if _has_open(f"{directory}/fd", first, look.wanted):
            return True
        mapped = False
        for task in os.listdir(f"{directory}/task"):
            own = f"{directory}/task/{task}"
            try:
                names = first if task == pid else os.listdir(f"{own}/fd")
                if names != first and _has_open(f"{own}/fd", names, look.wanted):
                    return True
                if not mapped:
                    maps = _read(f"{own}/maps")
                    if _has_mapped(directory, own, maps, look):
                        return True
                    mapped = bool(maps)
            except _GONE:
                pass  # the thread has ended
        return False

    def _is_over(self, pid: str) -> bool:
        """Say whether a process has ended: a zombie may not be looked into without privileges."""
        try:
            state = _read(f"{self._proc}/{pid}/stat").rpartition(b")")[2].split()[:1]
            threads = os.listdir(f"{self._proc}/{pid}/task")
        except OSError as error:
            return isinstance(error, _GONE)
        return state in ([b"Z"], [b"X"]) and len(threads) == 1

    def _text(self, path: str) -> str:
        """Return a file's text; nothing where it cannot be read."""
        try:
            return _read(f"{self._proc}/{path}").decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def _text_of_link(self, path: str) -> str:
        try:
            return os.readlink(f"{self._proc}/{path}")
        except OSError:
            return ""


def pod_of(cgroup: str) -> str | None:
    """Return the UID of the pod that a cgroup is of; None for one that is of no pod."""
    found = _POD.search(cgroup)
    if found is not None:
        return found[1].replace("_", "-")
    return "" if _KUBEPODS in cgroup else None


def _has_open(directory: str, names: Iterable[str], wanted: Wanted) -> bool:
    for name in names:
        path = f"{directory}/{name}"
        try:
            if wanted.has(os.stat(path)) or (wanted.paths and _is_at(path, wanted.paths)):
                return True
        except FileNotFoundError:
            pass  # it was closed meanwhile
    return False


def _is_at(path: str, paths: frozenset[str]) -> bool:
    return os.readlink(path).removesuffix(_DELETED) in paths


def _has_mapped(directory: str, task: str, maps: bytes, look: Look) -> bool:
    """Say whether a process has a device mapped; ``maps`` is as in proc_pid_maps(5)."""
    for line in maps.splitlines():
        file = line.split(b" ", 3)[3]  # its device, inode and path, whatever is mapped of it
        known = look.mapped.get(file)
        if known is None:
            known = look.mapped[file] = _is_device(directory, task, line, look.wanted)
        if known:
            return True
    return False


def _is_device(directory: str, task: str, line: bytes, wanted: Wanted) -> bool:
    fields = line.split(None, 5)
    if len(fields) < 6 or not fields[5].startswith(b"/"):
        return False
    path = os.fsdecode(fields[5])
    if path.removesuffix(_DELETED) in wanted.paths:
        return True
    begin, _, end = fields[0].partition(b"-")
    try:
        return wanted.has(os.stat(f"{directory}/map_files/{int(begin, 16):x}-{int(end, 16):x}"))
    except OSError:  # it wants CAP_CHECKPOINT_RESTORE, and goes with the first thread
        return _is_device_at(f"{task}/root", path, fields[3], wanted)


def _is_device_at(root: str, path: str, filesystem: bytes, wanted: Wanted) -> bool:
    """Say what is mapped by its path. Raises ``OSError`` where it has none any more in ``/dev``.

    Memory that is shared by name is on filesystems of its own below it.
    """
    try:
        if path.endswith(_DELETED):
            dev = os.stat(f"{root}/dev").st_dev
            if filesystem == b"%02x:%02x" % (os.major(dev), os.minor(dev)):
                raise OSError(errno.ESTALE, "a file of /dev is mapped that was deleted")
            return False
        return wanted.has(os.lstat(f"{root}{path}"))
    except _GONE:
        return False


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()
