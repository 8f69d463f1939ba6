"""Releases: from the end of a grant until nobody can be using its devices, and its source knows.

Who may be using them is asked again and again. Whatever the sources of evidence say, a hold in the
ledger is a user.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any

import anyio

from hardpoint._core.grants.conditions import Conditions
from hardpoint._core.grants.evidence import EvidenceSources
from hardpoint._core.grants.granting import Granting
from hardpoint._core.grants.grantplan import in_force
from hardpoint._core.grants.lost import SOURCE as LOST
from hardpoint._core.grants.lost import Lost
from hardpoint._core.ledger.grantrows import (
    READ,
    KnownGrant,
    KnownRelease,
    Meant,
    book_of,
    end_release,
    forget_release,
    keep_grant,
    keep_release,
    withdraw,
)
from hardpoint._core.ledger.ledger import Ledger
from hardpoint._core.ledger.rows import read_row
from hardpoint._core.plugins.relay import Relay
from hardpoint.allocation import is_allocation
from hardpoint.errors import HardpointError, LedgerError
from hardpoint.grants import Grant, Release
from hardpoint.model import DeviceNode, Event, Hold, Offer

_log = logging.getLogger("hardpoint.releases")

GRANT, RELEASE = "report_grant", "report_release"
EVERY = 5.0
STUCK_AFTER = 300.0
"""Seconds after which a release that is not over is a condition of the node."""
STUCK = "ReleaseStuck"
DRAIN = "drain"


class Releases:
    """Sees releases to their end, and tells sources what became of their grants."""

    def __init__(
        self,
        relay: Relay,
        ledger: Ledger,
        granting: Granting,
        lost: Lost,
        *,
        agent: Any,
        conditions: Conditions,
        writing: Callable[[], bool],
        touch: Callable[[], None],
        report: Callable[[Event], None],
        show: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._relay, self._ledger, self._granting, self._lost = relay, ledger, granting, lost
        self._agent, self._conditions, self._report = agent, conditions, report
        self._show = show
        self._evidence = EvidenceSources(relay, agent=agent, ticks=ticks)
        self._writing, self._touch, self._clock, self._ticks = writing, touch, clock, ticks
        self._left: dict[str, float] = {}
        """When the devices of each had left the offer, by the monotonic clock."""
        self._seen_first: dict[str, tuple[float, float]] = {}
        """How old each was when this agent saw it first, and when that was by that clock."""
        self._looking = anyio.Lock()
        self._wake = anyio.Event()
        self._telling: dict[tuple[str, str], KnownGrant] = {}
        """What a source of each grant was told last that it has not heard yet."""
        self.users: dict[str, tuple[str, ...]] = {}
        """By release: who was found to use its devices, or why that cannot be said."""

    # -- what others ask --------------------------------------------------------------------------

    def pending(self) -> tuple[Release, ...]:
        """Return every release that is not over."""
        return tuple(self._seen(known) for known in self._known() if not known.over)

    @property
    def ids(self) -> frozenset[str]:
        """What those are known by."""
        return frozenset(known.id for known in self._known() if not known.over)

    def wake(self) -> None:
        """Look soon: a pod is gone, or a source has something to say."""
        self._wake.set()

    def on_offer(self, offer: Offer) -> None:
        """Note which releases' devices have left the offer."""
        shown = {(o.domain.dra_driver, o.name, o.allocation) for o in offer.devices}
        shown |= {(driver, name, "") for driver, name, _ in shown}  # one of no grant: under any
        known = {one.id: one for one in self._known()}
        self._date(known.values())
        self._left = {id_: at for id_, at in self._left.items() if id_ in known}
        for id_, one in known.items():
            if not any((k.dra_driver, k.name, one.grant.allocation) in shown for k in one.keys):
                self._left.setdefault(id_, self._ticks())
            else:
                self._left.pop(id_, None)
        self.wake()

    async def run(self) -> None:
        """Look for ever: often while something is pending."""
        while True:
            with anyio.move_on_after(EVERY):
                await self._wake.wait()
            self._wake = anyio.Event()
            if self._writing():
                try:
                    await self.look()
                except (LedgerError, OSError) as error:
                    _log.warning("releases not looked at why=%r", str(error))

    # -- looking ----------------------------------------------------------------------------------

    async def look(self) -> None:
        """Do once what is to be done now. Raises ``LedgerError``."""
        async with self._looking:
            await self._see_operator()
            untold = [grant for grant in self._granting.book.grants if not grant.told]
            releases = [self._see_to(one) for one in self._known()]
            await _together([*releases, *map(self._tell, untold)])
            if untold:
                await self._granting.refresh()
            self._say_stuck()

    async def _see_to(self, known: KnownRelease) -> None:
        if known.over:
            await self._tell_over(known)
        elif await self._is_free(known):
            await self._end(known)

    async def _see_operator(self) -> None:
        """Take up what an operator has ended; where no source is asked, nobody else looks."""
        cleared = await self._lost.look()
        if cleared or (self._granting.book.releases and await self._granting.is_rewritten()):
            await self._granting.refresh()
            self._touch()

    def _known(self) -> tuple[KnownRelease, ...]:
        lost = self._lost.release()
        return (*self._granting.book.releases, *((lost,) if lost else ()))

    def _seen(self, known: KnownRelease) -> Release:
        """Return a release as policies see it, with the nodes that no live grant shares."""
        release = known.release(left=self._left.get(known.id, 0.0))
        return replace(release, nodes=self._own_nodes(known))

    def _own_nodes(self, known: KnownRelease) -> tuple[DeviceNode, ...]:
        """Return the nodes of a release's devices that nobody else may have open by right."""
        allowed = {
            node.part or node.source
            for one, grant in in_force(self._granting.book)
            if grant.key != (known.grant.source, known.grant.allocation)
            or one.key not in known.keys
            for node in one.device.nodes
        }
        found = {
            (node.part or node.source): node
            for one in known.devices
            for node in one.device.nodes
            if not node.shared
        }
        return tuple(node for name, node in sorted(found.items()) if name not in allowed)

    async def _is_free(self, known: KnownRelease) -> bool:
        """Say whether nobody can be using the devices of a release."""
        if known.id not in self._left:
            return False
        if not known.devices:
            return True
        release = self._seen(known)
        records = await self._ledger.read()
        holds = tuple(record.hold() for record in records)
        users = [*_holding(known, holds), *await self._evidence.users(release, holds)]
        found = tuple(dict.fromkeys(users))
        if self.users.get(known.id) != found:
            self.users[known.id] = found
            self._show()
        return not found

    # -- its end ----------------------------------------------------------------------------------

    async def _end(self, known: KnownRelease) -> None:
        if known.grant.source == LOST:
            await self._lost.clear()
            self._told(known, "release-lost-over")
            self._touch()
            return
        if not await self._ledger.write(lambda db: end_release(db, known)):
            return
        await self._granting.refresh()
        self._touch()
        await self._tell_over(replace(known, over=True))

    async def _tell_over(self, known: KnownRelease) -> None:
        """Tell the source that a release is over; it is forgotten once that is heard.

        Not where the source states the grant again by now: that is about to end the release, or
        the grant is refused, and its end is told when it has one. Nor while devices are in use that
        were taken out of the grant before it ended: it has them all back, or it has not.
        """
        book = self._granting.book
        if not self._granting.settled or known not in book.releases:
            return
        if known.report and known.key in {grant.key for grant in book.grants}:
            await self._free(known)
            return
        if known.report and not self._may_tell(known):
            return
        release = known.release(left=self._left.get(known.id, 0.0))
        if known.report:
            if known.grant.source not in self._relay.implementations(RELEASE):
                if known.grant.source in self._relay.implementations("grant_devices"):
                    await self._forget(known)
                return
            try:
                await self._relay.plugin(
                    RELEASE,
                    known.grant.source,
                    known.id,
                    grant=known.grant,
                    release=release,
                    agent=self._agent,
                )
            except HardpointError as error:
                _log.info("release not reported id=%s why=%r", known.id, str(error))
                return
        await self._forget(known)

    def _may_tell(self, known: KnownRelease) -> bool:
        """Say whether all of a grant is over, and its source can be read: it may state it again."""
        others = (one for one in self._granting.book.releases if one.key == known.key)
        return all(one.over for one in others) and self._granting.answers(known.grant.source)

    async def _free(self, known: KnownRelease) -> None:
        """Let others have the devices of a release whose source is not told of it yet."""
        if known.devices:
            await self._ledger.write(lambda db: keep_release(db, replace(known, devices=())))
            await self._granting.refresh()
            self._touch()

    async def _forget(self, known: KnownRelease) -> None:
        await self._ledger.write(lambda db: forget_release(db, known.id))
        await self._granting.refresh()
        self.users.pop(known.id, None)
        self._told(known, "allocation-released" if known.report else "devices-released")
        self._touch()

    def _told(self, known: KnownRelease, name: str) -> None:
        devices = ", ".join(one.device.name for one in known.devices)
        facts = {"allocation": known.word, "devices": devices}
        self._report(
            Event(name=name, message=f"{known.word}: nobody uses {devices} any more", facts=facts)
        )

    async def _tell(self, known: KnownGrant) -> None:
        """Tell a source what became of a grant."""
        source = known.grant.source
        if source not in self._relay.implementations(GRANT):
            return
        running = self._relay.is_asked(GRANT, source, known.grant.allocation)
        if running and self._telling.get(known.key) != known:
            return  # it is being told what was so before; to join that is not to tell this
        self._telling[known.key] = known
        try:
            await self._relay.plugin(
                GRANT,
                source,
                known.grant.allocation,
                grant=known.grant,
                outcome=known.outcome,
                agent=self._agent,
            )
        except HardpointError as error:
            _log.info("grant not reported allocation=%s why=%r", known.grant.allocation, str(error))
            return
        self._telling.pop(known.key, None)
        await self._ledger.write(lambda db: _mark_told(db, known))
        facts = {"allocation": known.grant.allocation, "outcome": known.outcome.outcome.value}
        self._report(
            Event(
                name="grant-in-force" if known.outcome.in_force else "grant-refused",
                message=f"allocation {known.grant.allocation}: "
                f"{known.outcome.reason or 'its devices are offered'}",
                facts=facts,
                warning=not known.outcome.in_force,
            )
        )

    def _say_stuck(self) -> None:
        said = []
        for known in self._aged():
            devices = ", ".join(one.device.name for one in known.devices)
            users = "; ".join(self.users.get(known.id, ())[:3]) or "that is not known yet"
            said.append(
                f"allocation {known.word} ({devices}) has not been free since it ended: {users}"
            )
        self._conditions.set(STUCK, "PodsHoldDevices", ". ".join(said))

    def _aged(self) -> list[KnownRelease]:
        """Return what is pending for too long; a clock that is set meanwhile changes nothing."""
        pending, ticks = [known for known in self._known() if not known.over], self._ticks()
        self._date(pending)
        ages = {id_: age + ticks - at for id_, (age, at) in self._seen_first.items()}
        return [one for one in pending if ages[one.id] >= STUCK_AFTER]

    def _date(self, releases: Iterable[KnownRelease]) -> None:
        """Note how old each is that is new: at once, for a clock may be set at any moment."""
        now, ticks = self._clock(), self._ticks()
        self._seen_first = {
            one.id: self._seen_first.get(one.id, (max(now - one.since, 0.0), ticks))
            for one in releases
        }

    # -- a node that is handed back ---------------------------------------------------------------

    async def withdraw(self, why: str) -> None:
        """Offer nothing; what is held becomes a release. Durable. Raises ``LedgerError``."""
        book = await self._granting.read()
        if book.withdrawn == why:
            return
        since = self._clock()

        def work(db: sqlite3.Connection) -> None:
            withdraw(db, why)
            held = _all_held(db)
            if held:
                keep_release(db, _drain(held, since))

        await self._ledger.write(work)
        self._report(Event(name="node-withdrawn", message=why, warning=True))
        await self._changed()

    async def resume(self) -> None:
        """Offer again. Raises ``LedgerError``."""
        if not (await self._granting.read()).withdrawn:
            return

        def work(db: sqlite3.Connection) -> None:
            withdraw(db, "")
            forget_release(db, DRAIN)

        await self._ledger.write(work)
        self._report(Event(name="node-resumed", message="what may be offered is offered again"))
        await self._changed()

    async def _changed(self) -> None:
        await self._granting.refresh()
        self._touch()
        self.wake()


