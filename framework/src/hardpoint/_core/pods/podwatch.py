"""Which pod has what, read from the kubelet: for showing it, and for ending what no pod has.

The device plugin API has no word for the end of an allocation, so the kubelet's list of pods is
read, and what follows from it is unequal. That a pod has an id is believed at once. That none has
it is believed of two good reads alone, both begun well after the hold was last asked for, from a
kubelet that has shown for a while that it knows its pods: one that has just started lists none
until the API server has told it. And what the device manager's checkpoint names is somebody's
still: it may be an init container's, which is in no list.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import anyio

from hardpoint._core.ledger.records import Record
from hardpoint._core.pods.absence import Absence, Pace
from hardpoint._core.pods.handover import Handover
from hardpoint._core.pods.podlist import PodList, Users
from hardpoint.allocation import (
    Assignment,
    allocation_key,
    grant_of_id,
    is_allocation,
    is_id_of,
)
from hardpoint.errors import HardpointError, HoldBusy
from hardpoint.kubelet.pods import PodUse
from hardpoint.kubelet.podsource import Checkpoint, Kubelet
from hardpoint.model import ClaimKey, HoldState, Offer

_log = logging.getLogger("hardpoint.pods")

SOURCE = "pod-resources"
"""What faults and notes of this go by."""

_COST = "which pod has which device is not known, and devices of pods that ended stay held"
_OLD = 60.0
"""Seconds after which what was read last is no answer any more."""


class Pods(Protocol):
    """The kubelet's answers: ``PodSource``."""

    def kubelet(self) -> Kubelet | None:
        """Return which kubelet serves; None for none."""

    async def list(self) -> tuple[PodUse, ...]:
        """Return every pod. Raises ``HardpointError``."""

    async def get(self, namespace: str, name: str) -> PodUse | None:
        """Return one pod. Raises ``HardpointError``."""

    def written_at(self) -> tuple[int, int]:
        """Return what tells one checkpoint from the next."""

    async def checkpoint(self) -> Checkpoint:
        """Return what the device manager has written down. Raises ``HardpointError``."""


class Holder(Protocol):
    """Who holds: the broker."""

    async def adopt(self, assignment: Assignment) -> bool:
        """Hold what a pod has already."""

    async def give_back(self, record: Record) -> bool:
        """End a hold, unless it was written since."""


class Records(Protocol):
    """Where holds are written down: the ledger."""

    async def read(self) -> tuple[Record, ...]:
        """Return every record as it is now."""

    async def name_claim(self, key: ClaimKey) -> None:
        """Write down what a claim that was found again is called."""


class Board(Protocol):
    """Where faults stand."""

    def record(self, source: str, message: str, cost: str = "") -> None:
        """Put a fault on it."""

    def clear(self, source: str) -> None:
        """Take a fault off it."""

    def clear_about(self, subject: str) -> None:
        """Take off what is about a claim that has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the watch needs of the agent."""

    pods: Pods
    holder: Holder
    records: Records
    board: Board
    offer: Callable[[], Offer]
    writing: Callable[[], bool]
    changed: Callable[[], None]
    """Called when there is something else to show."""


