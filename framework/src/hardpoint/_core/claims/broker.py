"""The broker: claims in, prepared devices out, and back; every hold durable, every order kept.

The order of truth is in ``steps``. What happens at start, when nodes are renumbered and when
nobody asks is in ``upkeep``.
"""

from __future__ import annotations

import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Container,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import anyio

from hardpoint._core.claims.admission import Admission, Admitted
from hardpoint._core.claims.ports import Granted, Hooks, NothingGoverned
from hardpoint._core.claims.steps import EFFECTS, Steps
from hardpoint._core.claims.upkeep import Upkeep
from hardpoint._core.ledger.ledger import Ledger, Record
from hardpoint._core.ledger.locks import ClaimLocks, Turn
from hardpoint._core.ledger.records import Result, claim_of
from hardpoint._core.offer.inventory import QUARANTINED
from hardpoint.allocation import Assignment
from hardpoint.cdi_files import CdiDirectory
from hardpoint.errors import (
    BadValue,
    HardpointError,
    HoldBusy,
    HoldConflict,
    HoldDenied,
    HoldError,
    HoldFailed,
    HookFault,
    HookLate,
    LedgerError,
    Refuse,
    TryAgain,
    WrongClaim,
)
from hardpoint.model import (
    Claim,
    ClaimKey,
    Delivery,
    Domain,
    Event,
    Hold,
    HoldState,
    Offer,
    PreparedDevice,
    parts_of,
)
from hardpoint.node import Node

_PATIENCE = 0.2
"""Seconds that what nobody waits for waits for its turn."""
_LOOK = 0.01
_SCRUB = 5.0
"""Seconds that ``Allocate`` waits for a scrubbing: no other pod is admitted meanwhile."""


async def nothing_listed() -> None:
    """Find no allocation that a pod has: nobody can be asked."""


