"""Time as an argument, so that a test of a 30-second rule takes no 30 seconds."""

from __future__ import annotations

from typing import Protocol

import anyio


class Clock(Protocol):
    """Seconds that only grow, and waiting for them to pass."""

    def now(self) -> float:
        """Return the time."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


class RealClock:
    """The event loop's time."""

    def now(self) -> float:
        """Return the time."""
        return anyio.current_time()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await anyio.sleep(seconds)


class ManualClock:
    """Stands still until ``advance``."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self._moved = anyio.Event()

    def now(self) -> float:
        """Return the time."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was moved that far."""
        until = self._now + seconds
        while self._now < until:
            await self._moved.wait()

    def advance(self, seconds: float) -> None:
        """Move the clock; whoever waited long enough goes on at the next await."""
        self._now += seconds
        moved, self._moved = self._moved, anyio.Event()
        moved.set()
