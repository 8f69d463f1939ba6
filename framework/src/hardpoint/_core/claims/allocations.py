"""Device plugin allocations: devices held under a resource and an id, all or none.

Each id is a claim of its own to the broker, so that everything true of claims is true of it: one
ledger, one lock, one CDI file, the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import anyio

from hardpoint._core.claims.broker import Broker
from hardpoint._core.ledger.ledger import Ledger
from hardpoint._core.ledger.records import Record, Result
from hardpoint._core.pods.podlist import PodList
from hardpoint._core.pods.podwatch import PodWatch
from hardpoint.allocation import Allocation, Assigned, Assignment, is_allocation
from hardpoint.errors import HoldError
from hardpoint.model import Allotment, Claim, Event


class Allocations:
    """Holds devices under ids, for as long as the kubelet's pods have them."""

    def __init__(
        self,
        broker: Broker,
        ledger: Ledger,
        watch: PodWatch,
        *,
        pool: str,
        report: Callable[[Event], None],
    ) -> None:
        self._broker, self._ledger, self._watch = broker, ledger, watch
        self._pool, self._report = pool, report

    async def allocate(self, wanted: Sequence[Assignment]) -> tuple[Assigned, ...]:
        """Hold devices under their ids, all or none; several at once share the ledger's commits.

        Raises ``HoldError`` of the first that cannot be had. Where the agent dies or the call is
        cancelled half way, what is held already ends as any hold does that no pod has.
        """
        results: dict[str, tuple[Result, bool]] = {}
        faults: dict[str, Exception] = {}

        async def one(assignment: Assignment) -> None:
            uid = assignment.key.uid
            try:
                claim = claim_for(assignment, self._pool)
                results[uid] = await self._broker.assign(claim, self._watch.handover.is_over)
            except Exception as error:  # noqa: BLE001 - raised below, the others given back first
                faults[uid] = error

        each = {one.key.uid: one for one in wanted}
        with self._watch.asking(each):
            async with anyio.create_task_group() as tasks:
                for assignment in each.values():
                    tasks.start_soon(one, assignment)
            if faults:
                await self._none(results.values())
                raise next(faults[one.key.uid] for one in wanted if one.key.uid in faults)
        return tuple(_assigned(one, results[one.key.uid][0]) for one in wanted)

    async def _none(self, results: Iterable[tuple[Result, bool]]) -> None:
        """End what was taken beside one that could not be had, unless it is renewed already.

        Who is in the way may be a pod that has ended: the next look may come at once.
        """
        with anyio.CancelScope(shield=True):
            for result, anew in results:
                if not anew:
                    continue
                try:
                    await self._broker.give_back(result.record)
                except HoldError as error:
                    message = f"{result.record.claim}: {error}"
                    self._report(Event(name="undo-failed", message=message, warning=True))
        self._watch.wake()

    def shown(self) -> tuple[Allocation, ...]:
        """Return what is held under ids, and by which pods as far as that is known."""
        records = [r for r in self._ledger.latest if is_allocation(r.claim) and not r.retired]
        return tuple(_allocation(r, self._watch.latest) for r in records if r.claim.name)


def claim_for(assignment: Assignment, pool: str) -> Claim:
    """Return an assignment as the broker and the policies see it."""
    allotment = Allotment(
        request="", device=assignment.device, pool=pool, allocation=assignment.allocation
    )
    return Claim(key=assignment.key, allotments=(allotment,))


def _assigned(assignment: Assignment, result: Result) -> Assigned:
    return Assigned(assignment=assignment, cdi_ids=result.answer.cdi_ids, delivery=result.delivery)


def _allocation(record: Record, listed: PodList | None) -> Allocation:
    key = record.claim
    return Allocation(
        resource=key.namespace,
        id=key.name,
        device=record.device.name,
        dra_driver=key.dra_driver,
        state=record.state,
        users=None if listed is None else listed.users(key, record.device.name),
    )
