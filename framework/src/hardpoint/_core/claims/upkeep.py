"""What becomes of holds when nobody asks: at start, on a new offer, and with time.

Every part takes the claim's lock like a call of the kubelet's, but does not wait long for it: a
claim that is busy is made true by the call that has it, and looked at again afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import anyio

from hardpoint._core.claims.rebuilding import adopt, rebuild
from hardpoint._core.claims.steps import RELEASE, Renewal, Steps
from hardpoint._core.ledger.ledger import Record
from hardpoint._core.ledger.records import claim_of
from hardpoint.allocation import Assignment
from hardpoint.cdi_files import ClaimFile
from hardpoint.errors import (
    HardpointError,
    HoldBusy,
    HookFault,
    LedgerError,
    Refuse,
    TryAgain,
)
from hardpoint.model import ClaimKey, Domain, Event, HoldState, Offer

_log = logging.getLogger("hardpoint.upkeep")

GRACE = 60.0
"""Seconds that a CDI file without a hold is left alone, from the start of the agent."""

_ORPHANS = 300.0
_PATIENCE = 0.2
_PAUSE = 5.0
_FIRST, _LAST = 10.0, 3600.0
_TOGETHER = 16
_BEGIN, _LOOK = "begin", "missing files"

_Work: TypeAlias = tuple[object, Callable[[], Awaitable[None]]]
"""What is to be done, and the name under which it is done once at a time."""


class Upkeep:
    """Restores, refreshes, releases and retries."""

    def __init__(
        self,
        steps: Steps,
        *,
        turn: Callable[..., AbstractAsyncContextManager[Any]],
        kept: Callable[[], tuple[str, ...]],
        domains: Callable[[], Iterable[Domain]],
        listed: Callable[[], Awaitable[None]],
        writing: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._steps, self._ledger, self._files = steps, steps.ledger, steps.files
        self._turn, self._kept, self._domains, self._listed = turn, kept, domains, listed
        self._writing, self._clock = writing, clock
        self._started = clock()
        self._missed: dict[str, ClaimKey] = {}
        self._doing: set[object] = set()
        self._telling: dict[object, str] = {}
        self._failing: set[int] = set()
        self._bad_files: set[str] = set()
        self._orphans_due = self._started + GRACE
        self._wake: anyio.Event | None = None
        self.unknown = ""
        """Why it cannot be said what is held: until then nothing new may be."""

    # -- at start ---------------------------------------------------------------------------------

    async def restore(self) -> None:
        """Make every hold true again, or end it where it was half done."""
        if self._ledger.damage is not None:
            message = f"{self._ledger.damage}; kept as {self._ledger.aside}, begun anew"
            self._tell("ledger-damaged", message)
        try:
            await self._begin()
        except (HardpointError, OSError) as error:
            self.unknown = str(error)
            self._tell_once(_BEGIN, self.unknown)
        await self._sweep()
        await self._for_each(await self._keys(), self._settle)

    async def _begin(self) -> None:
        """Forget numbers of another boot, and find the holds of a ledger that was lost."""
        await self._ledger.drop_numbers(self._steps.boot_id)
        if self._ledger.rebuilding:
            turn = partial(self._turn, patience=_PATIENCE)
            await rebuild(self._steps, self._domains(), self._vendors(), turn, self._listed)

    async def _begin_again(self) -> None:
        """Do what could not be done at the start, since a disk was full or a directory away."""
        await self._begin()
        self.unknown = ""
        await self._for_each(await self._keys(), self._settle)

    async def _settle(self, key: ClaimKey) -> None:
        async with self._turn(key, patience=_PATIENCE):
            records = [r for r in await self._ledger.of_claim(key.uid) if _active(r)]
            half_done = [r for r in records if r.state is not HoldState.HELD]
            await self._renew(
                [r for r in records if r.state is HoldState.HELD], self._steps.offer()
            )
            await self._steps.undo(half_done)

    async def _sweep(self) -> None:
        """Remove temporary files of a process that died; one that lives holds the claim's lock."""
        try:
            left = await self._in_thread(lambda: self._files.leftovers(self._vendors()))
        except OSError as error:
            self._tell_once(_LOOK, f"the CDI directory cannot be read: {error}")
            return
        for vendor, uid in left:
            with_lock = ClaimKey(uid, "", "", "")
            remove = partial(self._files.remove_leftover, vendor, uid)
            try:
                async with self._turn(with_lock, patience=_PATIENCE):
                    await self._in_thread(remove)
            except (HoldBusy, OSError):
                continue

    # -- on a new offer ---------------------------------------------------------------------------

    async def refresh(self, offer: Offer) -> None:
        """Let the CDI files of held claims follow the offer; what is the same is not written."""
        await self._for_each(await self._keys(), partial(self._refresh, offer))

    async def adopt(self, assignment: Assignment) -> bool:
        """Hold what a pod has under an id and nothing holds; its CDI file is made true with it."""
        if not await adopt(self._steps, assignment, partial(self._turn, patience=_PATIENCE)):
            return False
        await self._retry(assignment.key)
        return True

    async def _refresh(self, offer: Offer, key: ClaimKey) -> None:
        async with self._turn(key, patience=_PATIENCE):
            records = [r for r in await self._ledger.of_claim(key.uid) if _active(r)]
            await self._renew([r for r in records if r.state is HoldState.HELD], offer)

    async def _renew(self, records: Sequence[Record], offer: Offer) -> None:
        """Renew the holds of one claim; one that fails leaves the others renewed."""
        renewals: list[Renewal] = []
        faults: list[tuple[Record, Exception]] = []
        for driver in dict.fromkeys(record.claim.dra_driver for record in records):
            own = tuple(record for record in records if record.claim.dra_driver == driver)
            for record in own:
                try:
                    renewals.append(await self._steps.renew(record, claim_of(own), offer))
                except (HardpointError, OSError) as fault:
                    faults.append((record, fault))
        if await self._steps.keep(renewals):
            claim = str(records[0].claim)
            devices = ", ".join(record.device.name for record in records)
            message = f"claim {claim}: what it delivers has changed"
            facts = {"claim": claim, "devices": devices}
            self._steps.report(Event(name="claim-refreshed", message=message, facts=facts))
        faults += [(r.result.record, r.refused) for r in renewals if r.conflict and r.refused]
        self._failing -= {r.result.record.id for r in renewals if not r.conflict}
        self._missed |= {
            r.result.record.claim.uid: r.result.record.claim for r in renewals if r.again
        }
        for record, problem in faults:
            if record.id not in self._failing and not isinstance(problem, TryAgain):
                self._tell("hold-not-renewed", f"device {record.device.name}: {problem}")
                self._failing.add(record.id)
            self._missed[record.claim.uid] = record.claim

    # -- with time --------------------------------------------------------------------------------

    def wake(self) -> None:
        """Look at once whether there is something to do."""
        if self._wake is not None:
            self._wake.set()

    async def tend(self) -> None:
        """Do what is due, for ever; a slow release holds up nothing else."""
        async with anyio.create_task_group() as tasks:
            while True:
                self._wake = anyio.Event()
                for name, work in await self._due():
                    tasks.start_soon(self._do, name, work)
                with anyio.move_on_after(_PAUSE):
                    await self._wake.wait()

    async def attend(self) -> None:
        """Do once what is due, and wait for it."""
        async with anyio.create_task_group() as tasks:
            for name, work in await self._due():
                tasks.start_soon(self._do, name, work)

    async def _due(self) -> list[_Work]:
        missed, self._missed = self._missed, {}
        due: list[_Work] = [
            (f"missed {uid}", partial(self._retry, key)) for uid, key in missed.items()
        ]
        due += [(f"kept {u}", partial(self._let_go, ClaimKey(u, "", "", ""))) for u in self._kept()]
        if self.unknown:
            due.append((_BEGIN, self._begin_again))
        if not self._writing():
            return due
        waiting = [r for r in await self._records() if r.retired and r.readable and self._is_due(r)]
        due += [(record.id, partial(self._finish, record)) for record in waiting]
        due += [
            (f"missed {key.uid}", partial(self._write_again, key)) for key in await self._bare()
        ]
        wait = self._orphans_due - self._clock()
        if not 0 < wait <= _ORPHANS and not self._ledger.rebuilding:  # nor if the clock was set
            due.append(("orphans", self._collect_orphans))
        return due

    async def _retry(self, key: ClaimKey) -> None:
        try:
            await self._refresh(self._steps.offer(), key)
        except Exception:
            self._missed[key.uid] = key
            raise

    async def _bare(self) -> list[ClaimKey]:
        """Return claims that are held and have no CDI file: somebody emptied the directory."""
        held = [r for r in self._ledger.latest if _active(r) and r.state is HoldState.HELD]
        if not held:
            return []
        wanted = {(r.cdi_vendor, r.claim.uid): r.claim for r in held}
        try:
            missing = await self._in_thread(lambda: self._files.missing(wanted))
        except OSError as error:
            self._tell_once(_LOOK, f"the CDI directory cannot be read: {error}")
            return []
        self._telling.pop(_LOOK, None)
        return list({key.uid: key for key in wanted.values() if key.uid in missing}.values())

    async def _write_again(self, key: ClaimKey) -> None:
        if f"missed {key.uid}" not in self._telling:
            self._tell("cdi-missing", f"the CDI file of claim {key} was removed; written again")
        await self._retry(key)

    async def _do(self, name: object, work: Callable[[], Awaitable[None]]) -> None:
        if name in self._doing:
            return
        self._doing.add(name)
        try:
            await work()
        except HoldBusy:
            pass
        except (HardpointError, OSError) as error:
            self._tell_once(name, str(error))
        except Exception as error:  # noqa: BLE001 - one claim's must not be all claims'
            _log.debug("upkeep failed what=%s", name, exc_info=error)
            self._tell_once(name, f"{name}: {type(error).__name__}")
        else:
            self._telling.pop(name, None)
        finally:
            self._doing.discard(name)

    def _tell_once(self, name: object, what: str) -> None:
        """Tell of a failure that is tried again every few seconds, until it is another one."""
        if self._telling.get(name) != what:
            self._telling[name] = what
            self._tell("upkeep-failed", what)

    def _is_due(self, record: Record) -> bool:
        if not record.tries and record.state is HoldState.RELEASING:
            return True
        delay = min(_FIRST * (1 << min(record.tries, 20)), _LAST)
        passed = self._clock() - record.changed
        return passed >= delay or passed < -_LAST  # a clock that was set back must not stop it

    async def _let_go(self, key: ClaimKey) -> None:
        async with self._turn(key, patience=_PATIENCE):
            return  # the lock goes back unless a call into the claim's driver still runs

    async def finish(self, record: Record) -> None:
        """Release or undo a device that waits, now; who waits no longer leaves it to ``tend``."""
        await self._do(record.id, partial(self._finish, record))

    async def _finish(self, record: Record) -> None:
        """Release or undo a device that waits, under a lock of its own: its claim may be back."""
        key = replace(record.claim, uid=record.lock)
        async with self._turn(key, patience=_PATIENCE):
            if record not in await self._ledger.read():
                return
            try:
                if record.state is HoldState.QUARANTINED:
                    await self._steps.unprepare(record)
                else:
                    await self._release(record)
            except (HookFault, TryAgain, Refuse) as error:
                await self._ledger.fail(record, str(error))
                return
            if record.state is HoldState.QUARANTINED:
                await self._steps.end([record])
            else:
                await self._ledger.forget([record])
        message = f"device {record.device.name} is free after {record.claim}"
        facts = {"device": record.device.name, "claim": str(record.claim)}
        self._steps.report(Event(name="device-released", message=message, facts=facts))
        self.wake()

    async def _release(self, record: Record) -> None:
        hook, device = RELEASE, record.device
        if not self._steps.hooks.implements(device.driver, hook):
            raise HookFault(device.driver, hook, "the driver is not running")
        hold = record.hold(partial(self._ledger.remember, record))
        await self._steps.hooks.owner(hook, device.driver, record.subject, device=device, hold=hold)

    async def _collect_orphans(self) -> None:
        """Remove CDI files of ours that no hold is behind.

        Never one from after this start, and none within a minute of it (google/dranet#232).
        """
        self._orphans_due = self._clock() + _ORPHANS
        good, bad = await self._in_thread(lambda: self._files.claims(self._vendors()))
        fresh = {str(file.path) for file in bad} - self._bad_files
        self._bad_files = {str(file.path) for file in bad}
        for file in bad:
            if str(file.path) in fresh:
                self._tell("cdi-unreadable", f"{file.path}: {file.reason}")
        for file in good:
            if file.modified < self._started:
                await self._remove_orphan(file)

    async def _remove_orphan(self, file: ClaimFile) -> None:
        async with self._turn(ClaimKey(file.uid, "", "", ""), patience=_PATIENCE):
            records = await self._ledger.of_claim(file.uid)
            if any(not r.retired and r.cdi_vendor == file.vendor for r in records):
                return
            await self._in_thread(lambda: self._files.remove(file.vendor, file.uid))
        self._tell("cdi-orphan", f"{file.path} is removed: no claim is held under its name")

    async def remove_files(self, uid: str) -> None:
        """Remove what a claim that is not held may have left in the CDI directory."""

        def remove() -> None:
            for vendor in self._vendors():
                self._files.remove(vendor, uid)

        try:
            await self._in_thread(remove)
        except OSError as error:  # nothing is held by it: it is looked at again as an orphan
            self._tell_once(f"remove {uid}", str(error))
        else:
            self._telling.pop(f"remove {uid}", None)

    # -- quarantine -------------------------------------------------------------------------------

    def quarantined(self) -> dict[tuple[str, str], str]:
        """Return devices that nobody may have now, by DRA driver and name, and why."""
        return {
            (r.claim.dra_driver, r.device.name): r.why or f"{r.holder} is not over"
            for r in self._ledger.latest
            if r.retired or r.state is HoldState.QUARANTINED
        }

    async def clear_quarantine(self, device: str, who: str) -> int:
        """Forget that a device could not be undone or released: an operator says that it is."""
        found = [
            record
            for record in await self._ledger.read()
            if record.device.name == device
            and (record.retired or record.state is HoldState.QUARANTINED)
        ]
        if found:
            claims = [record.claim.uid for record in found]
            await self._ledger.audit(who, "quarantine clear", {"device": device, "claims": claims})
            await self._ledger.forget(found)
        return len(found)

    # -- small things -----------------------------------------------------------------------------

    async def _records(self) -> tuple[Record, ...]:
        try:
            return await self._ledger.read()
        except LedgerError as error:
            self._tell("upkeep-failed", str(error))
            return ()

    async def _keys(self) -> list[ClaimKey]:
        """Return one key for each claim that is held."""
        records = await self._ledger.read()
        return list({r.claim.uid: r.claim for r in records if _active(r)}.values())

    async def _for_each(
        self, keys: Iterable[ClaimKey], work: Callable[[ClaimKey], Awaitable[None]]
    ) -> None:
        """Do work for each claim, several at once; a claim that fails costs no other."""
        limit = anyio.Semaphore(_TOGETHER)

        async def one(key: ClaimKey) -> None:
            async with limit:
                try:
                    await work(key)
                except (HardpointError, OSError) as error:
                    self._missed[key.uid] = key
                    if not isinstance(error, HoldBusy):
                        self._tell("hold-not-restored", f"claim {key}: {error}")
                except Exception as error:  # noqa: BLE001 - as above
                    self._missed[key.uid] = key
                    _log.exception("a hold was not made true claim=%s", key)
                    self._tell("hold-not-restored", f"claim {key}: {type(error).__name__}")

        async with anyio.create_task_group() as tasks:
            for key in keys:
                tasks.start_soon(one, key)

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await self._steps.composer.in_thread(work)

    def _vendors(self) -> tuple[str, ...]:
        recorded = {record.cdi_vendor for record in self._ledger.latest}
        return tuple(sorted(recorded | {domain.cdi_vendor for domain in self._domains()}))

    def _tell(self, name: str, message: str) -> None:
        self._steps.report(Event(name=name, message=message, warning=True))


def _active(record: Record) -> bool:
    return record.readable and not record.retired