class PodWatch:
    """Reads pod-resources; one look at a time."""

    def __init__(
        self,
        around: Surroundings,
        *,
        node: str,
        itself: tuple[str, str] | None = None,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._around, self._clock = around, clock
        self.handover = Handover(around.pods)
        self.pace = pace or Pace()
        self._absence = Absence(self.pace, node, itself)
        self._announced: dict[tuple[str, str], Assignment] = {}
        self._lost = False
        """True from the loss of a ledger until pods have been read well."""
        self._began = clock()
        self._last: PodList | None = None
        self._read_at = 0.0
        self._had: dict[str, Users] = {}
        """Who had what an allocation's UID goes for, when that was last read."""
        self._asked: Counter[str] = Counter()
        """UIDs of what is being asked for now."""
        self._answered: set[str] = set()
        """Those of what was asked for until after the last look."""
        self._unclear: set[tuple[str, str]] = set()
        self._failing: set[str] = set()
        self._looking = anyio.Lock()
        self._wake: anyio.Event | None = None
        self.problem = ""
        """Why the last read failed; empty if it did not."""

    # -- what others ask --------------------------------------------------------------------------

    @property
    def latest(self) -> PodList | None:
        """What was last read; None while nobody can say."""
        return self._last if self._clock() - self._read_at <= _OLD else None

    @property
    def announced(self) -> Mapping[tuple[str, str], Assignment]:
        """What each resource and id stands for that a frontend has announced."""
        return self._announced

    def announce(self, resource: str, assignments: Sequence[Assignment]) -> None:
        """Know a resource's ids as ours; those of before are known still."""
        first = resource not in {known for known, _ in self._announced}
        self._announced |= {(resource, one.id): one for one in assignments}
        if first:
            self.wake()

    @contextmanager
    def asking(self, uids: Iterable[str]) -> Iterator[None]:
        """End none of these meanwhile: no pod is listed with any before the call is answered.

        That takes as long as the slowest of them.
        """
        asked = Counter(set(uids))
        self._asked += asked
        try:
            yield
        finally:
            self._asked -= asked
            self._answered |= set(asked)

    def wake(self) -> None:
        """Look soon."""
        if self._wake is not None:
            self._wake.set()

    def note(self) -> dict[str, str]:
        """Return what is so, for ``hardpoint status``; the same words while nothing changes."""
        if self.problem:
            return {"read": self.problem, "unknown": _COST}
        if self._last is None:
            return {"read": "not yet"}
        doubt = self._absence.doubt
        return {"read": "well", **({"unknown": doubt} if doubt else {})}

    async def find_again(self) -> None:
        """Hold again what pods have, since the ledger was lost. Raises ``HardpointError``.

        The device manager's checkpoint is there also while the kubelet is not, and names what init
        containers have. A socket that is not there is no answer, and none to wait for; one that
        does not answer is given up after a while, for nothing is granted until then.
        """
        self._lost = True
        names: dict[tuple[str, str], object] = {}
        try:
            names |= dict.fromkeys(sorted((await self._around.pods.checkpoint()).ids))
            if self._around.pods.kubelet() is not None:
                names = {**PodList.of(await self._around.pods.list()).ids, **names}
        except HardpointError as error:
            if self._clock() - self._began < self.pace.settle:
                raise
            self._failed(str(error), needed=True)
        await self._adopt(names, await self._around.records.read())

    # -- looking ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look for ever: often while something of ours may have users, seldom else."""
        count, self._wake = 0, anyio.Event()
        while True:
            woken = False
            with anyio.move_on_after(self.pace.every):
                await self._wake.wait()
                woken = True
            self._wake = anyio.Event()  # before the look: what happens during it wants another
            count += 1
            try:
                if woken or await self._is_due(count):
                    await self.look()
            except HardpointError as error:
                _log.warning("pods not looked at why=%r", str(error))
            await anyio.sleep(self.pace.apart)

    async def _is_due(self, count: int) -> bool:
        records = await self._around.records.read()
        if self._announced or any(is_allocation(record.claim) for record in records):
            return True
        return bool(records) and not count % self.pace.seldom

    async def look(self) -> bool:
        """Read once, now, and do what follows; say whether it was read. Raises ``LedgerError``."""
        async with self._looking:
            records = await self._around.records.read()
            begun, kubelet = self._clock(), self._around.pods.kubelet()
            self._absence.stamp(records, begun)
            try:
                listed = PodList.of(await self._around.pods.list())
            except HardpointError as error:
                self._failed(str(error), needed=self._needed(records))
                return False
            self._heard(listed, records, begun, kubelet)
            before, self._failing = self._failing, set()
            if self._around.writing():
                await self._adopt(listed.ids, records)
                await self._name(listed, records)
                await self._end(listed, records, begun)
            for name in before - self._failing:
                self._around.board.clear(name)
            return True

    def _needed(self, records: Iterable[Record]) -> bool:
        return bool(self._announced) or any(is_allocation(r.claim) for r in records)

    def _failed(self, why: str, *, needed: bool) -> None:
        """Say what is not known; who had what is kept, and grows old."""
        if needed:
            self._around.board.record(SOURCE, why, cost=_COST)
        else:
            self._around.board.clear(SOURCE)
        if why != self.problem or (self._last is not None and self.latest is None):
            self.problem, self._last = why, self.latest
            self._around.changed()

    def _heard(
        self, listed: PodList, records: Iterable[Record], begun: float, kubelet: Kubelet | None
    ) -> None:
        before = (self.note(), self._last)
        self._absence.heard(listed, kubelet, begun)
        self.problem, self._last, self._read_at = "", listed, begun
        if self._absence.settled(begun):
            self._lost = False
        held = {record.claim.uid for record in records}
        self._had = {uid: users for uid, users in self._had.items() if uid in held}
        for names, users in listed.ids.items():
            self._had[allocation_key(*names, "").uid] = users
        doubt = self._absence.doubt
        if doubt and self._needed(records):
            self._around.board.record(SOURCE, doubt, cost="devices of pods that ended stay held")
        else:
            self._around.board.clear(SOURCE)
        if before != (self.note(), self._last):
            self._around.changed()

    # -- what a pod has ---------------------------------------------------------------------------

    async def _adopt(self, had: Iterable[tuple[str, str]], records: Iterable[Record]) -> None:
        """Hold what pods have and nothing holds."""
        held = {r.claim.uid for r in records if not r.retired}
        for names in had:
            if allocation_key(*names, "").uid in held:
                continue
            assignment = self._ours(*names)
            if assignment is not None:
                adopting = self._around.holder.adopt(assignment)
                await self._try(f"{SOURCE} {names[0]} {names[1]}", adopting)
            elif self._is_announced(names[0]) and names not in self._unclear:
                self._unclear.add(names)
                _log.warning("a pod has what is not known resource=%s id=%s", *names)

    def _is_announced(self, resource: str) -> bool:
        return any(known == resource for known, _ in self._announced)

    def _ours(self, resource: str, id_: str) -> Assignment | None:
        """Return what one of our ids stands for.

        Of a resource that nobody has announced, since its frontend does not run yet, an id of one
        of our prefixes is ours if it is one of a device's; after the loss of a ledger so is one of
        any resource: to hold too much for a while costs less than to give it twice. The grant is
        the id's own, whatever the device is offered under by now: a pod whose grant has ended is
        known as just that.
        """
        known = self._announced.get((resource, id_))
        if known is not None:
            return known
        prefix = resource.partition("/")[0]
        for offered in self._around.offer().devices:
            own = self._lost or prefix == offered.domain.resource_prefix
            if (own or self._is_announced(resource)) and is_id_of(id_, offered.name):
                return Assignment(
                    resource=resource,
                    id=id_,
                    device=offered.name,
                    domain=offered.domain,
                    allocation=grant_of_id(id_),
                )
        return None

    async def _name(self, listed: PodList, records: Iterable[Record]) -> None:
        """Call holds that were found in CDI files alone by what they are held under."""
        nameless = {r.claim.uid: r.claim for r in records if not r.claim.name}
        for names in listed.ids if nameless else ():
            found = nameless.get(allocation_key(*names, "").uid)
            if found is not None:
                key = allocation_key(*names, found.dra_driver)
                await self._around.records.name_claim(key)

    # -- what no pod has --------------------------------------------------------------------------

    async def _end(self, listed: PodList, records: Iterable[Record], begun: float) -> None:
        """End the allocations that no pod has."""
        asked, self._answered = self._answered | set(self._asked), set()
        for record in records:
            if not is_allocation(record.claim) or record.retired or not record.readable:
                continue
            if record.claim.uid in listed.uids:
                self._absence.seen(record)
                continue
            if record.claim.uid in asked:
                self._absence.asked(record, begun)
                continue
            ending = record.state is HoldState.RELEASING  # decided, and not undone yet
            if ending or (self._absence.missed(record, begun) and await self._is_gone(record)):
                work = self._around.holder.give_back(record)
                if await self._try(f"{SOURCE} end of {record.claim.uid}", work):
                    self._around.board.clear_about(record.claim.uid)

    async def _is_gone(self, record: Record) -> bool:
        """Ask for each pod that had it, by name: this is the last look, and lists may be cut."""
        if await self._is_written_down(record):
            return False
        for user in self._had.get(record.claim.uid, ()):
            try:
                pod = await self._around.pods.get(user.namespace, user.pod)
            except HardpointError as error:
                _log.info("a pod was not looked at pod=%s why=%r", user, str(error))
                return False
            if pod is not None and record.claim.uid in PodList.of([pod]).uids:
                self._absence.seen(record)
                return False
        return True

    async def _is_written_down(self, record: Record) -> bool:
        """Say whether the checkpoint names it, or cannot be read."""
        name = f"{SOURCE} checkpoint"
        try:
            found = await self._around.pods.checkpoint()
        except HardpointError as error:
            self._failing.add(name)
            self._around.board.record(name, str(error), cost=_COST)
            return True
        return self._absence.believes(found, self._clock()) and record.claim.uid in {
            allocation_key(*names, "").uid for names in found.ids
        }

    async def _try(self, name: str, work: Awaitable[bool]) -> bool:
        """Do what is tried again at the next look where it fails."""
        try:
            return await work
        except HoldBusy:
            return False
        except HardpointError as error:
            self._fails(name, str(error))
        except Exception as error:  # noqa: BLE001 - one allocation's must not be all allocations'
            _log.debug("what follows from a list failed what=%s", name, exc_info=error)
            self._fails(name, type(error).__name__)
        return False

    def _fails(self, name: str, why: str) -> None:
        self._failing.add(name)
        self._around.board.record(name, why, cost="it is tried again at the next look")
