"""The offer, kept current: listings, holds, health and policies go in, changes come out.

Nothing is announced before every driver has answered once or the first second is over, so that a
restart does not withdraw what a slower driver will list again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import anyio
import anyio.to_thread

from hardpoint._core.ledger.grantrows import Meant
from hardpoint._core.offer.inventory import (
    STALE_AFTER,
    Built,
    Judged,
    Listing,
    as_offer,
    assemble,
    held_names,
    judge,
    undisputed,
    vetoed,
)
from hardpoint._core.offer.judging import BAD_DEVICE, Facts
from hardpoint._core.offer.scanner import Scanner
from hardpoint._core.offer.shares import Shares
from hardpoint._core.offer.vetoed import Vetoed
from hardpoint._core.plugins.calling import said
from hardpoint._core.plugins.faults import FaultBoard
from hardpoint._core.plugins.relay import Relay
from hardpoint.errors import HardpointError, HookLate
from hardpoint.model import Condition, Device, Health, Offer, Offered, Veto

_log = logging.getLogger("hardpoint.offer")

FIRST = 1.0
"""Seconds that a hung driver may delay the others' first publish."""
PATIENT = 60.0
"""Seconds that a driver is waited for before a grant that names a device of its own is refused."""
CHECK_EVERY = 60.0
_CHECKS_AT_ONCE = 4
_AGAIN = 5.0


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What a policy said last, and which devices it was asked about."""

    vetoes: tuple[Veto, ...] = ()
    about: frozenset[tuple[str, str]] = frozenset()


class Grants(Protocol):
    """Lays grants over an offer in the making."""

    async def __call__(self, built: Built, *, complete: bool) -> Built:
        """Return what of it may be offered."""


class Offering:
    """Makes the offer again whenever ``touch`` is called, and tells who waits for it.

    ``facts`` gives holds, quarantine, rules and platform as they are now; ``missing`` the policies
    that the settings name and that do not run, with the reasons: while there are any, nothing is
    offered.
    """

    def __init__(
        self,
        relay: Relay,
        scanner: Scanner,
        facts: Callable[[], Awaitable[Facts]],
        missing: Callable[[], Iterable[tuple[str, str]]] = tuple,
        clock: Callable[[], float] = time.monotonic,
        shares: Shares | None = None,
        grants: Grants | None = None,
        vetoes: Callable[[Iterable[Veto]], None] = lambda _: None,
        agent: Any = None,
    ) -> None:
        self._grants, self._on_vetoes, self._agent = grants, vetoes, agent
        self._relay, self._scanner, self._facts = relay, scanner, facts
        self._missing, self._clock = missing, clock
        self._shares = shares or Shares({})
        self._board: FaultBoard = relay.board
        self.offer = Offer(generation=0, complete=False)
        self.health: dict[tuple[str, str], Health] = {}
        """By driver and device name."""
        self._judged: dict[str, Judged] = {}
        self._began = clock()
        self._said: dict[str, str] = {}
        self._verdicts: dict[str, _Verdict] = {}
        """What each policy that vetoes said last."""
        self._vetoed = Vetoed()
        self._asking_again = False
        self._first_second_over = False
        self._timed_for: float | None = None
        self._dirty = anyio.Event()
        self._changed = anyio.Event()
        self._check = anyio.Event()

    def touch(self, *_: object) -> None:
        """Make the offer again: something it is made of may have changed."""
        self._dirty.set()

    def listed(self) -> None:
        """Make the offer again, and ask how the devices are: a driver has answered.

        The hint may have meant a fault (an NVML event, a link that is lost): then the list is as it
        was, and only ``check_device`` knows.
        """
        self.touch()
        self._check.set()

    def known(self) -> Iterator[Meant]:
        """Yield every device that a driver lists, as it would be offered, whether it is or not."""
        for judged in self._judged.values():
            for judgement in judged.judgements:
                found = judgement.answer
                device = found if isinstance(found, Device) else judgement.listed
                yield Meant(judged.domain.dra_driver, device)

    async def completed(self) -> Offer:
        """Wait for the first whole offer."""
        while not self.offer.complete:
            await self._changed.wait()
        return self.offer

    async def offers(self) -> AsyncIterator[Offer]:
        """Yield the offer and each that follows; a slow reader sees only the latest."""
        offer = await self.completed()
        while True:
            yield offer
            while self.offer is offer:
                await self._changed.wait()
            offer = self.offer

    async def run(
        self,
        on_change: Callable[[Offer, Offer], Awaitable[None]],
        on_made: Callable[[Offer], None] = lambda _: None,
    ) -> None:
        """Keep the offer current, for ever. ``on_change`` gets the old and the new one.

        ``on_made`` gets each that was made, also one that is as the last was.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._first_second)
            tasks.start_soon(self._check_loop)
            if self._grants is not None:
                self._relay.later(PATIENT, self.touch)
            while True:
                await self._dirty.wait()
                self._dirty = anyio.Event()
                old, self.offer = self.offer, await self._next_or_last()
                on_made(self.offer)
                if self.offer is old:
                    continue
                self._announce(old)
                if self.offer.complete:
                    await on_change(old, self.offer)

    def _announce(self, old: Offer) -> None:
        """Wake who waits; ask how devices are where there are others than before.

        That one is held now is no reason: 64 claims at once would ask every driver for each.
        """
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
        if [one.device for one in old.devices] != [one.device for one in self.offer.devices]:
            self._check.set()

    async def _first_second(self) -> None:
        await anyio.sleep(FIRST)
        self._first_second_over = True
        self.touch()

    # -- making it --------------------------------------------------------------------------------

    async def _next_or_last(self) -> Offer:
        """Make the offer; the last one stands where that fails, rather than none for any driver."""
        try:
            offer = await self._next()
        except Exception as error:  # noqa: BLE001 - it would end the agent
            _log.exception("the offer could not be made")
            cost = "what was offered last stands; it is tried again"
            self._board.record("agent offer", said(error), cost=cost)
            self._relay.later(_AGAIN, self.touch)
            return self.offer
        self._board.clear("agent offer")
        return offer

    async def _next(self) -> Offer:
        now = self._clock()
        facts = replace(await self._facts(), health=dict(self.health), now=now)
        listings = list(self._scanner.listings.values())
        scanned = self._scanner.complete  # one more may come while these are judged
        complete = scanned or self._first_second_over
        judged = [await self._judged_of(each, facts) for each in listings]
        built = undisputed(assemble(judged, facts), self._shares)
        self._say_problems(built)
        self._later(min((s for each in listings for s in each.stale.values()), default=None), now)
        if self._grants is not None:
            patient = now - self._began < PATIENT
            built = await self._grants(built, complete=scanned or not patient)
        reasons = await self._reasons(built, complete=complete)
        return as_offer(vetoed(built, reasons), self.offer, complete=complete)

    async def _judged_of(self, listing: Listing, facts: Facts) -> Judged:
        """Judge a listing once, and again when the driver lists anew or its holds change."""
        known = self._judged.get(listing.driver)
        same = known is not None and known.listing is listing
        if known is None or not same or known.held != held_names(known.domain, facts):
            known = self._judged[listing.driver] = await self._judge(listing, facts)
        return known

    async def _judge(self, listing: Listing, facts: Facts) -> Judged:
        """Judge a listing; one that cannot be judged costs only its own driver's devices."""
        source = f"driver/{listing.driver} listing"
        try:
            last = self._judged.get(listing.driver)
            judged = await anyio.to_thread.run_sync(judge, listing, facts, last)
        except Exception as error:  # noqa: BLE001 - a stranger's devices
            _log.exception("a listing could not be judged driver=%s", listing.driver)
            self._board.record(source, said(error), cost="what it listed before stands")
            known = self._judged.get(listing.driver)
            return known or Judged(listing, facts.domain_of(listing.driver))
        self._board.clear(source)
        return judged

    def _say_problems(self, built: Built) -> None:
        """Put on the board what is wrong with what drivers list, and take off what is mended."""
        standing = {f"driver/{d} {device}: {p.field}": str(p) for d, device, p in built.problems}
        for bad in built.withheld:
            if bad.rule == BAD_DEVICE:
                standing[f"driver/{bad.driver} {bad.subject}"] = bad.reason
        for source in self._said.keys() - standing.keys():
            self._board.clear(source)
        for source, problem in standing.items():
            if self._said.get(source) != problem:
                self._board.record(source, problem, cost="left out of what is published")
        self._said = standing

    def _later(self, stale_since: float | None, now: float) -> None:
        """Look again when the oldest unread device becomes stale."""
        if stale_since is None or stale_since == self._timed_for:
            return
        if now - stale_since < STALE_AFTER:
            self._timed_for = stale_since
            self._relay.later(stale_since + STALE_AFTER - now, self.touch)

    # -- policies ---------------------------------------------------------------------------------

    async def _reasons(self, built: Built, *, complete: bool) -> dict[str, str]:
        """Return why devices are vetoed. A policy that does not answer is no permission."""
        for policy, why in self._missing():
            reason = f"policy {policy} is named in the settings and does not run: {why}"
            self._board.record(f"policy/{policy}", reason, cost="nothing is offered")
            return {offered.name: reason for offered in built.devices}
        asked = Offer(generation=self.offer.generation, devices=built.devices, complete=complete)
        vetoes: list[Veto] = []
        for plugin in self._relay.implementations("veto_devices"):
            vetoes += await self._vetoes_of(plugin, asked)
        self._on_vetoes(vetoes)
        return self._vetoed.note({veto.device: veto.reason for veto in vetoes})

    async def _vetoes_of(self, plugin: str, asked: Offer) -> tuple[Veto, ...]:
        """Ask one policy. One that fails keeps its last word, and back what that was not about."""
        try:
            if self._relay.is_asked("veto_devices", plugin):
                raise HookLate(plugin, "veto_devices", "it has not answered when it was asked last")
            answer: tuple[Veto, ...] = await self._relay.plugin(
                "veto_devices", plugin, offer=asked, agent=self._agent
            )
        except HardpointError as error:
            _log.debug("policy failed plugin=%s why=%s", plugin, error)
            self._ask_again()
            last = self._verdicts.get(plugin, _Verdict())
            reason = f"{plugin} has not answered yet: {error}"
            unknown = {_key(one) for one in asked.devices} - last.about
            names = dict.fromkeys(name for _, name in sorted(unknown))
            return (*last.vetoes, *(Veto(device=name, reason=reason) for name in names))
        self._verdicts[plugin] = _Verdict(answer, frozenset(map(_key, asked.devices)))
        return answer

    def _ask_again(self) -> None:
        """Make the offer again in a while: what hindered a policy need not be an event."""
        if not self._asking_again:
            self._asking_again = True
            self._relay.later(_AGAIN, self._touch_again)

    def _touch_again(self) -> None:
        self._asking_again = False
        self.touch()

    # -- health -----------------------------------------------------------------------------------

    async def _check_loop(self) -> None:
        """Ask drivers after each change, and once a minute, whether their devices work."""
        while True:
            with anyio.move_on_after(CHECK_EVERY):
                await self._check.wait()
            self._check = anyio.Event()
            await self._check_all()

    async def _check_all(self) -> None:
        checked = [
            offered
            for offered in self.offer.devices
            if self._relay.implements(offered.device.driver, "check_device")
        ]
        found: dict[tuple[str, str], Health] = {}
        limit = anyio.Semaphore(_CHECKS_AT_ONCE)
        async with anyio.create_task_group() as tasks:
            for offered in checked:
                tasks.start_soon(self._check_one, offered, found, limit)
        if found != self.health:
            self.health = found
            self.touch()

    async def _check_one(
        self, offered: Offered, found: dict[tuple[str, str], Health], limit: anyio.Semaphore
    ) -> None:
        device = offered.device
        async with limit:
            try:
                health = await self._relay.owner(
                    "check_device", device.driver, device.name, device=device
                )
            except HardpointError as error:
                health = Health(Condition.UNKNOWN, str(error)[:200])
        found[device.driver, device.name] = health


def _key(one: Offered) -> tuple[str, str]:
    return one.domain.dra_driver, one.name