class Broker:
    """Holds devices for claims. ``tend`` has to run beside it."""

    def __init__(
        self,
        *,
        node: Node,
        hooks: Hooks,
        ledger: Ledger,
        files: CdiDirectory,
        locks: ClaimLocks,
        offer: Callable[[], Offer],
        domains: Callable[[], Iterable[Domain]],
        report: Callable[[Event], None],
        listed: Callable[[], Awaitable[None]] = nothing_listed,
        writing: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
        granted: Granted | None = None,
    ) -> None:
        self._ledger, self._locks, self._offer, self._report = ledger, locks, offer, report
        self._steps = Steps(
            node=node,
            hooks=hooks,
            ledger=ledger,
            files=files,
            offer=offer,
            report=report,
            granted=granted,
        )
        self._granted = granted or NothingGoverned()
        self._admission = Admission(hooks, ledger, self._steps.composer, self._granted)
        self._upkeep = Upkeep(
            self._steps,
            turn=self._turn,
            kept=locks.kept,
            domains=domains,
            listed=listed,
            writing=writing,
            clock=clock,
        )

    # -- claims -----------------------------------------------------------------------------------

    async def prepare(
        self, key: ClaimKey, read: Callable[[], Awaitable[Claim]]
    ) -> tuple[PreparedDevice, ...]:
        """Hold a claim's devices and write its CDI file; the same answer every time.

        ``read`` fetches the claim, under its lock; it is not called for a claim that is held.
        Raises ``HoldError``, or what ``read`` raises.
        """
        with self._telling_refusals(key):
            async with self._turn(key) as turn:
                results = await self._prepare(turn, key, read)
        return tuple(result.answer for result in results)

    async def unprepare(self, key: ClaimKey) -> None:
        """End a claim's holds. Success for an unknown claim. Raises ``HoldError``."""
        with _as_hold_errors():
            async with self._turn(key, ends=True):
                records = await self._of_key(key)
                await self._steps.undo(records)
                if not await self._ledger.of_claim(key.uid):
                    await self._upkeep.remove_files(key.uid)
        if records:
            self._tell("claim-unprepared", key, records)
            self._upkeep.wake()

    async def assign(
        self, claim: Claim, is_over: Callable[[ClaimKey], Awaitable[bool]]
    ) -> tuple[Result, bool]:
        """Hold the one device of an allocation; return also whether it is held anew.

        One that is held already is ended first where its driver undoes or scrubs and who had it
        ``is_over``: nothing of theirs may reach the next. Else it is written down again, so that
        nobody who looked for its users before this moment ends it. Raises ``HoldError``.
        """

        async def read() -> Claim:
            return claim

        key, wanted = claim.key, claim.allotments[0].device
        with self._telling_refusals(key):
            async with self._turn(key) as turn:
                records = await self._of_key(key)
                await self._steps.undo([r for r in records if r.device.name != wanted])
                had = [r for r in records if r.device.name == wanted]
                anew = not any(r.state is HoldState.HELD for r in had)
                if not anew and self._cleans(had) and await is_over(key):
                    await self._end_before(key, had)
                    anew = True
                (result,) = await self._prepare(turn, key, read, anew=True)
                (written,) = await self._of_key(key)
                return replace(result, record=written), anew

    def _cleans(self, records: Iterable[Record]) -> bool:
        """Say whether anything is done to a device when a hold on it ends."""
        return any(r.undo or self._steps.is_scrubbed(r) for r in records)

    async def _end_before(self, key: ClaimKey, records: Sequence[Record]) -> None:
        """End what a pod had that is over, and scrub its device while the next one waits a little.

        What takes longer goes on, and withholds the device until it is done.
        """
        await self._steps.undo(records)
        self._tell("allocation-ended", key, records)
        ended = {record.id for record in records}
        devices = {record.device.name for record in records}
        with anyio.move_on_after(_SCRUB):
            for left in await self._ledger.of_claim(key.uid):
                if left.id in ended:
                    await self._upkeep.finish(left)
            while self._is_withheld(devices):  # noqa: ASYNC110 - until the offer is made again
                await anyio.sleep(_LOOK)

    def _is_withheld(self, devices: Container[str]) -> bool:
        """Say whether a device is withheld for its last holder's sake."""
        withheld = self._offer().withheld
        return any(one.rule == QUARANTINED and one.subject in devices for one in withheld)

    async def give_back(self, record: Record) -> bool:
        """End a hold that nobody asks to end, unless it was written since; say whether it ended.

        Raises ``HoldError``; it is left as it is, or half undone, then.
        """
        with _as_hold_errors():
            async with self._turn(record.claim, patience=_PATIENCE):
                if record not in await self._of_key(record.claim):
                    return False
                await self._steps.undo([record])
        self._tell("allocation-ended", record.claim, [record])
        self._upkeep.wake()
        return True

    async def adopt(self, assignment: Assignment) -> bool:
        """Hold what a pod has already; say whether nothing did. Raises ``HoldError``."""
        with _as_hold_errors():
            return await self._upkeep.adopt(assignment)

    def holds(self) -> tuple[Hold, ...]:
        """Return every hold: what the ledger said when it last changed. Never blocks."""
        return tuple(record.hold() for record in self._ledger.latest)

    # -- the agent --------------------------------------------------------------------------------

    @property
    def unknown(self) -> str:
        """Why it cannot be said what is held, and so nothing new is; empty where it can."""
        return self._upkeep.unknown

    async def restore(self) -> None:
        """Make the ledger's holds true again: once, before anything is registered.

        After a reboot or a crash; half-done holds are undone, and the holds of a ledger that was
        lost are found again in the CDI files. What fails is retried by ``tend``.
        """
        await self._upkeep.restore()

    async def refresh(self, offer: Offer) -> None:
        """Let CDI files follow the offer: renumbered nodes, devices gone, withheld or back."""
        await self._upkeep.refresh(offer)

    async def tend(self) -> None:
        """Release and retry what nobody asks for, for the life of the agent."""
        await self._upkeep.tend()

    async def attend(self) -> None:
        """Do once what ``tend`` would do now, and wait for it."""
        await self._upkeep.attend()

    def quarantined(self) -> dict[tuple[str, str], str]:
        """Return devices that nobody may have, and why: quarantined, or not released yet.

        By DRA driver and name.
        """
        return self._upkeep.quarantined()

    async def clear_quarantine(self, device: str, who: str = "operator") -> int:
        """Offer a quarantined device again, on an operator's word; return how many holds went."""
        return await self._upkeep.clear_quarantine(device, who)

    # -- prepare ----------------------------------------------------------------------------------

    async def _prepare(
        self,
        turn: Turn,
        key: ClaimKey,
        read: Callable[[], Awaitable[Claim]],
        *,
        anew: bool = False,
    ) -> Sequence[Result]:
        turn.check()
        began = time.monotonic()
        records = await self._of_key(key)
        for record in records:
            if not record.readable:
                raise HoldFailed(f"device {record.device.name}: {record.why}", "unreadable")
        if records and all(r.state is HoldState.HELD and not r.rebuilt for r in records):
            return await self._again(turn, records, anew=anew)
        await self._steps.undo([r for r in records if r.state is HoldState.RELEASING])
        records = tuple(r for r in records if r.state is not HoldState.RELEASING)
        if self.unknown:
            raise HoldFailed(f"what is held is not known yet: {self.unknown}", "unknown")
        claim = await read()
        if claim.key.uid != key.uid:
            raise WrongClaim(key.uid, claim.key.uid)
        turn.check()
        records, admitted = await self._take(claim, records)
        results = await self._carry_out(turn, claim, records, admitted)
        if records:
            took = f"{time.monotonic() - began:.4f}"
            self._tell("claim-prepared", claim.key, records, seconds=took)
        return results

    async def _take(
        self, claim: Claim, records: tuple[Record, ...]
    ) -> tuple[tuple[Record, ...], tuple[Admitted, ...]]:
        """Open the claim's holds, or go on with those that an earlier call left half done.

        A hold found again for a device that the claim does not have any more is undone.
        """
        half_done = tuple(record for record in records if not record.rebuilt)
        rebuilt = [record for record in records if record.rebuilt]
        try:
            admitted = await self._admission.admit(claim, self._offer())
        except (HoldDenied, HoldConflict):
            await self._steps.undo(half_done)
            raise
        if not rebuilt and _same(half_done, admitted):
            for record, one in zip(half_done, admitted, strict=True):
                await self._ledger.widen(record, one.want.parts)  # it may be renumbered since
            return half_done, admitted
        wants = [one.want for one in admitted]
        names = {want.cdi_name for want in wants}  # of one found again, all that is known
        await self._steps.undo([*half_done, *(r for r in rebuilt if r.cdi_name not in names)])
        await self._refuse_retired(claim)
        found = [record for record in rebuilt if record.cdi_name in names]
        taken = await self._ledger.take(claim, wants, self._steps.boot_id, replaces=found)
        return taken, admitted

    async def _refuse_retired(self, claim: Claim) -> None:
        """Refuse a device that this very claim had and that is not released yet."""
        wanted = {allotment.device for allotment in claim.allotments}
        for record in await self._ledger.of_claim(claim.key.uid):
            if record.retired and record.device.name in wanted:
                raise HoldConflict(record.device.name, "it", record.holder)

    async def _carry_out(
        self,
        turn: Turn,
        claim: Claim,
        records: Sequence[Record],
        admitted: Sequence[Admitted],
    ) -> Sequence[Result]:
        results = []
        try:
            for record, one in zip(records, admitted, strict=True):
                device = one.offered.device
                result = await self._steps.make(record, claim, device, one.parameters)
                await self._widen(record, one, result.delivery)
                results.append(result)
                turn.check()
            changed = {result.record.id: result.delivery for result in results}
            await self._steps.write_files(claim.key.uid, changed)
            if results:
                await self._ledger.hold(results)
        except HookLate:  # its outcome is unknown: the next call for the claim joins it
            raise
        except Exception as error:
            await self._undo_after(error, records)
            raise
        turn.check()
        return results

    async def _again(
        self, turn: Turn, records: tuple[Record, ...], *, anew: bool
    ) -> Sequence[Result]:
        """Answer for a claim that is held already, and make its CDI file true again."""
        claim, offer = claim_of(records), self._offer()
        await self._granted.confirm_held(records)  # who asks may be somebody new
        renewals = [await self._steps.renew(record, claim, offer) for record in records]
        await self._steps.keep(renewals, anew=anew)
        turn.check()
        for renewal in renewals:
            if renewal.refused is not None:
                raise renewal.refused
        return [renewal.result for renewal in renewals]

    async def _widen(self, record: Record, one: Admitted, delivery: Delivery) -> None:
        """Take the parts of nodes that only preparing the device has made."""
        if one.want.allotment.admin_access:
            return
        taken = set(one.want.parts)
        more = [p for p in parts_of(one.offered.device, delivery.nodes) if p not in taken]
        if more:
            await self._ledger.widen(record, more)

    async def _undo_after(self, error: Exception, records: Sequence[Record]) -> None:
        """Undo what a failed prepare did; what cannot be undone now is left for the next call."""
        try:
            await self._steps.undo(records)
        except (HardpointError, OSError) as second:
            message = f"after {error}: {second}"
            self._report(Event(name="undo-failed", message=message, warning=True))

    # -- small things -----------------------------------------------------------------------------

    async def _of_key(self, key: ClaimKey) -> tuple[Record, ...]:
        """Return a claim's own holds, without those whose device alone still waits."""
        records = await self._ledger.of_claim(key.uid)
        return tuple(r for r in records if r.claim.dra_driver == key.dra_driver and not r.retired)

    @asynccontextmanager
    async def _turn(
        self, key: ClaimKey, *, ends: bool = False, patience: float | None = None
    ) -> AsyncIterator[Turn]:
        """Wait for a claim's turn; other agents are kept off while a call into its driver runs."""
        async with self._locks.turn(
            key.uid, str(key), key.dra_driver, ends=ends, patience=patience
        ) as turn:
            try:
                yield turn
            except HookLate as late:
                raise HoldBusy(str(key), late.hook) from late
            finally:
                own = [r for r in self._ledger.latest if r.lock == key.uid]
                if any(self._steps.running(record, *EFFECTS) for record in own):
                    turn.keep()

    @contextmanager
    def _telling_refusals(self, key: ClaimKey) -> Iterator[None]:
        try:
            with _as_hold_errors():
                yield
        except HoldError as error:
            facts = {"claim": str(key), "uid": key.uid, "reason": error.reason}
            self._report(Event(name="claim-refused", message=str(error), facts=facts, warning=True))
            raise

    def _tell(self, name: str, key: ClaimKey, records: Iterable[Record], **more: str) -> None:
        devices = ", ".join(record.device.name for record in records)
        facts = {"claim": str(key), "uid": key.uid, "devices": devices, **more}
        self._report(Event(name=name, message=f"claim {key}: {devices}", facts=facts))


def _same(records: Sequence[Record], admitted: Sequence[Admitted]) -> bool:
    """Say whether half-done holds are what the claim is allocated still."""
    return [record.allotment for record in records] == [one.want.allotment for one in admitted]


@contextmanager
def _as_hold_errors() -> Iterator[None]:
    """Tell the frontend of everything that can go wrong in one family of errors."""
    try:
        yield
    except TryAgain as error:
        raise HoldFailed(str(error), "try-again") from error
    except Refuse as error:
        raise HoldDenied(str(error), error.reason) from error
    except HookFault as error:
        raise HoldFailed(str(error), "plugin") from error
    except LedgerError as error:
        raise HoldFailed(str(error), "ledger") from error
    except BadValue as error:
        raise HoldFailed(str(error), "bad-value") from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        what = f"the CDI file cannot be written: {where}{error.strerror}"
        raise HoldFailed(what, "cdi") from error
