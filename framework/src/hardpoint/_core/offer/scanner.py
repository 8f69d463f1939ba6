"""Asks the drivers what there is, each at its own pace, and keeps the listings.

Every driver has a loop of its own, so a hung one delays nobody else. What wakes them is settled
once for all; a driver that failed, or could not read an entry, is asked again with back-off.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import anyio

from hardpoint._core.offer.inventory import STALE_AFTER, Listing
from hardpoint._core.offer.uevents import Wake, backstop
from hardpoint._core.plugins.relay import Relay, backoff
from hardpoint.errors import HardpointError, HookLate

_log = logging.getLogger("hardpoint.scanner")

HOOK = "publish_devices"
BACKSTOP_TAKES = 15.0
"""Seconds after which every driver that answers has answered the backstop scan."""


class Scanner:
    """Keeps one ``Listing`` per driver. ``changed`` is called when one of them may differ."""

    def __init__(
        self,
        relay: Relay,
        changed: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._relay, self._changed, self._clock = relay, changed, clock
        self.wake = Wake()
        self.listings: dict[str, Listing] = {}
        self._wakes: dict[str, anyio.Event] = {}
        self._soon: dict[str, Iterator[float]] = {}
        self._late: set[str] = set()
        self.scans = 0
        self.missed_events = 0
        """Backstop scans that found something no event had announced."""

    def restore(self, listings: dict[str, Listing]) -> None:
        """Start from what drivers listed before the restart.

        It is shown, and takes no new claim until its driver answers: its age is not known.
        """
        old = self._clock() - STALE_AFTER
        for name, listing in listings.items():
            self.listings[name] = replace(listing.failed(old), answered=False)

    @property
    def drivers(self) -> tuple[str, ...]:
        """Drivers that publish, by short name."""
        ids = self._relay.implementations(HOOK)
        return tuple(plugin.removeprefix("driver/") for plugin in ids)

    @property
    def complete(self) -> bool:
        """Say whether every driver has answered, or failed, since the start."""
        listings = self.listings
        return all(d in listings and listings[d].answered for d in self.drivers)

    async def run(self) -> None:
        """Scan at once, after every hint, and on the backstop timer; for ever."""
        async with anyio.create_task_group() as tasks:
            for driver in self.drivers:
                self._wakes[driver] = anyio.Event()
                self._soon[driver] = backoff(first=1.0, last=30.0)
                self._wakes[driver].set()
                tasks.start_soon(self._driver_loop, driver)
            tasks.start_soon(self._backstop_loop)
            while True:
                await self.wake.settled()
                self._wake_all()

    def _wake_all(self) -> None:
        for event in self._wakes.values():
            event.set()

    async def _backstop_loop(self) -> None:
        while True:
            await anyio.sleep(backstop())
            if self.wake.waiting():
                continue
            before = dict(self.listings)
            self._wake_all()
            await anyio.sleep(BACKSTOP_TAKES)
            found = _differences(before, self.listings)
            if found and not self.wake.waiting():
                self.missed_events += 1
                _log.warning(
                    "the backstop scan found what no event announced what=%s", ",".join(found[:20])
                )

    async def _driver_loop(self, driver: str) -> None:
        while True:
            await self._wakes[driver].wait()
            self._wakes[driver] = anyio.Event()
            again = await self._scan(driver)
            if again is not None:
                with anyio.move_on_after(again):
                    await self._wakes[driver].wait()
                self._wakes[driver].set()

    async def _scan(self, driver: str) -> float | None:
        """Ask one driver; return in how many seconds to ask again, or None for the next hint."""
        self.scans += 1
        old = self.listings.get(driver, Listing(driver))
        try:
            listed = await self._relay.plugin(HOOK, f"driver/{driver}")
        except HookLate:
            self._late.add(driver)
            self._keep(old.failed(self._clock()))
            return 0.0  # joins the call that still runs
        except HardpointError as error:
            _log.debug("walk failed driver=%s why=%s", driver, error)
            self._keep(old.failed(self._clock()))
            return next(self._soon[driver])
        new = old.after(listed, self._clock())
        self._keep(new)
        if new.stale or any(w.rule == "unread" for w in new.withheld):
            return next(self._soon[driver])
        self._soon[driver] = backoff(first=1.0, last=30.0)
        if driver in self._late:  # what it answered now, it began to read long ago
            self._late.discard(driver)
            return 0.0
        return None

    def _keep(self, listing: Listing) -> None:
        self.listings[listing.driver] = listing
        self._changed(listing.driver)


def _differences(before: Mapping[str, Listing], after: Mapping[str, Listing]) -> list[str]:
    """Return the names of devices and the subjects of what is withheld that differ."""
    old, new = _listed(before), _listed(after)
    return sorted({key[1] for key in {*old, *new} if old.get(key) != new.get(key)})


def _listed(listings: Mapping[str, Listing]) -> dict[tuple[str, str, str], object]:
    found: dict[tuple[str, str, str], object] = {}
    for driver, listing in listings.items():
        found |= {(driver, device.name, ""): device for device in listing.devices}
        found |= {(driver, one.subject, one.rule): one for one in listing.withheld}
    return found
