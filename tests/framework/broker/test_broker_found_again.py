"""Whose is what, after the loss of a ledger: what CDI files and pods say, and how far it goes."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from broker_world import DOMAIN, World, claim, prepare
from pod_world import assignment

from hardpoint._core.ledger.locks import ClaimLocks
from hardpoint.errors import HoldBusy, HoldConflict
from hardpoint.model import Device, DeviceNode, Domain

ACME = Domain("acme.dev", "acme.dev", "acme.dev")


async def held_and_lost(world: World, *devices: str, uid: str = "u1") -> None:
    """Hold devices for a claim, and lose the ledger."""
    async with world.broker() as broker:
        await prepare(broker, claim(uid, *devices))
    lose_ledger(world)


def lose_ledger(world: World) -> None:
    for file in world.state.glob("ledger.db*"):
        file.unlink()


def file_as(world: World, name: str, *changes: tuple[str, str]) -> None:
    """Write u1's file under another name, with other words in it."""
    text = world.file("u1")
    for word, other in changes:
        text = text.replace(word, other)
    (world.cdi / name).write_text(text)


@asynccontextmanager
async def another_agents_turn(world: World, uid: str) -> AsyncIterator[None]:
    """Have a claim's turn, as another agent does whose call for it is under way."""
    locks = ClaimLocks(world.state / "claims.lock")
    try:
        async with locks.turn(uid, uid):
            yield
    finally:
        locks.close()


def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hardpoint._core.claims.upkeep._PATIENCE", 10.0)


# -- another agent ---------------------------------------------------------------------------------


async def test_a_claim_is_not_found_again_under_another_agents_call_for_it(world: World) -> None:
    await held_and_lost(world, "card-a")
    async with world.broker() as broker:
        async with another_agents_turn(world, "u1"):
            await broker.restore()
            assert (broker.holds(), bool(broker.unknown)) == ((), True)

        await broker.attend()

        assert [hold.device.name for hold in broker.holds()] == ["card-a"]
        assert not broker.unknown


async def test_what_a_pod_has_is_not_held_under_another_agents_call_for_it(world: World) -> None:
    wanted = assignment("card-a")
    async with world.broker() as broker, another_agents_turn(world, wanted.key.uid):
        with pytest.raises(HoldBusy):
            await broker.adopt(wanted)

        assert broker.holds() == ()


async def test_a_claim_that_another_agent_ends_meanwhile_is_not_found_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient(monkeypatch)
    await held_and_lost(world, "card-a")
    async with world.broker() as broker, anyio.create_task_group() as tasks:
        read, files = anyio.Event(), broker._upkeep._files.claims
        loop = anyio.lowlevel.current_token()

        def claims(*arguments: object) -> object:
            found = files(*arguments)  # type: ignore[arg-type]
            anyio.from_thread.run_sync(read.set, token=loop)
            return found

        monkeypatch.setattr(broker._upkeep._files, "claims", claims)
        async with another_agents_turn(world, "u1"):
            tasks.start_soon(broker.restore)
            await read.wait()
            (world.cdi / "hardpoint.dev-u1.json").unlink()

    async with world.broker() as broker:
        assert (broker.holds(), broker.unknown) == ((), "")


async def test_two_agents_find_a_claim_again_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient(monkeypatch)
    await held_and_lost(world, "card-a", "card-b")
    async with world.broker() as one, world.broker() as two:
        async with anyio.create_task_group() as tasks, another_agents_turn(world, "u1"):
            for broker in (one, two):
                tasks.start_soon(broker.restore)
                while "u1" not in broker._locks._queues:  # noqa: ASYNC110 - it sets no event
                    await anyio.sleep(0.001)

        assert [r.device.name for r in await one._ledger.read()] == ["card-a", "card-b"]
        assert len(await prepare(two, claim("u1", "card-a", "card-b"))) == 2


# -- whose it is -----------------------------------------------------------------------------------


async def test_a_device_found_again_that_names_no_part_is_still_held_by_one_claim(
    world: World,
) -> None:
    world.add(Device(name="socket", kind="x", driver="plain"))
    await held_and_lost(world, "socket")
    async with world.broker() as broker:
        await broker.restore()

        with pytest.raises(HoldConflict, match="claim u1"):
            await prepare(broker, claim("u2", "socket"))