async def _together(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do all at once: a policy that hangs holds up its own. Raises the first ``LedgerError``."""
    failed: list[Exception] = []

    async def do(work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (LedgerError, OSError) as error:
            failed.append(error)

    async with anyio.create_task_group() as tasks:
        for work in works:
            tasks.start_soon(do, work)
    if failed:
        raise failed[0]


def _all_held(db: sqlite3.Connection) -> tuple[Meant, ...]:
    """Return every device that is held, at this moment: no claim takes one after it."""
    records = [read_row(db, row["id"]) for row in db.execute("SELECT id FROM holds").fetchall()]
    found = [Meant(one.claim.dra_driver, one.device) for one in records]
    return tuple({one.key: one for one in found}.values())


def _drain(held: tuple[Meant, ...], since: float) -> KnownRelease:
    grant = Grant(allocation="", source=DRAIN)
    return KnownRelease(id=DRAIN, grant=grant, devices=held, since=since, report=False)


def _mark_told(db: sqlite3.Connection, known: KnownGrant) -> None:
    """Note that a source was told, unless the grant is another by now."""
    if known in book_of(db.execute(READ)).grants:
        keep_grant(db, replace(known, told=True))


def _holding(known: KnownRelease, holds: Iterable[Hold]) -> Sequence[str]:
    """Return who the ledger itself says has one of the devices."""
    names = {(key.dra_driver, key.name) for key in known.keys}
    allocation = known.grant.allocation
    return [
        f"{hold.claim.name} of {hold.claim.namespace}"
        if is_allocation(hold.claim)
        else f"claim {hold.claim}"
        for hold in holds
        if (hold.claim.dra_driver, hold.device.name) in names
        and (not allocation or hold.allocation in ("", allocation))
    ]
