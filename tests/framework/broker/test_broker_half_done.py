"""What an earlier call left half done, and calls that an unprepare overtakes on their way."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Iterable, Sequence

import anyio
import pytest
from broker_world import World, claim, prepare

from hardpoint._core.claims.broker import Broker
from hardpoint._core.claims.ports import NothingGoverned
from hardpoint._core.ledger.ledger import Ledger
from hardpoint._core.ledger.records import Record, Result
from hardpoint.errors import HoldBusy, HoldFailed, HoldOvertaken, LedgerUnwritable
from hardpoint.model import Device, HoldState


async def leave_half_done(world: World, broker: Broker, *devices: str) -> None:
    """Let a prepare of u1 hang in its first device's driver; the call has ended since."""
    world.hooks.hanging = {"prepare_device"}
    with pytest.raises(HoldBusy):
        await prepare(broker, claim("u1", *devices))
    world.hooks.hanging = set()
    world.hooks.under_way.clear()


def rewrite(world: World, sql: str) -> None:
    """Change the ledger while no agent runs."""

    def work(db: sqlite3.Connection) -> None:
        db.execute(sql)

    ledger = Ledger(world.state)
    ledger._committer.run_blocking(work)
    ledger.close()


# -- half done -------------------------------------------------------------------------------------


@pytest.mark.parametrize("now", [("card-b",), ("card-b", "card-a"), ()])
async def test_what_is_half_done_and_not_what_the_claim_is_allocated_by_now_is_undone_first(
    world: World, now: Sequence[str]
) -> None:
    async with world.broker() as broker:
        await leave_half_done(world, broker, "card-a")

        await prepare(broker, claim("u1", *now))

        assert world.cards.calls == ["unprepare card-a", *(f"prepare {one}" for one in now)]
        assert [hold.device.name for hold in broker.holds()] == list(now)
        await broker.unprepare(claim("u1").key)
        await prepare(broker, claim("u2", "card-a", "card-b"))


@pytest.mark.parametrize("spoilt", ["state = 'preparing'", "rebuilt = 1"])
async def test_a_claim_is_held_only_when_all_of_its_devices_are(world: World, spoilt: str) -> None:
    wanted = claim("u1", "card-a", "card-b")
    async with world.broker() as broker:
        answers = await prepare(broker, wanted)
    rewrite(world, f"UPDATE holds SET {spoilt}, rev = 1 WHERE device = 'card-b'")
    (world.root / "hw" / "card-b").unlink()

    async with world.broker() as broker:
        assert await prepare(broker, wanted) == answers

        assert (world.root / "hw" / "card-b").read_text() == "u1"
        assert not [record for record in await broker._ledger.read() if record.rebuilt]
        assert [hold.state for hold in broker.holds()] == [HoldState.HELD, HoldState.HELD]


async def test_a_driver_that_still_runs_locks_its_own_claim_alone(world: World) -> None:
    world.patience = 0.1
    async with world.broker() as first, world.broker() as second:
        world.hooks.hanging = {"prepare_device"}
        with pytest.raises(HoldBusy):
            await prepare(first, claim("u1", "card-a"))
        world.hooks.hanging = set()
        await prepare(first, claim("u2", "card-b"))

        await second.unprepare(claim("u2").key)

        assert [hold.claim.uid for hold in second.holds()] == ["u1"]


async def test_one_device_whose_driver_still_runs_locks_its_whole_claim(world: World) -> None:
    world.patience = 0.1
    world.hooks.hanging = {"prepare_device"}
    async with world.broker() as first, world.broker() as second:
        with pytest.raises(HoldBusy):
            await prepare(first, claim("u1", "card-a", "card-b"))

        with pytest.raises(HoldBusy, match="another agent"):
            await second.unprepare(claim("u1").key)


async def test_why_a_prepare_failed_is_said_also_where_undoing_it_fails_on_the_cdi_directory(
    world: World,
) -> None:
    world.cards.faults["prepare"] = RuntimeError("firmware")
    world.cdi.rmdir()
    world.cdi.symlink_to(world.cdi)  # ELOOP
    async with world.broker() as broker:
        with pytest.raises(HoldFailed, match="firmware") as failed:
            await prepare(broker, claim("u1", "card-a"))

    assert failed.value.reason == "plugin"
    (event,) = world.told("undo-failed")
    assert "firmware" in event.message
    assert event.warning


async def test_a_device_that_is_delivered_as_it_was_offered_is_written_down_no_second_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(record: object, parts: object) -> None:
        raise LedgerUnwritable("ledger.db", "full")

    async with world.broker() as broker:
        monkeypatch.setattr(broker._ledger, "widen", full)

        assert await prepare(broker, claim("u1", "card-a"))


# -- overtaken -------------------------------------------------------------------------------------


class Step:
    """Something that a call does, and that lasts until it is let on."""

    def __init__(self) -> None:
        self.entered, self.go = anyio.Event(), anyio.Event()

    async def __call__(self) -> None:
        self.entered.set()
        await self.go.wait()


async def overtake(broker: Broker, call: Awaitable[object], step: Step) -> None:
    """Let an unprepare of u1 arrive while a call for it takes a step; the call has to say so."""

    async def is_overtaken() -> None:
        with pytest.raises(HoldOvertaken):
            await call

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(is_overtaken)
        await step.entered.wait()
        tasks.start_soon(broker.unprepare, claim("u1").key)
        await anyio.wait_all_tasks_blocked()
        step.go.set()
    assert broker.holds() == ()


async def test_who_is_overtaken_at_one_device_prepares_no_other(world: World) -> None:
    step, prepared = Step(), list[str]()

    class Slow:
        async def prepare_device(self, device: Device) -> None:
            prepared.append(device.name)
            if device.name == "slow-0":
                await step()

    world.hooks.drivers["slow"] = Slow()
    for name in ("slow-0", "slow-1"):
        world.add(Device(name=name, kind="x", driver="slow"))
    async with world.broker() as broker:
        await overtake(broker, prepare(broker, claim("u1", "slow-0", "slow-1")), step)

    assert prepared == ["slow-0"]


async def test_who_is_overtaken_while_its_holds_are_written_down_does_not_answer_that_they_are_held(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Step()
    async with world.broker() as broker:
        hold = broker._ledger.hold

        async def slowly(results: Sequence[Result]) -> tuple[Record, ...]:
            await step()
            return await hold(results)

        monkeypatch.setattr(broker._ledger, "hold", slowly)
        await overtake(broker, prepare(broker, claim("u1", "card-a")), step)

    assert world.files() == []


async def test_who_is_overtaken_when_it_asks_again_does_not_answer_that_its_devices_are_held(
    world: World,
) -> None:
    step = Step()

    class Asked(NothingGoverned):
        async def confirm_held(self, records: Iterable[Record]) -> None:
            await step()

    world.granted = Asked()
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        await overtake(broker, prepare(broker, claim("u1", "card-a")), step)

    assert world.files() == []
