"""The steps of a hold's life, one at a time: what each writes and what it leaves alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from broker_world import DOMAIN, FakeHooks, World, claim, prepare

from hardpoint._core.claims.broker import Broker
from hardpoint._core.claims.ports import NothingGoverned
from hardpoint._core.claims.steps import Renewal, Steps
from hardpoint._core.ledger.records import Record, claim_of
from hardpoint.errors import (
    HardpointError,
    HoldBusy,
    HoldConflict,
    HoldError,
    HoldFailed,
    HookFault,
    Refuse,
    TryAgain,
)
from hardpoint.grants import GrantedDevice
from hardpoint.model import Delivery, Device, Hold, HoldState
from hardpoint.testing.cdi import CdiRegistry


@pytest.fixture
async def broker(world: World) -> AsyncIterator[Broker]:
    async with world.broker() as broker:
        yield broker


@pytest.fixture
def steps(broker: Broker) -> Steps:
    return broker._steps


async def held(broker: Broker, *devices: str) -> tuple[Record, ...]:
    await prepare(broker, claim("u1", *devices))
    return await broker._ledger.read()


async def half_done(world: World, broker: Broker) -> Record:
    """Hold a card as a call that hangs leaves it."""
    world.hooks.hanging.add("prepare_device")
    with pytest.raises(HoldBusy):
        await prepare(broker, claim("u1", "card-a"))
    world.hooks.hanging.clear()
    (record,) = await broker._ledger.read()
    return record


async def renew(steps: Steps, world: World, record: Record) -> Renewal:
    return await steps.renew(record, claim_of((record,)), world.offer())


def unknown(world: World, device: str) -> None:
    """Let nobody say where a device is: its driver has not answered yet."""
    del world.devices[device]
    world.complete = False


# -- made true again ------------------------------------------------------------------------------


async def test_what_was_made_true_in_this_boot_stands_while_its_driver_has_not_answered(
    world: World, broker: Broker, steps: Steps
) -> None:
    (record,) = await held(broker, "card-a")
    unknown(world, "card-a")

    renewal = await renew(steps, world, record)

    assert (renewal.result.delivery, renewal.refused) == (record.delivery, None)


async def test_what_was_made_true_in_another_boot_is_not_said_to_be_so_before_its_driver_answers(
    world: World, broker: Broker
) -> None:
    """Its numbers may be those of anything by now."""
    await held(broker, "card-a")
    world.reboot()
    unknown(world, "card-a")
    async with world.broker() as later:
        (record,) = await later._ledger.read()
        with pytest.raises(TryAgain, match="has not answered yet"):
            await renew(later._steps, world, record)


async def test_what_was_never_made_true_is_not_said_to_be_so_before_its_driver_answers(
    world: World, broker: Broker, steps: Steps
) -> None:
    record = await half_done(world, broker)
    unknown(world, "card-a")
    with pytest.raises(TryAgain, match="has not answered yet"):
        await renew(steps, world, record)


async def test_a_hold_that_delivers_nothing_yet_takes_the_parts_of_what_it_will(
    world: World, broker: Broker, steps: Steps
) -> None:
    record = await half_done(world, broker)
    renewal = await renew(steps, world, record)
    assert [node.minor for node in renewal.result.delivery.nodes] == [1]


async def test_what_another_has_by_now_is_tried_again(
    world: World, broker: Broker, steps: Steps
) -> None:
    (record,) = await held(broker, "card-a")
    await prepare(broker, claim("u2", "card-b"))
    world.card("card-a", 2)  # the number that u2 has

    renewal = await renew(steps, world, record)

    assert (renewal.again, renewal.conflict) == (True, True)
    assert isinstance(renewal.refused, HoldFailed)


async def test_a_claim_that_only_looks_takes_nothing_when_it_is_made_true_again(
    world: World, broker: Broker, steps: Steps
) -> None:
    (record,) = await held(broker, "card-a")
    looking = replace(record, allotment=replace(record.allotment, admin_access=True))
    await broker.unprepare(record.claim)
    assert (await renew(steps, world, replace(looking, delivery=None))).refused is None
    assert await broker._ledger.query("SELECT * FROM parts") == []


async def test_the_answer_follows_what_is_delivered(
    world: World, broker: Broker, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    await held(broker, "card-a")

    def more(device: Device, parameters: Any) -> Delivery:
        return Delivery(nodes=device.nodes, cdi_devices=("acme.com/card=a",))

    monkeypatch.setattr(world.cards, "deliver_device", more)
    (answer,) = await prepare(broker, claim("u1", "card-a"))
    (again,) = await broker._ledger.read()

    assert answer.cdi_ids[1:] == ("acme.com/card=a",)
    assert again.answer == answer


async def test_a_grant_that_names_no_file_of_its_own_delivers_nothing(
    world: World,
) -> None:
    class Says(NothingGoverned):
        def entry(self, record: Record) -> GrantedDevice | None:
            return GrantedDevice(name="card-a")

    world.granted = Says()
    async with world.broker() as broker:
        (answer,) = await prepare(broker, claim("u1", "card-a"))

    assert answer.cdi_ids == ("hardpoint.dev/device=u1-card-a",)
    injected = CdiRegistry(world.cdi, info=world.node.info).inject(answer.cdi_ids)
    assert [node["minor"] for node in injected.nodes] == [1]


# -- written down ---------------------------------------------------------------------------------


async def test_holds_that_are_written_down_again_count_no_failures_of_before(
    world: World, broker: Broker, steps: Steps
) -> None:
    (record,) = await held(broker, "card-a")
    await broker._ledger.fail(record, "stuck")
    (failed,) = await broker._ledger.read()
    assert await steps.keep([await renew(steps, world, failed)])
    (record,) = await broker._ledger.read()
    assert (record.tries, record.why) == (0, "")


async def test_holds_are_written_down_for_the_boot_that_they_are_true_in(
    world: World, broker: Broker, steps: Steps
) -> None:
    (record,) = await held(broker, "card-a")
    before = replace(record, boot_id="an earlier one")
    result = (await renew(steps, world, record)).result
    assert await steps.keep([Renewal(replace(result, record=before))])


async def test_an_answer_that_changed_is_written_down(
    world: World, broker: Broker, steps: Steps
) -> None:
    (record,) = await held(broker, "card-a")
    result = (await renew(steps, world, record)).result
    other = replace(result, answer=replace(result.answer, pool="another"))
    assert await steps.keep([Renewal(other)])
    (record,) = await broker._ledger.read()
    assert record.answer == other.answer


async def test_that_a_file_had_to_be_written_again_is_said_where_the_ledger_did_not_change(
    world: World, broker: Broker, steps: Steps
) -> None:
    (record,) = await held(broker, "card-a")
    renewal = await renew(steps, world, record)
    assert not await steps.keep([renewal])
    for file in world.cdi.iterdir():
        file.unlink()
    assert await steps.keep([renewal])
    assert '"minor": 1,' in world.file("u1")


async def test_a_file_keeps_what_other_holds_of_its_claim_deliver(
    world: World, broker: Broker, steps: Steps
) -> None:
    one, two = await held(broker, "card-a", "card-b")
    before = world.file("u1")
    assert one.delivery is not None

    assert not await steps.write_files("u1", {one.id: one.delivery})
    assert world.file("u1") == before
    assert await steps.write_files("u1", {}, gone={two.id})
    assert '"minor": 1,' in world.file("u1")
    assert '"minor": 2,' not in world.file("u1")


async def test_a_file_says_nothing_of_a_hold_that_delivered_nothing_yet(
    world: World, broker: Broker
) -> None:
    await half_done(world, broker)
    world.reboot()
    async with world.broker() as later:
        await later._steps.write_files("u1", {})
    assert world.files() == []


async def test_a_device_that_is_only_scrubbed_still_is_in_no_file_of_its_last_claim(
    world: World, broker: Broker
) -> None:
    world.cards.releases = True
    world.cards.faults["release"] = HookFault("cards", "release_device", "stuck")
    await held(broker, "card-a")
    await broker.unprepare(claim("u1").key)

    (answer,) = await prepare(broker, claim("u1", "card-b"))

    assert [r.device.name for r in await broker._ledger.read()] == ["card-a", "card-b"]
    injected = CdiRegistry(world.cdi, info=world.node.info).inject(answer.cdi_ids)
    assert [node["minor"] for node in injected.nodes] == [2]
    assert '"minor": 1,' not in world.file("u1")


# -- back -----------------------------------------------------------------------------------------


async def test_what_could_be_neither_prepared_nor_undone_is_prepared_with_the_next_call(
    world: World, broker: Broker
) -> None:
    """A driver that answers a second try must not be kept from it by what it cannot undo."""
    for hook in ("prepare", "unprepare"):
        world.cards.faults[hook] = HookFault("cards", f"{hook}_device", "stuck")
    with pytest.raises(HoldFailed):
        await prepare(broker, claim("u1", "card-a"))
    del world.cards.faults["prepare"]

    await prepare(broker, claim("u1", "card-a"))

    assert [hold.state for hold in broker.holds()] == [HoldState.HELD]


@pytest.mark.parametrize(
    "error", [HookFault("cards", "unprepare_device", "stuck"), TryAgain("soon"), Refuse("busy")]
)
async def test_a_device_that_is_not_undone_costs_no_other_of_its_claim(
    world: World, broker: Broker, error: Exception
) -> None:
    await held(broker, "card-a", "card-b")
    world.cards.faults["unprepare card-b"] = error
    for _ in range(2):
        with pytest.raises(HoldError):
            await broker.unprepare(claim("u1").key)
        assert [hold.device.name for hold in broker.holds()] == ["card-b"]

    await broker.unprepare(claim("u1").key)

    (record,) = await broker._ledger.read()
    assert (record.state, record.retired) == (HoldState.QUARANTINED, True)
    (event,) = world.told("device-quarantined")
    assert event.warning


async def test_what_cannot_be_read_is_withheld_when_its_claim_ends(
    world: World, broker: Broker
) -> None:
    await held(broker, "card-a")
    await broker._ledger.write(lambda db: db.execute("UPDATE holds SET device_json = '{', rev = 7"))

    await broker.unprepare(claim("u1").key)

    assert world.files() == []
    assert (DOMAIN.dra_driver, "card-a") in broker.quarantined()
    with pytest.raises(HoldConflict, match="the quarantine after ns/claim-u1"):
        await prepare(broker, claim("u2", "card-a"))


class _Running(FakeHooks):
    """Drivers whose ``prepare_device`` ends while it is waited for, as it ends."""

    ending: HardpointError | None = None

    async def owner(self, hook: str, driver: str, subject: str, **arguments: Any) -> Any:
        key = (driver, hook, subject)
        if key in self.under_way and self.ending is not None:
            self.under_way.discard(key)
            raise self.ending
        return await super().owner(hook, driver, subject, **arguments)


@pytest.mark.parametrize(
    "ending", [HookFault("cards", "prepare_device", "stuck"), TryAgain("soon"), Refuse("busy")]
)
async def test_a_call_that_still_ran_is_undone_however_it_ended(
    world: World, ending: HardpointError
) -> None:
    hooks = world.hooks = _Running(world.hooks.drivers)
    async with world.broker() as broker:
        await half_done(world, broker)
        hooks.ending = ending
        await broker.unprepare(claim("u1").key)

    assert world.cards.calls == ["unprepare card-a"]
    assert broker.holds() == ()


class _NothingToUndo:
    """A driver that changes something that nobody need undo."""

    def prepare_device(self, device: Device, hold: Hold) -> None:
        """Change it."""


async def test_a_device_that_nobody_undoes_is_not_withheld_while_it_is_still_prepared(
    world: World, broker: Broker
) -> None:
    world.hooks.drivers["cards"] = _NothingToUndo()
    await half_done(world, broker)
    world.hooks.hanging.add("prepare_device")

    with pytest.raises(HoldBusy):
        await broker.unprepare(claim("u1").key)
    assert broker.quarantined() == {}

    world.hooks.hanging.clear()
    await broker.unprepare(claim("u1").key)
    assert broker.holds() == ()