async def test_a_shareable_device_found_again_is_shared(world: World) -> None:
    world.card("shared", 3, shareable=True)
    await held_and_lost(world, "shared")
    async with world.broker() as broker:
        await broker.restore()

        await prepare(broker, claim("u2", "shared"))

        assert {hold.claim.uid for hold in broker.holds()} == {"u1", "u2"}


async def test_a_share_is_found_again_as_the_share_that_it_is(world: World) -> None:
    world.card("shared", 3, shareable=True)
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "shared", share_id="s1"))
        await prepare(broker, claim("u2", "card-a"))
    lose_ledger(world)
    async with world.broker() as broker:
        await broker.restore()

        found = {hold.claim.uid: (hold.device.name, hold.share_id) for hold in broker.holds()}

    assert found == {"u1": ("shared", "s1"), "u2": ("card-a", "")}
    said = [event for event in world.told("hold-rebuilt") if event.warning]
    assert sorted(event.message.partition(":")[0] for event in said) == [
        "device card-a is held by claim u2",
        "device shared is held by claim u1",
    ]


async def test_a_name_in_another_vendors_file_is_not_our_device_of_that_name(
    world: World,
) -> None:
    await held_and_lost(world, "card-a")
    file_as(world, "acme.dev-u1.json", ("hardpoint.dev", "acme.dev"), ('"minor": 1', '"minor": 9'))
    (world.cdi / "hardpoint.dev-u1.json").unlink()
    async with world.broker() as broker:
        broker._upkeep._domains = lambda: (DOMAIN, ACME)
        await broker.restore()

        (hold,) = broker.holds()
        assert (hold.device.name, hold.device.kind) == ("card-a", "unknown")
        assert hold.claim.dra_driver == "acme.dev"
        shutil.rmtree(world.root / "hw")
        (world.root / "hw").mkdir()
        await prepare(broker, claim("u2", "card-a"))


async def test_two_names_of_one_claim_that_say_the_same_are_both_kept(world: World) -> None:
    """One of each vendor's file, of devices that nobody publishes under one DRA driver."""
    await held_and_lost(world, "card-a")
    world.devices.clear()
    file_as(world, "acme.dev-u1.json", ("hardpoint.dev", "acme.dev"), ('"minor": 1', '"minor": 9'))
    async with world.broker() as broker:
        broker._upkeep._domains = lambda: (DOMAIN, Domain(DOMAIN.dra_driver, "x", "acme.dev"))
        await broker.restore()

        assert (broker.unknown, len(broker.holds())) == ("", 2)


async def test_two_names_in_one_file_that_say_the_same_are_both_kept(world: World) -> None:
    """Whoever wrote such a file: the agent has to start, and both are somebody's."""
    async with world.broker() as broker:
        await prepare(broker, claim("u1", "card-a", "card-b"))
    lose_ledger(world)
    same = (("u1-card-a", "u1-card-a:r0"), ("u1-card-b", "u1-card-a-:r0"))
    file_as(world, "hardpoint.dev-u1.json", *same)
    async with world.broker() as broker:
        await broker.restore()

        assert (broker.unknown, len(broker.holds())) == ("", 2)


# -- what pods have --------------------------------------------------------------------------------


async def test_what_a_pod_has_is_said_to_be_held_for_it(world: World) -> None:
    async with world.broker() as broker:
        await broker.adopt(assignment("card-a"))

    (event,) = world.told("hold-rebuilt")
    assert event.warning
    assert "device card-a is held by hardpoint.dev/card/card-a again" in event.message


async def test_a_node_whose_numbers_are_not_known_is_not_delivered_by_its_path_alone(
    world: World,
) -> None:
    """What the path leads to by then may be another's."""
    late = DeviceNode(path="/dev/late")
    world.add(Device(name="late", kind="x", nodes=(late,), driver="cards"))
    del world.node.nodes["/dev/late"]
    world.cards.faults["deliver"] = RuntimeError("firmware")
    async with world.broker() as broker:
        await broker.adopt(assignment("late"))
        world.devices.clear()
        world.complete = False
        await broker.refresh(world.offer())

        (hold,) = broker.holds()
        assert "/dev/late" not in world.file(hold.claim.uid)
