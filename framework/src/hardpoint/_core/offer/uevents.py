"""When to look again: kernel uevents, hints of drivers, and a backstop timer.

Events say *look*, the scan says *what*. The payload of an event is never used as state. Source is
netlink group 1, the kernel's own: group 2 (udev) is silent in a pod, without an error.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import anyio

from hardpoint._core.plugins.faults import FaultBoard

_log = logging.getLogger("hardpoint.uevents")

QUIET = 0.1
CEILING = 1.0
BACKSTOP = 300.0
RECEIVE_BUFFER = 16 << 20
"""Bytes; pyudev asks for them with SO_RCVBUFFORCE or as much as the kernel allows."""

_MOST_TOLD = 4096

_STRUCTURAL = frozenset({"add", "remove", "bind", "unbind", "move"})
_CHANGE_MATTERS = frozenset({"drm", "pci", "sound", "usb", "net", "input", "hidraw", "tty"})
"""Subsystems whose ``change`` may bring or take nodes or facts; a CD drive's poll does not."""


class Uevent(Protocol):
    """What of an event decides whether it wakes anybody (pyudev's ``Device`` has these)."""

    @property
    def action(self) -> str | None: ...

    @property
    def device_path(self) -> str: ...

    @property
    def subsystem(self) -> str | None: ...


def matters(event: Uevent) -> bool:
    """Say whether an event may have changed what drivers list.

    Pod churn (veth), loop devices, NFS clients and modules are not hardware. Below ``virtual`` only
    misc devices count: ``/dev/uhid`` and ``/dev/uinput`` appear there when their module loads, and
    Bluetooth and sound devices that hang from no bus.
    """
    path = event.device_path
    if not path.startswith("/devices/") or path == "/devices/virtual":
        return False
    if event.action == "change" and event.subsystem not in _CHANGE_MATTERS:
        return False
    if event.action not in _STRUCTURAL and event.action != "change":
        return False
    if path.startswith("/devices/virtual/"):
        kind = path.removeprefix("/devices/virtual/").partition("/")[0]
        return kind in {"misc", "bluetooth", "sound", "input", "drm", "video4linux"}
    return event.subsystem not in {"queues", "cpu", "memory", "workqueue", "bdi"}


class Told:
    """What events said last of devices that no hardware stands behind.

    A virtual device is added once, but the kernel can be asked to say so again (a write to its
    ``uevent`` file, as ``udevadm trigger`` does): that is no news.
    """

    def __init__(self) -> None:
        self._last: dict[str, str | None] = {}

    def news(self, event: Uevent) -> bool:
        """Say whether an event tells something that the last one of its device did not."""
        path = event.device_path
        if not path.startswith("/devices/virtual/") or event.action == "change":
            return True
        if self._last.get(path) == event.action:
            return False
        if len(self._last) >= _MOST_TOLD:
            self._last.clear()
        self._last[path] = event.action
        return True


class Wake:
    """A hint that can be given from any task and awaited by one, with bursts settled."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self.last = 0.0

    def set(self) -> None:
        """Say *look again*; from the event loop."""
        self.last = anyio.current_time()
        self._event.set()

    async def settled(self, quiet: float = QUIET, ceiling: float = CEILING) -> None:
        """Wait for a hint, then for ``quiet`` seconds without another, at most ``ceiling``."""
        await self._event.wait()
        started = anyio.current_time()
        while True:
            now = anyio.current_time()
            until = min(self.last + quiet, started + ceiling)
            if now >= until:
                break
            await anyio.sleep(until - now)
        self._event = anyio.Event()

    def waiting(self) -> bool:
        """Say whether a hint has come that nobody took yet."""
        return self._event.is_set()


async def listen(wake: Callable[[], None], board: FaultBoard) -> None:
    """Wake on every kernel event that matters, for ever; start again when the socket fails.

    Where there are no events (no netlink, or a user namespace of its own) the board says so and
    the backstop is all there is.
    """
    source = "kernel events"
    while True:
        try:
            await _listen(wake, lambda: board.clear(source))
        except Exception as error:  # noqa: BLE001 - pyudev raises ValueError for EINVAL, too
            board.record(
                source,
                f"not to be had: {error}",
                cost="new hardware is noticed by the backstop scan only, every 5 minutes",
            )
            await anyio.sleep(30)
            wake()


async def _listen(wake: Callable[[], None], working: Callable[[], None]) -> None:
    import pyudev

    monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
    try:
        monitor.set_receive_buffer_size(RECEIVE_BUFFER)
    except OSError:
        _log.debug("the receive buffer stays as it is")
    monitor.start()
    working()
    told = Told()
    while True:
        await anyio.wait_readable(monitor.fileno())
        if [event for event in _drain(monitor) if matters(event) and told.news(event)]:
            wake()


def _drain(monitor: Any) -> Iterator[Uevent]:
    """Yield what is queued. ENOBUFS, lost events, counts as an event: look again."""
    while True:
        try:
            event = monitor.poll(timeout=0)
        except OSError as error:
            if errno.ENOBUFS not in (error.errno, _waiting_error(monitor.fileno())):
                raise
            _log.info("the kernel dropped events; looking again")
            yield _Lost()
            continue
        if event is None:
            return
        yield _readable(event)


def _waiting_error(descriptor: int) -> int:
    """Return the error that waits at a socket, and take it away.

    An overrun socket polls as POLLERR, which pyudev raises without saying which error it is, and
    goes on raising until somebody has asked (net/netlink/af_netlink.c, ``netlink_overrun``).
    """
    with socket.socket(fileno=os.dup(descriptor)) as same:
        return same.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


@dataclass(frozen=True, slots=True)
class _Read:
    action: str | None
    device_path: str
    subsystem: str | None


def _readable(event: Any) -> Uevent:
    """Return an event with its text read; one whose text is none counts as lost: look again.

    A network interface may be named in any bytes (net/core/dev.c, ``dev_valid_name``), and pyudev
    decodes names strictly, when it is asked for them.
    """
    try:
        return _Read(event.action, event.device_path, event.subsystem)
    except (UnicodeDecodeError, AttributeError):
        return _Lost()


class _Lost:
    action: str | None = "add"
    device_path = "/devices/lost"
    subsystem: str | None = None


def backstop() -> float:
    """Seconds to the next look that no event asked for: 5 minutes, give or take a tenth."""
    return BACKSTOP * random.uniform(0.9, 1.1)  # noqa: S311 - spreads load, guards nothing
