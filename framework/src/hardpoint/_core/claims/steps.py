"""The steps of a hold's life, each durable before the next.

Forth: ledger PREPARING, ``prepare_device``, delivery, CDI file, ledger HELD, answer. Back: ledger
RELEASING, ``unprepare_device``, CDI file gone, answer, ``release_device``, gone. Whoever takes
steps holds the claim's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from hardpoint import cdi
from hardpoint._core.claims.admission import parameters_of
from hardpoint._core.claims.composing import Composer
from hardpoint._core.claims.ports import Granted, Hooks, NothingGoverned
from hardpoint._core.ledger.ledger import Ledger, Record
from hardpoint._core.ledger.records import Result
from hardpoint._core.offer.standing import Standing, standing
from hardpoint.allocation import is_allocation
from hardpoint.cdi_files import CdiDirectory
from hardpoint.errors import (
    HardpointError,
    HoldBusy,
    HoldConflict,
    HoldDenied,
    HoldError,
    HoldFailed,
    HookFault,
    HookLate,
    Refuse,
    TryAgain,
)
from hardpoint.grants import GrantedDevice
from hardpoint.model import (
    Claim,
    Delivery,
    Device,
    Event,
    HoldState,
    Offer,
    Part,
    PreparedDevice,
    parts_of,
)
from hardpoint.node import Node

TRIES = 3
"""Failures of ``unprepare_device`` after which a device is quarantined and its pod may end."""

PREPARE, UNPREPARE, RELEASE = "prepare_device", "unprepare_device", "release_device"
EFFECTS = (PREPARE, UNPREPARE, RELEASE)
"""The hooks that change hardware."""

_Failure: TypeAlias = tuple[Record, HardpointError]


@dataclass(frozen=True, slots=True)
class Renewal:
    """A hold made true again, and why its claim is refused if its device is not to be used."""

    result: Result
    refused: HoldError | None = None
    again: bool = False
    """True where it may come right without a word from anybody: it is tried again."""
    conflict: bool = False
    """True where that is because another claim has what the device is delivered by now."""


class Steps:
    """Takes holds one step forth or back."""

    def __init__(
        self,
        *,
        node: Node,
        hooks: Hooks,
        ledger: Ledger,
        files: CdiDirectory,
        offer: Callable[[], Offer],
        report: Callable[[Event], None],
        granted: Granted | None = None,
    ) -> None:
        self._granted = granted or NothingGoverned()
        self.node, self.hooks, self.ledger, self.files = node, hooks, ledger, files
        self.offer, self.report = offer, report
        self.composer = Composer(node, hooks, report)
        self.boot_id = node.boot_id

    # -- forth ------------------------------------------------------------------------------------

    async def make(self, record: Record, claim: Claim, device: Device, parameters: Any) -> Result:
        """Let the driver change the hardware, and compose what the holder receives.

        Admin access looks at what another claim may have: nothing is changed for it, nor undone.
        """
        if record.allotment.admin_access:
            return await self.compose(record, claim, device, parameters)
        hold = record.hold(partial(self.ledger.remember, record))
        await self.hooks.owner(
            PREPARE,
            device.driver,
            record.subject,
            device=device,
            claim=claim,
            parameters=parameters,
            hold=hold,
        )
        if self.hooks.implements(device.driver, PREPARE):  # policies see what it has remembered
            record = await self._as_remembered(record)
        return await self.compose(record, claim, device, parameters)

    async def compose(
        self, record: Record, claim: Claim, device: Device, parameters: Any
    ) -> Result:
        """Compose what the holder of a device that is prepared already receives."""
        delivery = await self.composer.compose(record, claim, device, parameters)
        return self._result(record, delivery, self.boot_id)

    def _by_grant(self, record: Record, delivery: Delivery) -> GrantedDevice | None:
        """Return how the grant's own CDI file delivers what a holder receives; None if it is ours.

        It is where a policy has taken one of the nodes away that the file would deliver.
        """
        entry = self._granted.entry(record)
        if entry is None or not entry.cdi_id:
            return None
        theirs = {node.path for node in entry.nodes}
        return entry if theirs <= {node.path for node in delivery.nodes} else None

    async def renew(self, record: Record, claim: Claim, offer: Offer) -> Renewal:
        """Make a hold true again: for this boot, these node numbers, and this offer.

        Raises what hooks raise, and ``TryAgain`` where nothing can be said yet.
        """
        place, device = standing(record, offer)
        if place is Standing.WITHHELD:
            return self._sentinel(record, cdi.WITHHELD, "may not be used any more", "revoked")
        if place is Standing.ABSENT:
            return self._sentinel(record, cdi.ABSENT, "is not on the node", "absent")
        current = record.boot_id == self.boot_id
        if place is Standing.UNKNOWN:
            if current and record.delivery is not None:
                return Renewal(self._result(record, record.delivery, self.boot_id))
            raise TryAgain(f"the driver of device {device.name} has not answered yet")
        parameters = parameters_of(self.hooks, claim, record.allotment, device.driver)
        try:
            if current:
                result = await self.compose(record, claim, device, parameters)
            else:
                result = await self.make(record, claim, device, parameters)
            await self._cover(record, device, result.delivery)
        except TryAgain as error:  # what its numbers name now may be another device
            sentinel = self._sentinel(record, cdi.ABSENT, f"is not ready: {error}", "try-again")
            return replace(sentinel, again=True)
        except HoldConflict as error:
            sentinel = self._sentinel(record, cdi.ABSENT, f"is not ready: {error}", error.reason)
            return replace(sentinel, again=True, conflict=True)
        return Renewal(result)

    async def _cover(self, record: Record, device: Device, delivery: Delivery) -> None:
        """Hold the parts of every node that is delivered now, before it is delivered."""
        if record.allotment.admin_access:
            return
        covered: tuple[Part, ...] = ()
        if record.delivery is not None and record.boot_id == self.boot_id:
            covered = parts_of(record.device, record.delivery.nodes)
        wanted = parts_of(device, delivery.nodes)
        if not set(wanted) <= set(covered):
            await self.ledger.cover(record, wanted)

    def _sentinel(self, record: Record, word: str, why: str, reason: str) -> Renewal:
        error = f"device {record.device.name} {why}"
        refused = HoldDenied(error, reason) if word == cdi.WITHHELD else HoldFailed(error, reason)
        delivery = cdi.sentinel(record.cdi_vendor, word)
        return Renewal(self._result(record, delivery, record.boot_id), refused)

    def _result(self, record: Record, delivery: Delivery, boot_id: str) -> Result:
        own = cdi.qualified(record.cdi_vendor, record.cdi_name)
        granted = self._by_grant(record, delivery)
        foreign = (*delivery.cdi_devices, *((granted.cdi_id,) if granted else ()))
        if record.answer is not None and cdi.is_sentinel(delivery):
            return Result(record, delivery, record.answer, boot_id)
        answer = PreparedDevice(
            request=record.allotment.base_request,
            pool=record.allotment.pool,
            device=record.allotment.published or record.allotment.device,
            cdi_ids=(own, *foreign),
            share_id=record.allotment.share_id,
        )
        return Result(record, delivery, answer, boot_id)

    async def write_files(
        self, uid: str, changed: Mapping[int, Delivery], gone: Collection[int] = ()
    ) -> bool:
        """Make a claim's CDI files say what its holds deliver; return whether they had to change.

        A file holds all of a claim's devices under one vendor, also those of another DRA driver.
        """
        records = [r for r in await self.ledger.of_claim(uid) if not r.retired]
        found = {record.cdi_vendor: list[tuple[str, Delivery]]() for record in records}
        for record in records:
            delivery = changed.get(record.id, self._in_this_boot(record))
            if record.id not in gone and delivery is not None:
                found[record.cdi_vendor].append((record.cdi_name, self._in_file(record, delivery)))
        return await self.composer.in_thread(lambda: self._write_files(uid, found))

    def _in_file(self, record: Record, delivery: Delivery) -> Delivery:
        """Return what of a delivery the runtime finds in the claim's CDI file.

        Each id of a device plugin allocation has a file of its own, and of one variable in two
        files the container has the last. So the variables of those are the frontend's to pass: it
        knows which ids one container has, and merges them. And what the grant's own file delivers
        is not said twice.
        """
        granted = self._by_grant(record, delivery)
        if granted is not None:
            theirs = {node.path for node in granted.nodes}
            delivery = replace(
                delivery, nodes=tuple(one for one in delivery.nodes if one.path not in theirs)
            )
        return replace(delivery, env={}) if is_allocation(record.claim) else delivery

    def _in_this_boot(self, record: Record) -> Delivery | None:
        """Return what a hold delivers; numbers of another boot may name anything in this one."""
        if record.delivery is None or record.boot_id == self.boot_id:
            return record.delivery
        return cdi.sentinel(record.cdi_vendor, cdi.ABSENT)

    def _write_files(self, uid: str, found: Mapping[str, list[tuple[str, Delivery]]]) -> bool:
        changed = False
        for vendor, devices in found.items():
            if devices:
                changed |= self.files.write(vendor, uid, devices)
            else:
                changed |= self.files.remove(vendor, uid)
        return changed

    async def keep(self, renewals: Sequence[Renewal], *, anew: bool = False) -> bool:
        """Write down renewed holds, files first; return whether anything had to change.

        With ``anew`` they are written also where nothing differs: somebody has asked for them now.
        """
        results = [renewal.result for renewal in renewals]
        if not results:
            return False
        changed = {result.record.id: result.delivery for result in results}
        written = await self.write_files(results[0].record.claim.uid, changed)
        different = [result for result in results if anew or _differs(result)]
        if different:
            await self.ledger.hold(different)
        return written or bool(different)

    # -- back -------------------------------------------------------------------------------------

    def running(self, record: Record, *hooks: str) -> bool:
        """Say whether a call to the hold's driver still runs."""
        driver = record.device.driver
        return any(self.hooks.running(driver, hook, record.subject) for hook in hooks)

    async def undo(self, records: Sequence[Record]) -> None:
        """Undo holds of one claim, the last first, and end them.

        One that its driver failed to undo three times, or whose record cannot be read, ends as a
        quarantine of its device. Raises ``HoldError`` while one is left.
        """
        if not records:
            return
        held = [r for r in records if r.state is HoldState.HELD]
        if held:  # one that is still PREPARING is half done on disk already
            await self.ledger.release(held)
        failures: list[_Failure] = []
        undone = []
        for record in reversed([r for r in records if r.readable]):
            try:
                await self.unprepare(record)
            except (HookFault, TryAgain, Refuse) as error:
                failures.append((record, error))
            else:
                undone.append(record)
        quarantined, left = await self._count(failures)
        quarantined += [(r, HoldFailed(r.why)) for r in records if not r.readable]
        ended = [*undone, *(record for record, _ in quarantined)]
        await self.write_files(records[0].claim.uid, {}, {record.id for record in ended})
        for record, failure in quarantined:
            await self.quarantine(record, str(failure))
        await self.end(undone)
        if left:
            raise _unfinished(*left[0])

    async def unprepare(self, record: Record) -> None:
        """Let the driver undo what it did for a hold. Raises what the hook raises."""
        driver, subject = record.device.driver, record.subject
        if self.running(record, PREPARE):  # asking again joins the call, and starts none
            await self._join_prepare(record)
        if not record.undo:
            return
        if not self.hooks.implements(driver, UNPREPARE):
            raise HookFault(driver, UNPREPARE, "the driver is not running")
        place, device = standing(record, self.offer())
        hold = (await self._as_remembered(record)).hold(partial(self.ledger.remember, record))
        await self.hooks.owner(
            UNPREPARE,
            driver,
            subject,
            device=None if place is Standing.ABSENT else device,
            hold=hold,
        )

    async def _as_remembered(self, record: Record) -> Record:
        """Return a record with what its driver has remembered since it was read."""
        found = [one for one in await self.ledger.read() if one.id == record.id]
        return found[0] if found else record

    async def _join_prepare(self, record: Record) -> None:
        try:
            await self.hooks.owner(PREPARE, record.device.driver, record.subject)
        except HookLate:
            raise
        except (HookFault, TryAgain, Refuse):
            pass  # it ended; how does not matter to what comes

    async def _count(self, failures: Sequence[_Failure]) -> tuple[list[_Failure], list[_Failure]]:
        """Count failures; return those that are to be quarantined, and those to be tried again."""
        quarantined: list[_Failure] = []
        left: list[_Failure] = []
        for record, error in failures:
            tries = await self.ledger.fail(record, str(error))
            gone = record.undo and not self.hooks.implements(record.device.driver, UNPREPARE)
            (quarantined if tries >= TRIES or gone else left).append((record, error))
        return quarantined, left

    async def quarantine(self, record: Record, why: str) -> None:
        """Withhold a device until its driver undoes the hold, or an operator clears it."""
        await self.ledger.retire(record, HoldState.QUARANTINED, why)
        self.report(
            Event(
                name="device-quarantined",
                message=f"device {record.device.name} is withheld: what was done for "
                f"{record.holder} could not be undone: {why}",
                facts={"device": record.device.name, "claim": str(record.claim)},
                warning=True,
            )
        )

    async def end(self, records: Sequence[Record]) -> None:
        """End holds that are undone; a device that its driver scrubs stays withheld until it is."""
        scrubbed = [r for r in records if self.is_scrubbed(r)]
        for record in scrubbed:
            await self.ledger.retire(record, HoldState.RELEASING)
        await self.ledger.forget([record for record in records if record not in scrubbed])

    def is_scrubbed(self, record: Record) -> bool:
        """Say whether the driver releases a device after a hold on it."""
        if record.allotment.admin_access:
            return False
        return self.hooks.implements(record.device.driver, RELEASE)


def _differs(result: Result) -> bool:
    record = result.record
    return (
        record.delivery != result.delivery
        or record.answer != result.answer
        or record.boot_id != result.boot_id
        or record.tries != 0
    )


def _unfinished(record: Record, error: HardpointError) -> HoldError:
    if isinstance(error, HookLate):
        return HoldBusy(record.holder, error.hook)
    return HoldFailed(f"device {record.device.name} of {record.holder} is not undone: {error}")
