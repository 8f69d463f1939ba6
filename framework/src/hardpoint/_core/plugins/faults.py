"""The fault board: what failed, since when, how often, and what it cost.

A quiet isolation only moves the question to "why did nothing happen?". Every fault is on the board,
in the log (each message once as a warning, repeats as debug) and in ``hardpoint doctor``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

_log = logging.getLogger("hardpoint.faults")


MOST_ENTRIES = 500
"""Faults that are kept; the one that is longest ago goes first."""
MOST_WAYS = 16
"""Messages of one source that are logged while it fails: one with a number in it may never end."""


@dataclass(frozen=True, slots=True)
class FaultEntry:
    """One line of the board. Times are seconds since the epoch."""

    source: str
    """``driver/usb publish_devices``, ``frontend/dra registration`` …"""
    message: str
    cost: str
    first: float
    last: float
    count: int = 1


class FaultBoard:
    """Failures that stand, keyed by their source; one that works again is taken off."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._entries: dict[str, FaultEntry] = {}
        self._logged: dict[str, set[str]] = {}
        """What the log has of each source that stands."""
        self._changed: Callable[[], None] = lambda: None

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` after each change."""
        self._changed = changed

    def record(self, source: str, message: str, cost: str = "") -> None:
        """Put a fault on the board, or count it again."""
        source, message = str(source), str(message)
        now, known = self._clock(), self._entries.get(source)
        self._log(source, message, cost)
        self._entries[source] = (
            FaultEntry(source, message, cost, now, now)
            if known is None
            else replace(known, message=message, cost=cost, last=now, count=known.count + 1)
        )
        if len(self._entries) > MOST_ENTRIES:
            self._take_off(min(self._entries, key=lambda one: self._entries[one].last))
        self._changed()

    def _log(self, source: str, message: str, cost: str) -> None:
        """Warn of each way in which a source fails, once while it does.

        A server that is away for hours fails now in one way, now in another.
        """
        logged = self._logged.setdefault(source, set())
        if message in logged or len(logged) == MOST_WAYS:
            _log.debug("fault again source=%r what=%r", source, message)
            return
        logged.add(message)
        _log.warning("fault source=%r cost=%r what=%r", source, cost, message)

    def _take_off(self, source: str) -> bool:
        self._logged.pop(source, None)
        return self._entries.pop(source, None) is not None

    def clear(self, source: str) -> None:
        """Take a source off the board: it works again."""
        if self._take_off(source):
            _log.info("works again source=%r", source)
            self._changed()

    def clear_about(self, subject: str) -> None:
        """Take off what is about a claim that has ended, by its UID: nobody will try it again."""
        for source in [s for s in self._entries if subject in s.rpartition(" ")[2].split("/")]:
            self._take_off(source)
            self._changed()

    @property
    def entries(self) -> tuple[FaultEntry, ...]:
        """What stands, oldest first."""
        return tuple(sorted(self._entries.values(), key=lambda entry: entry.first))
