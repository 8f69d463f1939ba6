"""Grants: asked of their sources, written down, and laid over what the node has.

A grant is in the ledger before its devices are offered, and its end before they leave the offer.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import anyio

from hardpoint._core.grants.conditions import Conditions
from hardpoint._core.grants.grantlaid import Words, laid_over
from hardpoint._core.grants.grantplan import Plan, Scene, Stated, entry_means, in_force, plan
from hardpoint._core.grants.lost import Lost
from hardpoint._core.grants.sources import Sources
from hardpoint._core.ledger.grantrows import (
    INDEX,
    READ,
    Book,
    DeviceKey,
    KnownGrant,
    Meant,
    blocking,
    book_of,
    forget_grant,
    forget_release,
    keep_grant,
    keep_release,
)
from hardpoint._core.ledger.ledger import Ledger
from hardpoint._core.ledger.records import Record
from hardpoint._core.offer.inventory import ABSENT, Built
from hardpoint._core.plugins.relay import Relay
from hardpoint._core.plugins.stating import sentence
from hardpoint.errors import HoldDenied, HoldFailed, LedgerError
from hardpoint.grants import Grant, GrantedDevice
from hardpoint.model import Offered

_log = logging.getLogger("hardpoint.grants")

EVERY = 5.0
FIRST = 1.0
"""Seconds that the first offer waits for sources."""
UNREADABLE = "GrantsUnreadable"
_PASSES = 4
_LONGEST_ROW = 200


class Granting:
    """Keeps grants; ``apply`` is called with each offer in the making, by one task."""

    def __init__(
        self,
        relay: Relay,
        ledger: Ledger,
        *,
        agent: Any,
        lost: Lost,
        conditions: Conditions,
        writing: Callable[[], bool],
        touch: Callable[[], None],
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._relay, self._ledger, self._lost = relay, ledger, lost
        self._conditions, self._writing, self._touch = conditions, writing, touch
        self._clock = clock
        self._sources = Sources(relay, agent=agent, had=self._had, hint=self.hint, ticks=ticks)
        self._reading = anyio.Lock()
        self._first_by: float | None = None
        """Until when offers wait for the first of them."""
        self._applied: dict[str, Stated] = {}
        """What the sources said when the last offer was made."""
        self._wrote = False
        """Whether that was written down: of two agents one does."""
        self._owed = False
        """Whether something is to be written that could not be."""
        self._made = anyio.Event()
        self._wake = anyio.Event()
        self.book = Book()
        """What was written down when that was last read."""
        self._is_read = False

    # -- what others ask --------------------------------------------------------------------------

    @property
    def sources(self) -> dict[str, tuple[str, ...]]:
        """The kinds that each running source governs."""
        return self._sources.kinds

    def governs(self, kind: str) -> bool:
        """Say whether devices of a kind are offered under grants alone."""
        return any(one.governs(kind) for one in self._sources.stated().values())

    @property
    def known(self) -> bool:
        """True while every source's last answer was whole: without that nobody may be reaped."""
        return self._sources.asked and self._sources.whole

    def answers(self, source: str) -> bool:
        """Say whether a source's last answer was good; True of what is no source that runs."""
        return self._sources.answers(source)

    @property
    def settled(self) -> bool:
        """True while what follows from the sources' last answers is written down."""
        return self._sources.stated() == self._applied and self._wrote == self._writing()

    def in_force(self) -> tuple[Grant, ...]:
        """Return every grant that is in force."""
        return tuple(known.grant for known in self.book.grants if known.devices)

    def entry(self, record: Record) -> GrantedDevice | None:
        """Return how the grant names a device that is held under it."""
        allocation = record.allotment.allocation
        if not allocation:
            return None
        key = DeviceKey(record.claim.dra_driver, record.device.name)
        for one, known in in_force(self.book):
            if known.grant.allocation == allocation and one.key == key:
                return next((e for e in known.grant.devices if entry_means(e, one)), None)
        return None

    def hint(self) -> None:
        """Ask soon."""
        self._wake.set()

    async def run(self) -> None:
        """Ask for ever: at each hint, and every 5 seconds."""
        while self._sources.kinds:
            with anyio.move_on_after(EVERY):
                await self._wake.wait()
            self._wake = anyio.Event()
            await self.ask()
            if self._owed or not self.settled or await self.is_rewritten():
                self._touch()

    async def settle(self) -> bool:
        """Ask anew, and wait until what follows is written down; False where that is not known."""
        await self.ask()
        with anyio.move_on_after(EVERY):
            while not self.settled:
                made = self._made
                self._touch()
                await made.wait()
        return self.known and self.settled and not self.book.unreadable

    async def confirm(self, offered: Iterable[Offered]) -> None:
        """Ask again before a claim is answered. Raises ``HoldDenied`` for what is granted no more.

        A source that cannot be asked now is believed to say what it said.
        """
        await self._confirm(
            (DeviceKey(one.domain.dra_driver, one.name), one.allocation) for one in offered
        )

    async def confirm_held(self, records: Iterable[Record]) -> None:
        """Do the same for what is held, offered or not: the offer may be older than the end."""
        await self._confirm(
            (DeviceKey(one.claim.dra_driver, one.device.name), one.allotment.allocation)
            for one in records
            if self.governs(one.device.kind)
        )

    async def _confirm(self, wanted: Iterable[tuple[DeviceKey, str]]) -> None:
        granted = [(key, allocation) for key, allocation in wanted if allocation]
        if not granted:
            return
        await self.ask()
        known = {(one.key, of.grant.allocation): (one, of) for one, of in in_force(self.book)}
        words = Words(self._sources.stated())
        for key, allocation in granted:
            self._confirm_one(key.name, allocation, known.get((key, allocation)), words)

    def _confirm_one(
        self, device: str, allocation: str, known: tuple[Meant, KnownGrant] | None, words: Words
    ) -> None:
        if known is not None and self._sources.may_have_ended(known[1].grant.source):
            why = f"device {device}: its grant may have ended, which is being looked at"
            raise HoldFailed(why, reason="try-again")
        if known is not None and words.name(*known):
            return
        self._touch()
        raise HoldDenied(
            f"device {device} is not granted under allocation {allocation} any more",
            reason="revoked",
        )

    # -- asking -----------------------------------------------------------------------------------

    async def ask(self) -> None:
        """Ask every source now, and say what of them cannot be read."""
        await self._sources.ask(self._recall)
        self._say(self._sources.unreadable())

    def _say(self, unreadable: Sequence[str]) -> None:
        """Say which sources cannot be read, and which rows of the ledger: nobody is reaped then."""
        if unreadable:
            message = "what is granted cannot be read, what is known stands: "
            self._conditions.set(UNREADABLE, "SourceUnreadable", message + "; ".join(unreadable))
            return
        rows = "; ".join(row[:_LONGEST_ROW] for row in self.book.unreadable[:3])
        message = (
            "what is written down of a grant or a release cannot be read, so its devices are "
            f"withheld and nobody is reaped; see `hardpoint release`: {rows}"
        )
        self._conditions.set(UNREADABLE, "LedgerUnreadable", message if rows else "")

    async def _ask_first(self) -> None:
        """Ask, and do not wait long: what no source governs does not depend on it."""
        if self._first_by is None:
            self._first_by = anyio.current_time() + FIRST
        with anyio.CancelScope(deadline=self._first_by) as waiting:
            await self.ask()
        if waiting.cancelled_caught:
            self.hint()

    async def _recall(self) -> None:
        """Read what was known before: whether a source has lost all its grants shows by that."""
        if not self._is_read:
            with suppress(LedgerError):
                await self.refresh()

    def _had(self, source: str) -> bool:
        """Say whether a source had grants, as far as that is known."""
        mine = (known for known in self.book.grants if known.grant.source == source)
        return not self._is_read or any(known.devices for known in mine)

    # -- writing down -----------------------------------------------------------------------------

    async def read(self) -> Book:
        """Read what is written down. Raises ``LedgerError``."""
        book = book_of(await self._ledger.query(READ))
        return blocking(book, await self._ledger.query(INDEX)) if book.unreadable else book

    async def refresh(self) -> None:
        """Read again what was written by somebody else. Raises ``LedgerError``."""
        async with self._reading:  # what was read first must not come last
            self.book = await self.read()
            self._is_read = True

    async def is_rewritten(self) -> bool:
        """Say whether somebody else has written: an operator, or the other of two agents."""
        try:
            return await self.read() != self.book
        except LedgerError:
            return False

    async def apply(self, built: Built, *, complete: bool) -> Built:
        """Return what of it may be offered under the grants that are in force.

        Where nothing can be written no new grant is offered; one that ended is withdrawn all the
        same.
        """
        if not self._sources.asked:
            await self._ask_first()
        stated = self._sources.stated()
        writing = self._writing()
        try:
            await self._settle(stated, built, complete=complete)
            self._relay.board.clear("ledger grants")
            self._applied, self._wrote, self._owed = stated, writing, False
        except LedgerError as error:
            self._owed = True
            cost = "no new grant is offered, and none that ended is released"
            self._relay.board.record("ledger grants", str(error), cost=cost)
        made, self._made = self._made, anyio.Event()
        made.set()
        return laid_over(built, self.book, stated, self._lost.lost)

    async def _settle(self, stated: Mapping[str, Stated], built: Built, *, complete: bool) -> None:
        await self.refresh()
        if not self._writing():
            return
        present = (one for one in built.devices if ABSENT not in one.taints)
        devices = [Meant(one.domain.dra_driver, one.device) for one in present]
        for _ in range(_PASSES):
            lost = await self._lost.keys(self.book, devices, stated, complete=complete)
            made = plan(
                Scene(
                    book=self.book,
                    stated=stated,
                    devices=devices,
                    withheld={w.subject: sentence(w.reason) for w in built.withheld},
                    complete=complete,
                    lost=lost,
                    now=self._clock(),
                    new_id=lambda: os.urandom(8).hex(),
                )
            )
            if made.empty:
                return
            if await self._ledger.write(partial(_write, made, self.book)):
                _say(made)
            await self.refresh()
        self._relay.later(EVERY, self._touch)


def _write(made: Plan, seen: Book, db: sqlite3.Connection) -> bool:
    """Write a plan down, unless what it was made of has changed: a release has ended, say."""
    if book_of(db.execute(READ)) != seen:
        return False
    for key in made.forget:
        forget_grant(db, key)
    for id_ in made.drop:
        forget_release(db, id_)
    for release in made.begin:
        keep_release(db, release)
    for known in made.keep:
        keep_grant(db, known)
    return True


def _say(made: Plan) -> None:
    for known in made.keep:
        _log.info(
            "grant allocation=%s outcome=%s devices=%d reason=%r",
            known.grant.allocation,
            known.outcome.outcome.value,
            len(known.devices),
            known.outcome.reason,
        )
    for release in made.begin:
        names = ",".join(one.device.name for one in release.devices)
        _log.info("release allocation=%s devices=%s", release.grant.allocation, names)
