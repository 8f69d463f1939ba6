"""Holds of device plugin ids that nobody asks to end, and what pods have that nothing holds."""

from __future__ import annotations

import anyio
import pytest
from broker_world import World, claim, prepare
from pod_world import Watched, assignment

from hardpoint._core.claims.allocations import claim_for
from hardpoint.errors import HoldBusy, HoldConflict, HoldFailed, LedgerUnwritable
from hardpoint.model import ClaimKey, HoldState


async def full(*arguments: object) -> None:
    raise LedgerUnwritable("ledger.db", "full")


async def test_what_no_pod_has_is_given_back_once(world: World, one: Watched) -> None:
    await one.allocate(assignment("card-a"), assignment("card-b"))
    record = next(r for r in await one.broker._ledger.read() if r.device.name == "card-a")

    assert await one.broker.give_back(record)

    assert one.devices() == ["card-b"]
    assert [event.facts["devices"] for event in world.told("allocation-ended")] == ["card-a"]
    assert not await one.broker.give_back(record)
    assert world.cards.calls.count("unprepare card-a") == 1


async def test_what_was_asked_for_since_it_was_looked_at_is_not_given_back(
    world: World, one: Watched
) -> None:
    await one.allocate(assignment("card-a"))
    (looked_at,) = await one.broker._ledger.read()
    one.pods.writes("card-a", at=1)
    await one.allocate(assignment("card-a"))

    assert not await one.broker.give_back(looked_at)

    assert one.devices() == ["card-a"]
    assert world.cards.calls == ["prepare card-a"]


async def test_what_is_being_asked_for_is_not_given_back_under_the_call(
    world: World, one: Watched
) -> None:
    await one.allocate(assignment("card-a"))
    (looked_at,) = await one.broker._ledger.read()
    entered, go = anyio.Event(), anyio.Event()

    async def is_over(key: ClaimKey) -> bool:
        entered.set()
        await go.wait()
        return False

    wanted = claim_for(assignment("card-a"), "node-1")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.broker.assign, wanted, is_over)
        await entered.wait()
        with pytest.raises(HoldBusy):
            await one.broker.give_back(looked_at)
        go.set()

    assert [hold.state for hold in one.broker.holds()] == [HoldState.HELD]
    assert world.cards.calls == ["prepare card-a"]


async def test_what_is_given_back_is_scrubbed_at_once(
    world: World, one: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hardpoint._core.claims.upkeep._PAUSE", 600.0)
    world.cards.releases = True
    looked = anyio.Event()

    def writing() -> bool:
        looked.set()
        return True

    one.broker._upkeep._writing = writing
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.broker.tend)
        await looked.wait()
        await one.allocate(assignment("card-a"))
        (record,) = await one.broker._ledger.read()
        await one.broker.give_back(record)
        with anyio.fail_after(5):
            while one.broker.quarantined():  # noqa: ASYNC110 - the ledger sets no event
                await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()

    assert world.cards.calls[-1] == "release card-a"


async def test_a_disk_that_is_full_does_not_hide_who_has_the_other_device(
    world: World, one: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prepare(one.broker, claim("u1", "card-b"))
    monkeypatch.setattr(one.broker._ledger, "release", full)

    with pytest.raises(HoldConflict, match="card-b is in use"):
        await one.allocate(assignment("card-a"), assignment("card-b"))

    (event,) = world.told("undo-failed")
    assert "full" in event.message


async def test_what_a_pod_has_is_held_for_it_once(world: World, one: Watched) -> None:
    assert await one.broker.adopt(assignment("card-a"))
    assert not await one.broker.adopt(assignment("card-a"))

    assert one.devices() == ["card-a"]


async def test_what_a_pod_has_and_cannot_be_written_down_is_no_hold(
    one: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one.broker._ledger, "adopt", full)

    with pytest.raises(HoldFailed, match="full") as failed:
        await one.broker.adopt(assignment("card-a"))

    assert failed.value.reason == "ledger"
    assert one.broker.holds() == ()
