"""Devices that are offered under a grant: held under that one, and of no use once it is another."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest
from broker_world import DOMAIN, World, claim, prepare, reading
from pod_world import Pods, Watched, assignment, watched

from hardpoint._core.claims.broker import Broker
from hardpoint._core.claims.ports import NothingGoverned
from hardpoint._core.ledger.grantrows import KnownGrant, Meant, keep_grant
from hardpoint._core.ledger.records import Record
from hardpoint.allocation import Assignment, device_id, grant_of_id, is_id_of
from hardpoint.errors import HoldConflict, HoldDenied
from hardpoint.grants import Grant, GrantedDevice, GrantOutcome, Outcome, published_name
from hardpoint.model import Claim, DeviceNode, HoldState, Offered, PreparedDevice
from hardpoint.testing.cdi import CdiError, CdiRegistry

OLD, NEW = "alloc-1", "alloc-2"


@pytest.fixture
async def broker(world: World) -> AsyncIterator[Broker]:
    async with serving(world) as broker:
        yield broker


@asynccontextmanager
async def serving(world: World) -> AsyncIterator[Broker]:
    """Start a broker whose ledger knows of both grants: what the offer says decides."""
    meant = tuple(Meant(DOMAIN.dra_driver, one.device) for one in world.devices.values())
    in_force = GrantOutcome(Outcome.IN_FORCE)
    async with world.broker() as broker:
        for allocation in (OLD, NEW):
            known = Grant(allocation=allocation, source="policy/test")
            kept = KnownGrant(grant=known, devices=meant, outcome=in_force)
            await broker._ledger.write(partial(_keep, known=kept))
        yield broker


def _keep(db: sqlite3.Connection, known: KnownGrant) -> None:
    keep_grant(db, known)


def grant(world: World, device: str, allocation: str) -> None:
    world.devices[device] = replace(world.devices[device], allocation=allocation)


def under(allocation: str, *devices: str, uid: str = "u1") -> Claim:
    """A claim as a frontend translates it."""
    found = claim(uid, *devices, allocation=allocation)
    named = [
        replace(one, published=published_name(one.device, allocation) if allocation else "")
        for one in found.allotments
    ]
    return replace(found, allotments=tuple(named))


def granted(device: str, allocation: str) -> Assignment:
    return replace(assignment(device), id=device_id(device, allocation), allocation=allocation)


def nodes(world: World, answer: PreparedDevice) -> list[int]:
    injected = CdiRegistry(world.cdi, info=world.node.info).inject(answer.cdi_ids)
    return [node["minor"] for node in injected.nodes]


def gives_nothing(world: World, answer: PreparedDevice) -> bool:
    """Say whether no container starts with it, for the reason that it may not be used."""
    with pytest.raises(CdiError, match="device-withheld"):
        nodes(world, answer)
    return True


async def test_a_claim_under_a_grant_is_answered_by_the_schedulers_name(
    world: World, broker: Broker
) -> None:
    grant(world, "card-a", OLD)

    (answer,) = await prepare(broker, under(OLD, "card-a"))

    assert answer.device == published_name("card-a", OLD)
    assert [hold.allocation for hold in broker.holds()] == [OLD]
    assert nodes(world, answer) == [1]


@pytest.mark.parametrize(
    ("offered", "asked", "why"),
    [
        (NEW, OLD, "is granted under another allocation now"),
        (NEW, "", "is granted under another allocation now"),
        ("", OLD, "is offered without a grant now"),
    ],
)
async def test_what_was_allocated_under_another_grant_is_refused_before_anything_is_held(
    world: World, broker: Broker, offered: str, asked: str, why: str
) -> None:
    grant(world, "card-a", offered)

    with pytest.raises(HoldDenied, match=why) as refused:
        await prepare(broker, under(asked, "card-a"))

    assert refused.value.reason == "revoked"
    assert (broker.holds(), world.cards.calls, world.files()) == ((), [], [])


async def test_of_two_devices_one_under_another_grant_costs_the_claim(
    world: World, broker: Broker
) -> None:
    grant(world, "card-a", OLD)
    grant(world, "card-b", NEW)

    with pytest.raises(HoldDenied, match="card-b"):
        await prepare(broker, under(OLD, "card-a", "card-b"))

    assert broker.holds() == ()


async def test_a_name_of_another_grant_is_refused_with_what_became_of_the_device(
    world: World, broker: Broker
) -> None:
    grant(world, "card-a", NEW)
    stale = published_name("card-a", OLD)
    world.veto("card-b")

    with pytest.raises(HoldDenied, match="card-a is granted under another allocation") as error:
        await prepare(broker, claim("u1", stale))
    assert error.value.reason == "not-offered"
    with pytest.raises(HoldDenied, match="another plugin offers it"):
        await prepare(broker, claim("u2", published_name("card-b", OLD)))
    with pytest.raises(HoldDenied, match=r"is not offered$"):
        await prepare(broker, claim("u3", "card-c-0123abcd"))


async def test_a_held_device_whose_grant_became_another_is_revoked_and_delivers_nothing(
    world: World, broker: Broker
) -> None:
    grant(world, "card-a", OLD)
    wanted = under(OLD, "card-a")
    (answer,) = await prepare(broker, wanted)
    grant(world, "card-a", NEW)

    await broker.refresh(world.offer())

    assert gives_nothing(world, answer)
    with pytest.raises(HoldDenied, match="may not be used any more") as refused:
        await broker.prepare(wanted.key, reading(AssertionError("it is held: nobody reads it")))
    assert refused.value.reason == "revoked"
    assert len(broker.holds()) == 1


async def test_a_grant_that_comes_back_before_its_pod_is_gone_delivers_again(
    world: World, broker: Broker
) -> None:
    grant(world, "card-a", OLD)
    wanted = under(OLD, "card-a")
    (answer,) = await prepare(broker, wanted)
    for allocation in (NEW, OLD):
        grant(world, "card-a", allocation)
        await broker.refresh(world.offer())

    assert nodes(world, answer) == [1]
    assert await broker.prepare(wanted.key, reading(AssertionError("held"))) == (answer,)


async def test_what_was_taken_before_a_source_governed_it_is_revoked(
    world: World, broker: Broker
) -> None:
    (answer,) = await prepare(broker, under("", "card-a"))
    grant(world, "card-a", OLD)

    await broker.refresh(world.offer())

    assert gives_nothing(world, answer)


async def test_an_absent_device_is_absent_whatever_it_was_granted_under(
    world: World, broker: Broker
) -> None:
    grant(world, "card-a", OLD)
    wanted = under(OLD, "card-a")
    await prepare(broker, wanted)
    world.unplug("card-a")
    grant(world, "card-a", "")

    with pytest.raises(Exception, match="is not on the node") as error:
        await broker.prepare(wanted.key, reading(AssertionError("held")))
    assert not isinstance(error.value, HoldDenied)


async def test_a_claim_found_in_a_file_alone_goes_on_until_it_is_prepared_anew(
    world: World,
) -> None:
    grant(world, "card-a", OLD)
    wanted = under(OLD, "card-a")
    async with serving(world) as broker:
        (answer,) = await prepare(broker, wanted)
    for file in world.state.iterdir():
        file.unlink()
    async with serving(world) as broker:
        await broker.restore()
        await broker.refresh(world.offer())
        assert nodes(world, answer) == [1]

        await prepare(broker, wanted)
        assert [hold.allocation for hold in broker.holds()] == [OLD]


class Says(NothingGoverned):
    """What is known of grants, by a test."""

    def __init__(self) -> None:
        self.ended = False
        self.named: GrantedDevice | None = None

    async def confirm(self, offered: Iterable[Offered]) -> None:
        self._check(one.name for one in offered)

    async def confirm_held(self, records: Iterable[Record]) -> None:
        self._check(one.device.name for one in records)

    def entry(self, record: Record) -> GrantedDevice | None:
        return self.named

    def _check(self, names: Iterable[str]) -> None:
        if self.ended and list(names) == ["card-a"]:
            raise HoldDenied("it has just ended", reason="revoked")


async def test_a_grant_that_ended_since_the_offer_was_made_gives_nothing_anew_and_nothing_again(
    world: World,
) -> None:
    says = world.granted = Says()
    says.ended = True
    grant(world, "card-a", OLD)
    wanted = under(OLD, "card-a")
    async with serving(world) as broker:
        with pytest.raises(HoldDenied, match="it has just ended"):
            await prepare(broker, wanted)
        assert (broker.holds(), world.cards.calls) == ((), [])

        says.ended = False
        await prepare(broker, wanted)
        says.ended = True
        with pytest.raises(HoldDenied, match="it has just ended"):
            await prepare(broker, wanted)


async def test_what_the_grants_own_file_delivers_is_answered_by_its_name_and_not_said_twice(
    world: World,
) -> None:
    says = world.granted = Says()
    says.named = GrantedDevice(
        name="card-a", cdi_id="bcd.dev/card=a", nodes=(DeviceNode(path="/dev/card-a"),)
    )
    grant(world, "card-a", OLD)
    async with serving(world) as broker:
        (answer,) = await prepare(broker, under(OLD, "card-a"))
    assert answer.cdi_ids[1:] == ("bcd.dev/card=a",)
    assert "/dev/card-a" not in world.file("u1")


# -- device plugin allocations ---------------------------------------------------------------------


@pytest.fixture
async def pods(world: World, broker: Broker) -> Watched:
    return watched(world, broker, Pods())


async def test_an_id_holds_its_device_under_the_grant_that_it_names(
    world: World, pods: Watched
) -> None:
    grant(world, "card-a", OLD)

    await pods.allocate(granted("card-a", OLD))

    assert [(h.device.name, h.allocation) for h in pods.broker.holds()] == [("card-a", OLD)]


async def test_an_id_of_a_grant_that_ended_is_refused(world: World, pods: Watched) -> None:
    grant(world, "card-a", NEW)

    with pytest.raises(HoldDenied, match="granted under another allocation now") as refused:
        await pods.allocate(granted("card-a", OLD))
    assert refused.value.reason == "revoked"
    assert pods.broker.holds() == ()


@pytest.mark.parametrize("announced", [True, False])
async def test_what_a_pod_has_under_a_grant_that_ended_is_held_under_that_one(
    world: World, pods: Watched, announced: bool
) -> None:
    grant(world, "card-a", NEW)
    old = granted("card-a", OLD)
    current = granted("card-a", NEW)
    pods.watch.announce(current.resource, [old, current] if announced else [current])
    pods.pods.has("left-behind", old.id)

    await pods.settle()
    await pods.broker.attend()

    (hold,) = pods.broker.holds()
    assert (hold.claim.name, hold.allocation, hold.state) == (old.id, OLD, HoldState.HELD)
    assert "withheld" in world.file(hold.claim.uid)
    with pytest.raises(HoldConflict, match="card-a@alloc-1 holds"):
        await pods.allocate(current)


async def test_what_a_pod_has_under_the_grant_in_force_is_held_and_delivers(
    world: World, pods: Watched
) -> None:
    grant(world, "card-a", OLD)
    pods.pods.has("running", device_id("card-a", OLD))

    await pods.settle()
    await pods.broker.attend()

    (hold,) = pods.broker.holds()
    assert hold.allocation == OLD
    assert "withheld" not in world.file(hold.claim.uid)


def test_an_id_says_its_device_and_its_grant() -> None:
    long = "pci-" + "0" * 55
    for device in ("card-a", long):
        for allocation in ("", "alloc-1", "a" * 40):
            for replica in (None, 0, 12):
                id_ = device_id(device, allocation, replica)
                assert is_id_of(id_, device), id_
                assert grant_of_id(id_) == allocation
                assert not is_id_of(id_, device[:-1] + "x")


@pytest.mark.parametrize("id_", ["", "@alloc", "card-a@", "card-a::", "card-a::x", "card-ab"])
def test_what_no_device_was_ever_listed_by_is_no_id(id_: str) -> None:
    assert not is_id_of(id_, "card-a")
