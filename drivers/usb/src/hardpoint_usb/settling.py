"""When to look again though no event says so: a driver had its time to bind, a hold has ended."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import anyio

_SLACK = 0.1
"""Seconds added, so that the kernel's clock of milliseconds is past it too."""


class Settling:
    """A time to look again, set by a scan in its thread and waited for in a task."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._due: float | None = None
        self._now = False
        self._bell: int | None = None

    def look_again_in(self, seconds: float | None) -> None:
        """Set the time, or that there is nothing to wait for. Called from any thread."""
        with self._lock:
            self._due = None if seconds is None else self._clock() + seconds + _SLACK
            self._ring()

    def look_now(self) -> None:
        """Look at once, and also after a scan that is under way. Called from any thread."""
        with self._lock:
            self._now = True
            self._ring()

    def _ring(self) -> None:
        if self._bell is not None:
            os.eventfd_write(self._bell, 1)

    async def watch(self, hint: Callable[[], None]) -> None:
        """Call ``hint`` at each such time, for ever. Sleeps without waking in between."""
        with self._lock:
            bell = self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            while True:
                await self._wait(bell)
                if self._is_due():
                    hint()
        finally:
            with self._lock:
                self._bell = None
                os.close(bell)

    async def _wait(self, bell: int) -> None:
        with self._lock:
            due = self._clock() if self._now else self._due
        with anyio.move_on_after(None if due is None else max(0.0, due - self._clock())):
            await anyio.wait_readable(bell)
            os.eventfd_read(bell)

    def _is_due(self) -> bool:
        with self._lock:
            if self._now:
                self._now = False
                return True
            if self._due is None or self._due > self._clock():
                return False
            self._due = None
            return True
