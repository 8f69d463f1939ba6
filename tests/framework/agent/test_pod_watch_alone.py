"""The watch over pods by itself: when it looks, whom it asks to end what, and what it tells."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest
from broker_world import DOMAIN
from pod_world import CARD, Pods, assignment

from hardpoint._core.ledger.records import Record
from hardpoint._core.plugins.faults import FaultBoard
from hardpoint._core.pods.absence import Pace
from hardpoint._core.pods.podwatch import PodWatch, Surroundings
from hardpoint.allocation import Assignment
from hardpoint.errors import CallFailed, HardpointError, HoldBusy, LedgerUnwritable
from hardpoint.kubelet.pods import PodUse
from hardpoint.model import Allotment, ClaimKey, Device, HoldState, Offer, Offered
from hardpoint.testing.clock import ManualClock

NEVER = 3600.0


@dataclass
class Holder:
    """Whoever holds: notes what it is asked, and does what a test says."""

    adopted: list[str] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    fault: HardpointError | None = None
    answer: bool = True

    async def adopt(self, assignment: Assignment) -> bool:
        self.adopted.append(f"{assignment.resource} {assignment.id}")
        return True

    async def give_back(self, record: Record) -> bool:
        self.ended.append(record.id)
        if self.fault is not None:
            raise self.fault
        return self.answer


@dataclass
class Records:
    """What is written down; ``then`` is called at each reading."""

    rows: tuple[Record, ...] = ()
    then: Callable[[], None] = lambda: None

    async def read(self) -> tuple[Record, ...]:
        self.then()
        return self.rows

    async def name_claim(self, key: ClaimKey) -> None:
        """Nothing here is without a name."""


class Alone:
    """A watch, and all that it knows of the world."""

    def __init__(self, pace: Pace | None = None) -> None:
        self.pods, self.holder, self.records = Pods(), Holder(), Records()
        self.board, self.clock, self.changes = FaultBoard(), ManualClock(1000.0), 0
        self.pods.has("bystander")
        around = Surroundings(
            pods=self.pods,
            holder=self.holder,
            records=self.records,
            board=self.board,
            offer=self._offer,
            writing=lambda: True,
            changed=self._changed,
        )
        self.watch = PodWatch(around, node="node-1", pace=pace, clock=self.clock.now)

    def _offer(self) -> Offer:
        cards = [Device(name=f"card-{one}", kind="card", driver="cards") for one in "ab"]
        offered = tuple(Offered(device=card, domain=DOMAIN) for card in cards)
        return Offer(generation=1, devices=offered, withheld=(), complete=True)

    def _changed(self) -> None:
        self.changes += 1

    async def look(self, after: float = 10.0) -> bool:
        self.clock.advance(after)
        return await self.watch.look()

    async def settle(self) -> None:
        for _ in range(5):
            await self.look()

    @property
    def sources(self) -> list[str]:
        return [entry.source for entry in self.board.entries]


def held(number: int = 1, state: HoldState = HoldState.HELD, *, claim: bool = False) -> Record:
    """A card that is held, for an allocation or for a claim."""
    key = ClaimKey("u1", "ns", "claim", "hardpoint.dev") if claim else assignment("card-a").key
    return Record(
        id=number,
        claim=key,
        allotment=Allotment(request="", device="card-a", pool="node-1"),
        device=Device(name="card-a", kind="card", driver="cards"),
        cdi_vendor="hardpoint.dev",
        cdi_name="x",
        state=state,
        rev=number,
    )


UID = held().claim.uid


# -- when it looks --------------------------------------------------------------------------------


@asynccontextmanager
async def running(one: Alone) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.watch.run)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(10):
            yield
        tasks.cancel_scope.cancel()


def after(count: int, done: anyio.Event) -> Callable[[], None]:
    """Return what sets an event when it was called so many times."""
    left = count

    def called() -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    return called


async def test_it_looks_once_when_it_is_woken() -> None:
    one = Alone(Pace(every=NEVER, apart=0.0))
    async with running(one):
        assert one.pods.reads == 0
        for looks in (1, 2):
            one.watch.wake()
            await anyio.wait_all_tasks_blocked()
            assert one.pods.reads == looks


async def test_however_often_it_is_woken_two_reads_are_apart() -> None:
    one = Alone(Pace(every=NEVER, apart=NEVER))
    async with running(one):
        for _ in range(3):
            one.watch.wake()
            await anyio.wait_all_tasks_blocked()
        assert one.pods.reads == 1


async def test_what_is_held_and_not_announced_yet_is_looked_after_without_being_woken() -> None:
    one, looked = Alone(Pace(every=0.001, apart=0.0)), anyio.Event()
    one.records.rows = (held(),)
    one.records.then = after(5, looked)
    async with running(one):
        await looked.wait()
        assert one.pods.reads > 0


async def test_while_nothing_is_held_only_the_ledger_is_looked_at() -> None:
    one, looked = Alone(Pace(every=0.001, apart=0.0, seldom=2)), anyio.Event()
    one.records.then = after(10, looked)
    async with running(one):
        await looked.wait()
        assert one.pods.reads == 0


async def test_while_only_claims_are_held_it_looks_every_so_many_times() -> None:
    one, looked = Alone(Pace(every=0.001, apart=0.0, seldom=4)), anyio.Event()
    one.records.rows = (held(claim=True),)
    seen, enough = list[int](), after(10, looked)

    def reads() -> None:
        seen.append(one.pods.reads)
        enough()

    one.records.then = reads
    async with running(one):
        await looked.wait()
    assert seen[:10] == [*[0] * 5, *[1] * 5]  # asked four times whether it is due, and by the look


async def test_a_ledger_that_cannot_be_read_ends_no_watch() -> None:
    one, again = Alone(Pace(every=0.001, apart=0.0)), anyio.Event()

    def fails() -> None:
        one.records.then = again.set
        raise LedgerUnwritable("ledger.db", "disk I/O error")

    one.records.then = fails
    async with running(one):
        await again.wait()


async def test_one_look_waits_for_another() -> None:
    """Two at once would be two good reads, and end a hold twice."""
    one, may = Alone(), anyio.Event()
    listing = one.pods.list

    async def slowly() -> tuple[PodUse, ...]:
        found = await listing()
        await may.wait()
        return found

    one.pods.list = slowly  # type: ignore[method-assign]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.watch.look)
        tasks.start_soon(one.watch.look)
        await anyio.wait_all_tasks_blocked()
        assert one.pods.reads == 1
        may.set()
    assert one.pods.reads == 2


# -- what it asks for -----------------------------------------------------------------------------


async def missed_twice(one: Alone) -> None:
    """Look until nothing is left to wait for that no pod is listed with."""
    await one.settle()
    for _ in range(2):
        await one.look()


async def test_what_is_over_is_ended_and_its_faults_are_taken_off() -> None:
    one = Alone()
    one.records.rows = (held(),)
    one.board.record(f"broker {UID}", "a fault")
    await one.settle()
    assert one.holder.ended == [1]
    assert one.sources == []


@pytest.mark.parametrize("fault", [None, HoldBusy("it", "unprepare_device")])
async def test_what_did_not_end_keeps_its_faults_and_is_asked_to_end_again(
    fault: HardpointError | None,
) -> None:
    one = Alone()
    one.records.rows = (held(),)
    one.holder.answer, one.holder.fault = False, fault
    one.board.record(f"broker {UID}", "a fault")
    await one.settle()
    before = len(one.holder.ended)
    assert await one.look()
    assert len(one.holder.ended) == before + 1
    assert one.sources == [f"broker {UID}"]


@pytest.mark.parametrize("left", [{"retired": True}, {"readable": False}])
async def test_what_waits_for_others_is_not_ended(left: dict[str, Any]) -> None:
    one = Alone()
    one.records.rows = (replace(held(state=HoldState.RELEASING), **left),)
    await missed_twice(one)
    assert one.holder.ended == []


async def test_what_is_asked_for_now_is_not_ended_though_its_end_was_decided() -> None:
    one = Alone()
    one.records.rows = (held(state=HoldState.RELEASING),)
    with one.watch.asking([UID]):
        await one.look()
    assert one.holder.ended == []
    await one.look()
    assert one.holder.ended == [], "the call has just been answered"
    await one.look()
    assert one.holder.ended == [1]


async def test_after_an_answer_a_pod_has_its_whole_time_to_be_listed() -> None:
    one = Alone()
    one.records.rows = (held(),)
    with one.watch.asking([UID]):
        await one.settle()
    await one.look()  # the first one after the answer
    await one.look(after=1.0)
    await one.look(after=1.0)
    assert one.holder.ended == []


async def test_reads_before_it_was_asked_for_again_count_no_more() -> None:
    one = Alone(Pace(settle=0.0))
    one.records.rows = (held(),)
    await one.look()
    await one.look()
    with one.watch.asking([UID]):
        await one.look()
    await one.look()
    await one.look()
    assert one.holder.ended == []
    await one.look()
    assert one.holder.ended == [1]


async def test_a_pod_of_the_same_name_that_has_it_no_more_keeps_nothing() -> None:
    one = Alone()
    one.records.rows = (held(),)
    one.pods.has("train", "card-a")
    await one.settle()
    one.pods.gone("train")
    one.pods.named["train"] = PodUse(namespace="ns", name="train", resources=())
    await one.look()
    await one.look()
    assert one.holder.ended == [1]


async def test_a_pod_that_the_list_lacks_is_a_read_that_lists_it() -> None:
    one = Alone()
    one.records.rows = (held(),)
    one.pods.has("train", "card-a")
    await one.settle()
    one.pods.named["train"] = one.pods.listed["train"]
    one.pods.gone("train")
    await one.look()
    await one.look()
    del one.pods.named["train"]
    await one.look()
    assert one.holder.ended == []
    await one.look()
    assert one.holder.ended == [1]


async def test_a_pod_that_cannot_be_asked_for_by_name_keeps_what_it_had() -> None:
    one = Alone()
    one.records.rows = (held(),)
    one.pods.has("train", "card-a")
    await one.settle()
    one.pods.gone("train")

    async def fails(namespace: str, name: str) -> PodUse | None:
        raise CallFailed("kubelet.sock", "PodResourcesLister.Get", "UNAVAILABLE", "away")

    one.pods.get = fails  # type: ignore[method-assign]
    for _ in range(4):
        assert await one.look()
    assert one.holder.ended == []


async def test_who_had_what_nobody_holds_any_more_is_forgotten() -> None:
    one = Alone()
    for number in range(5):
        one.pods.has("train", f"card-{number}")
        await one.look()
    assert len(one.watch._had) == 1


async def test_what_is_held_is_not_adopted_and_what_only_waits_to_be_scrubbed_is() -> None:
    one = Alone()
    one.pods.has("train", "card-a")
    one.records.rows = (held(),)
    await one.look()
    assert one.holder.adopted == []
    one.records.rows = (replace(held(state=HoldState.RELEASING), retired=True),)
    await one.look()
    assert one.holder.adopted == [f"{CARD} card-a"]


async def test_an_id_that_is_announced_no_more_is_ours_by_its_resource() -> None:
    one = Alone()
    one.watch.announce("acme.dev/stick", [replace(assignment("card-b"), resource="acme.dev/stick")])
    one.pods.has("train", "card-a", resource="acme.dev/stick")
    await one.look()
    assert one.holder.adopted == ["acme.dev/stick card-a"]


async def test_after_the_loss_of_a_ledger_ids_are_ours_until_a_kubelet_knows_its_pods() -> None:
    one = Alone()
    await one.watch.find_again()
    await one.look()
    one.pods.has("train", "card-a", resource="acme.dev/stick")
    await one.look()
    assert one.holder.adopted == ["acme.dev/stick card-a"]

    await one.settle()
    one.holder.adopted.clear()
    one.pods.has("later", "card-b", resource="acme.dev/stick")
    await one.look()
    assert one.holder.adopted == []


# -- what it tells --------------------------------------------------------------------------------


async def test_an_id_of_ours_that_stands_for_nothing_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = Alone()
    one.watch.announce(CARD, [assignment("card-a")])
    one.pods.has("train", "gone-card")
    one.pods.has("stranger", "gone-card", resource="nvidia.com/gpu")
    with caplog.at_level(logging.WARNING, "hardpoint.pods"):
        await one.look()
        await one.look()
    assert [record.args for record in caplog.records] == [(CARD, "gone-card")]


async def test_it_is_told_what_is_known_and_only_when_that_changes() -> None:
    one = Alone()
    assert one.watch.note() == {"read": "not yet"}
    assert await one.look()
    assert (one.changes, one.watch.note()) == (1, {"read": "well"})
    await one.look()
    assert one.changes == 1, "the same again"
    one.pods.has("train", "card-a")
    await one.look()
    assert one.changes == 2
    one.pods.broken = "no answer"
    assert not await one.look()
    assert one.changes == 3
    await one.look()
    assert one.changes == 3, "it fails as before"
    await one.look(after=60)
    assert one.changes == 4, "what was known is too old now"
    await one.look()
    assert one.changes == 4


async def test_a_failure_is_on_the_board_while_something_may_have_users() -> None:
    one = Alone()
    one.watch.announce(CARD, [assignment("card-a")])
    one.pods.broken = "no answer"
    await one.look()
    assert one.sources == ["pod-resources"]

    other = Alone()
    other.pods.broken, other.records.rows = "no answer", (held(),)
    await other.look()
    assert other.sources == ["pod-resources"]
    other.records.rows = ()
    await other.look()
    assert other.sources == []


async def test_a_kubelet_that_does_not_know_its_pods_is_of_no_concern_while_nothing_is_held() -> (
    None
):
    one = Alone()
    one.pods.gone("bystander")
    await one.look()
    assert one.watch.note()["unknown"]
    assert one.sources == []
