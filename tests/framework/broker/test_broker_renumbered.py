"""A hold covers what it delivers now: numbers change under it, and must never be two holders'."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from broker_world import DOMAIN, MAJOR, World, claim, prepare

from hardpoint._core.claims.broker import Broker
from hardpoint.errors import HoldConflict, HoldError, HoldFailed, TryAgain
from hardpoint.model import Device, DeviceNode


def rival(world: World, minor: int) -> Device:
    """Another driver's device that delivers a node, and names no part but that."""
    node = DeviceNode(path="/dev/rival", major=MAJOR, minor=minor)
    return world.add(Device(name="rival", kind="card", nodes=(node,), driver="plain"), DOMAIN)


def minors(world: World, uid: str) -> list[int | None]:
    return [
        node.get("minor")
        for device in json.loads(world.file(uid))["devices"]
        for node in device["containerEdits"]["deviceNodes"]
    ]


async def refresh(world: World, broker: Broker) -> None:
    await broker.refresh(world.offer())
    await broker.attend()


async def test_a_node_that_a_claim_has_under_a_new_number_is_given_to_no_other(
    world: World,
) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        world.card("card-a", 7)
        await refresh(world, broker)
        rival(world, 7)

        with pytest.raises(HoldConflict, match="ns/claim-u1"):
            await prepare(broker, claim("u2", "rival"))

        assert minors(world, "u1") == [7]
        await broker.unprepare(claim("u1").key)
        assert await prepare(broker, claim("u2", "rival"))


async def test_an_old_number_stays_its_holders_as_long_as_its_container_may_have_it_open(
    world: World,
) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        world.card("card-a", 7)
        await refresh(world, broker)
        rival(world, 1)

        with pytest.raises(HoldConflict, match="ns/claim-u1"):
            await prepare(broker, claim("u2", "rival"))


async def test_a_number_that_another_claim_has_is_not_delivered_to_a_second(world: World) -> None:
    rival(world, 7)
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        await prepare(broker, claim("u2", "rival"))
        world.card("card-a", 7)

        await refresh(world, broker)

        assert (minors(world, "u1"), minors(world, "u2")) == ([None], [7])
        with pytest.raises(HoldFailed, match="ns/claim-u2 holds char:240:7"):
            await prepare(broker, claim("u1", "card-a"))
        assert "char:240:7" in world.told("hold-not-renewed")[0].message

        await broker.unprepare(claim("u2").key)
        await broker.attend()
        assert minors(world, "u1") == [7]


@pytest.mark.field_case("G21")
async def test_two_held_cards_whose_numbers_were_swapped_both_get_their_own(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        await prepare(broker, claim("u2", "card-b"))
        world.card("card-a", 2)
        world.card("card-b", 1)

        await refresh(world, broker)

        assert (minors(world, "u1"), minors(world, "u2")) == ([2], [1])


@pytest.mark.parametrize("order", [("u1", "u2"), ("u2", "u1")])
async def test_numbers_swapped_by_a_reboot_cost_neither_claim_anything(
    world: World, order: tuple[str, str]
) -> None:
    async with world.broker() as broker:
        for uid in order:
            await prepare(broker, claim(uid, "card-a" if uid == "u1" else "card-b"))
    world.reboot()
    world.card("card-a", 2)
    world.card("card-b", 1)

    async with world.broker() as broker:
        await broker.restore()

        assert (minors(world, "u1"), minors(world, "u2")) == ([2], [1])
        await broker.unprepare(claim("u2").key)
        rival(world, 2)
        with pytest.raises(HoldConflict, match="ns/claim-u1"):
            await prepare(broker, claim("u3", "rival"))
        rival(world, 1)
        assert await prepare(broker, claim("u3", "rival"))


async def test_a_prepare_that_goes_on_after_a_renumbering_holds_the_new_number(
    world: World,
) -> None:
    async with world.broker() as broker:
        world.hooks.hanging.add("prepare_device")
        with pytest.raises(HoldError):
            await prepare(broker, claim("u1", "card-a"))
        world.hooks.hanging.clear()
        world.card("card-a", 7)

        await prepare(broker, claim("u1", "card-a"))

        assert minors(world, "u1") == [7]
        rival(world, 7)
        with pytest.raises(HoldConflict, match="ns/claim-u1"):
            await prepare(broker, claim("u2", "rival"))


async def test_a_node_that_joins_a_held_device_is_held_with_it(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        more = DeviceNode(path="/dev/card-a-more", major=MAJOR, minor=9)
        old = world.devices["card-a"].device
        world.add(replace(old, nodes=(*old.nodes, more)))
        await refresh(world, broker)

        assert minors(world, "u1") == [1, 9]
        rival(world, 9)
        with pytest.raises(HoldConflict, match="ns/claim-u1"):
            await prepare(broker, claim("u2", "rival"))


async def test_a_number_that_was_given_up_and_comes_back_is_asked_for_again(world: World) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        await prepare(broker, claim("u2", "card-b"))
        world.cards.faults["deliver"] = TryAgain("in the middle of it")
        await refresh(world, broker)
        world.cards.faults.clear()
        world.card("card-b", 1)  # card-a has nothing now: its number goes to card-b
        world.card("card-a", 5)
        await refresh(world, broker)
        world.card("card-a", 1)
        await refresh(world, broker)

        assert (minors(world, "u1"), minors(world, "u2")) == ([None], [1])


async def test_two_claims_refreshed_at_once_after_a_reboot_never_share_a_number(
    world: World,
) -> None:
    rival(world, 7)
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
        await prepare(broker, claim("u2", "rival"))
    world.reboot()
    world.card("card-a", 7)

    async with world.broker() as broker:
        await broker.restore()
        await broker.attend()

        assert sorted([minors(world, "u1"), minors(world, "u2")], key=str) == [[7], [None]]


async def test_what_a_file_still_delivers_stays_its_claims_while_it_is_prepared_anew(
    world: World,
) -> None:
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a"))
    (world.state / "ledger.db").unlink()
    async with world.broker() as broker:
        await broker.restore()
        world.card("card-a", 7)
        world.hooks.hanging.add("prepare_device")
        with pytest.raises(HoldError):
            await prepare(broker, claim("u1", "card-a"))
        world.hooks.hanging.clear()
        rival(world, 1)

        assert minors(world, "u1") == [1]
        with pytest.raises(HoldConflict, match="ns/claim-u1"):
            await prepare(broker, claim("u2", "rival"))


@pytest.mark.field_case("D08")
async def test_a_file_never_delivers_numbers_of_another_boot(world: World) -> None:
    """One of a claim's two drivers is late after a reboot: its numbers are not known yet."""
    node = DeviceNode(path="/dev/plain", major=MAJOR, minor=8)
    world.add(Device(name="plain", kind="x", nodes=(node,), driver="plain"))
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "plain", "card-a"))
        await prepare(broker, claim("u2", "card-b"))
    world.reboot()
    world.hooks.hanging.add("prepare_device")

    async with world.broker() as broker:
        await broker.restore()
        assert minors(world, "u1") == [8, None]

        with pytest.raises(HoldError):
            await broker.unprepare(claim("u2").key)
        assert minors(world, "u2") == [None]

        world.hooks.hanging.clear()
        world.card("card-a", 5)
        await broker.attend()
        assert minors(world, "u1") == [8, 5]
