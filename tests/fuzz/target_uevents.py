"""Datagrams of the kernel: none ends the listening, and a real event after it still wakes.

What pyudev makes of a datagram stands in for it here: text is decoded strictly as it is asked for,
and what a datagram lacks is None.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any

from fuzz.choices import Choices
from fuzz.world import Stage

from hardpoint._core.offer.uevents import Told, _drain, matters

PLUG = b"add@/devices/pci0000:00/0000:00:14.0/usb1/1-1\0ACTION=add\0SUBSYSTEM=usb\0"


class _Sent:
    """An event as pyudev shows it."""

    def __init__(self, datagram: bytes) -> None:
        head, *fields = datagram.split(b"\0")
        pairs = dict(field.split(b"=", 1) for field in fields if b"=" in field)
        action, _, path = head.partition(b"@")
        self._action = pairs.get(b"ACTION", action or None)
        self._path = pairs.get(b"DEVPATH", path)
        self._subsystem = pairs.get(b"SUBSYSTEM")

    @property
    def action(self) -> str | None:
        return None if self._action is None else self._action.decode()

    @property
    def device_path(self) -> str:
        return self._path.decode()

    @property
    def subsystem(self) -> str | None:
        return None if self._subsystem is None else self._subsystem.decode()


class _Monitor:
    def __init__(self, queued: list[bytes | None], descriptor: int) -> None:
        self._queued, self._descriptor = queued, descriptor

    def fileno(self) -> int:
        return self._descriptor

    def poll(self, timeout: float) -> Any:
        if not self._queued:
            return None
        datagram = self._queued.pop(0)
        if datagram is None:
            raise OSError(errno.ENOBUFS, "No buffer space available")
        return _Sent(datagram)


class Fuzzed:
    """Receives some datagrams, and then one of a device that is plugged in."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.told = Told()

    def __enter__(self) -> Callable[[bytes], None]:
        stage = self.stage.__enter__()
        self.socket = stage.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        return self

    def __exit__(self, *exception: object) -> None:
        self.stage.__exit__(None, None, None)

    def __call__(self, data: bytes) -> None:
        choices = Choices(data)
        queued: list[bytes | None] = [
            None if choices.below(8) == 7 else choices.chunk(200) for _ in range(choices.below(4))
        ]
        queued += [choices.rest(), PLUG]
        heard = list(_drain(_Monitor(queued, self.socket.fileno())))
        news = [matters(event) and self.told.news(event) for event in heard]
        assert news[-1], "a device that is plugged in wakes"
        assert len(self.told._last) <= 4096
        self.stage.quiet("\x1b", "\udcff")
