"""A second look, once udev is done with what the kernel has told of.

The kernel's event wakes udev and us alike. What udev adds to a device (the group of its node, links
and database, the signature of a disk) comes later, and tells only who listens to udev itself, which
a pod cannot: its messages stay in the network namespace of the host. The kernel itself tells of a
removal just before sysfs forgets the device (drivers/base/core.c, device_del), and the first look
at a long burst does not wait for its last event to be over.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import anyio

QUIET = 0.5
"""Seconds without another event before udev is asked whether it is done."""
_ASK = 0.5
_LONGEST = 60.0


class AfterUdev:
    """Calls ``wake`` at each event, and once more after the burst, when udev (if any) is idle."""

    def __init__(self, run: Path, wake: Callable[[], None], quiet: float = QUIET) -> None:
        self._queue, self._wake, self._quiet = run / "udev/queue", wake, quiet
        self._heard = anyio.Event()

    def heard(self) -> None:
        """Say that an event has come; from the event loop."""
        self._wake()
        self._heard.set()

    async def run(self) -> None:
        """Follow events with their second look, for ever."""
        while True:
            await self._heard.wait()
            await self._end_of_burst()
            with anyio.move_on_after(_LONGEST):
                await self._until_idle()
            self._wake()

    async def _end_of_burst(self) -> None:
        while self._heard.is_set():
            self._heard = anyio.Event()
            await anyio.sleep(self._quiet)

    async def _until_idle(self) -> None:
        while self._is_busy():  # noqa: ASYNC110 - udev sets no Event of ours
            await anyio.sleep(min(_ASK, self._quiet))

    def _is_busy(self) -> bool:
        """Say whether udev has events left: it keeps this file meanwhile (udev_queue_is_empty)."""
        return os.path.exists(self._queue)
