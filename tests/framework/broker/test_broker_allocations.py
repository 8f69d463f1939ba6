"""Devices held under a resource and an id, as the kubelet's device plugin API asks for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from broker_world import DOMAIN, Cards, World, claim, prepare, two_cards
from pod_world import Pods, Watched, assignment, watched

from hardpoint.allocation import Assigned, is_allocation
from hardpoint.errors import HoldConflict, HoldDenied, HoldError, HookFault
from hardpoint.model import Condition, Device, Health, Hold, HoldState
from hardpoint.testing.cdi import CdiError, CdiRegistry, UnresolvableDevice


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = two_cards(tmp_path)
    made.card("shared", 3, shareable=True)
    return made


@asynccontextmanager
async def serving(world: World, pods: Pods | None = None) -> AsyncIterator[Watched]:
    async with world.broker() as broker:
        yield watched(world, broker, pods or Pods())


def minors(world: World, assigned: Assigned) -> list[int]:
    injected = CdiRegistry(world.cdi, info=world.node.info).inject(assigned.cdi_ids)
    return [node["minor"] for node in injected.nodes]


async def test_a_device_is_held_under_its_resource_and_id(world: World) -> None:
    async with serving(world) as one:
        (got,) = await one.allocate(assignment("card-a"))

        (held,) = one.shown()
        (hold,) = one.broker.holds()

    assert (held.resource, held.id, held.device) == ("hardpoint.dev/card", "card-a", "card-a")
    assert (held.state, str(hold.claim)) == (HoldState.HELD, "hardpoint.dev/card/card-a")
    assert is_allocation(hold.claim)
    assert not is_allocation(claim("dp-0123").key)
    assert minors(world, got) == [1]
    assert [node.minor for node in got.delivery.nodes] == [1]
    assert got.delivery.env == {"IMAGE": "plain"}
    assert (world.root / "hw/card-a").read_text() == hold.claim.uid


async def test_an_id_may_hold_what_no_file_name_can_and_is_kept_whole(world: World) -> None:
    wanted = replace(assignment("card-a"), id="card-a@team ü/../1" + "x" * 300)
    async with serving(world) as one:
        (got,) = await one.allocate(wanted)

        assert [held.id for held in one.shown()] == [wanted.id]
    assert minors(world, got) == [1]
    assert len(world.files()) == 1


async def test_names_are_the_same_for_ever_and_no_two_ids_share_one(world: World) -> None:
    async with serving(world) as one:
        (before,) = await one.allocate(assignment("shared"))
        (other,) = await one.allocate(replace(assignment("shared"), id="shared::2"))
        (third,) = await one.allocate(replace(assignment("shared"), resource="acme.dev/card"))
    async with serving(world) as one:
        (after,) = await one.allocate(assignment("shared"))

    assert before == after
    assert len({before.cdi_ids, other.cdi_ids, third.cdi_ids}) == 3


async def test_several_are_held_all_or_none(world: World) -> None:
    async with serving(world) as one:
        await prepare(one.broker, claim("u1", "card-b"))

        with pytest.raises(HoldConflict, match="card-b is in use: ns/claim-u1") as refused:
            await one.allocate(assignment("card-a"), assignment("card-b"))

        assert refused.value.holder == "ns/claim-u1"
        assert one.shown() == ()
        assert [hold.claim.uid for hold in one.broker.holds()] == ["u1"]
        assert [path.name for path in (world.root / "hw").iterdir()] == ["card-b"]
        await one.broker.unprepare(claim("u1").key)
        assert len(await one.allocate(assignment("card-a"), assignment("card-b"))) == 2


async def test_who_hangs_up_while_it_is_given_back_leaves_nothing_half_undone(
    world: World,
) -> None:
    class HangsUp(Cards):
        scope = anyio.CancelScope()

        async def unprepare_device(  # type: ignore[override]
            self, device: Device | None, hold: Hold
        ) -> None:
            self.scope.cancel()
            await anyio.lowlevel.checkpoint()
            super().unprepare_device(device, hold)

    cards = world.hooks.drivers["cards"] = HangsUp(world.root / "hw", world.node)
    async with serving(world) as one:
        await prepare(one.broker, claim("u1", "card-b"))
        with cards.scope, pytest.raises(HoldConflict):
            await one.allocate(assignment("card-a"), assignment("card-b"))

        assert one.devices() == ["card-b"]
    assert world.files() == ["hardpoint.dev-u1.json"]


async def test_what_cannot_be_given_back_is_said_and_it_is_looked_soon_who_is_in_the_way(
    world: World,
) -> None:
    world.cards.faults["unprepare card-a"] = HookFault("cards", "unprepare_device", "stuck")
    async with serving(world) as one:
        one.watch._wake = anyio.Event()
        await prepare(one.broker, claim("u1", "card-b"))
        with pytest.raises(HoldConflict, match="card-b is in use"):
            await one.allocate(assignment("card-a"), assignment("card-b"))

        assert one.watch._wake.is_set()
    (said,) = world.told("undo-failed")
    assert said.warning
    assert "hardpoint.dev/card/card-a" in said.message


async def test_what_a_pod_had_already_stays_when_the_rest_is_refused(world: World) -> None:
    async with serving(world) as one:
        (before,) = await one.allocate(assignment("card-a"))
        one.pods.writes("card-a", at=1)

        with pytest.raises(HoldDenied):
            await one.allocate(assignment("card-a"), assignment("nothing"))

        assert [held.device for held in one.shown()] == ["card-a"]
    assert minors(world, before) == [1]


@pytest.mark.field_case("A08")
async def test_an_id_that_is_asked_for_again_is_answered_the_same(world: World) -> None:
    async with serving(world) as one:
        (first,) = await one.allocate(assignment("card-a"))
        one.pods.writes("card-a", at=1)
        for file in world.cdi.iterdir():
            file.unlink()
        (again,) = await one.allocate(assignment("card-a"))

    assert again == first
    assert minors(world, again) == [1]
    assert world.cards.calls == ["prepare card-a"]


@pytest.mark.parametrize(
    ("spoil", "reason", "why"),
    [
        (lambda world: world.veto("card-a"), "not-offered", "another plugin offers it"),
        (lambda world: world.devices.pop("card-a"), "not-offered", "card-a is not offered"),
        (lambda world: world.unplug("card-a"), "unusable", "absent"),
    ],
)
async def test_what_is_not_to_be_had_is_refused_with_the_reason(
    world: World, spoil: object, reason: str, why: str
) -> None:
    assert callable(spoil)
    spoil(world)
    async with serving(world) as one:
        with pytest.raises(HoldError, match=why) as refused:
            await one.allocate(assignment("card-a"))

        assert refused.value.reason == reason
        assert one.broker.holds() == ()


async def test_an_unhealthy_device_is_refused_with_what_its_driver_says(world: World) -> None:
    ill = Health(Condition.UNHEALTHY, "it fell off the bus")
    world.devices["card-a"] = replace(world.devices["card-a"], health=ill, claimable=False)
    async with serving(world) as one:
        with pytest.raises(HoldDenied, match="it fell off the bus"):
            await one.allocate(assignment("card-a"))


async def test_a_device_that_was_vetoed_since_is_not_given_again_and_not_injected(
    world: World,
) -> None:
    async with serving(world) as one:
        (got,) = await one.allocate(assignment("card-a"))
        one.pods.writes("card-a", at=1)
        world.veto("card-a")

        with pytest.raises(HoldDenied, match="may not be used any more"):
            await one.allocate(assignment("card-a"))

        assert [held.state for held in one.shown()] == [HoldState.HELD]
    with pytest.raises(CdiError, match="device-withheld"):
        minors(world, got)


async def test_a_claim_cannot_have_what_an_allocation_has_nor_the_reverse(world: World) -> None:
    async with serving(world) as one:
        await one.allocate(assignment("card-a"))
        with pytest.raises(HoldConflict, match=r"hardpoint\.dev/card/card-a"):
            await prepare(one.broker, claim("u1", "card-a"))
    async with serving(world) as one:
        with pytest.raises(HoldConflict, match=r"hardpoint\.dev/card/card-a"):
            await prepare(one.broker, claim("u1", "card-a"))
        with pytest.raises(HoldConflict):
            await one.allocate(replace(assignment("card-a"), resource="acme.dev/stick"))


async def test_of_two_agents_one_gets_the_device_and_both_answer_for_it(world: World) -> None:
    async with serving(world) as old, serving(world) as new:
        (first,) = await old.allocate(assignment("card-a"))
        (again,) = await new.allocate(assignment("card-a"))
        assert first == again
        with pytest.raises(HoldConflict):
            await new.allocate(replace(assignment("card-a"), id="card-a@other"))


async def test_two_agents_that_ask_for_overlapping_sets_never_share_a_device(world: World) -> None:
    """Both may be refused: the kubelet fails one of the pods then, and asks again."""
    got: list[str] = []

    async def ask(one: Watched, resource: str, *devices: str) -> None:
        try:
            await one.allocate(*(replace(assignment(d), resource=resource) for d in devices))
        except HoldConflict:
            return
        got.append(resource)

    async with serving(world) as old, serving(world) as new:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, old, "acme.dev/a", "card-a", "card-b")
            tasks.start_soon(ask, new, "acme.dev/b", "card-b", "card-a")
        held = await old.broker._ledger.read()  # neither knows at once what the other gave back

    assert len(got) <= 1
    assert {hold.claim.namespace for hold in held} == set(got)


async def test_files_follow_nodes_that_are_renumbered(world: World) -> None:
    async with serving(world) as one:
        (got,) = await one.allocate(assignment("card-a"))
        world.card("card-a", 9)
        await one.broker.refresh(world.offer())

    assert minors(world, got) == [9]


async def test_after_a_reboot_the_names_of_before_are_good_again(world: World) -> None:
    """The kubelet does not ask again: it has saved the names."""
    async with serving(world) as one:
        (got,) = await one.allocate(assignment("card-a"))
    world.reboot()
    world.card("card-a", 7)
    with pytest.raises(UnresolvableDevice):
        minors(world, got)

    async with serving(world) as one:
        await one.broker.restore()

        assert minors(world, got) == [7]
        assert [held.state for held in one.shown()] == [HoldState.HELD]
    assert world.cards.calls == ["prepare card-a", "prepare card-a"]


async def test_a_ledger_that_was_lost_is_found_again_by_the_files_and_asking_names_it(
    world: World,
) -> None:
    async with serving(world) as one:
        (before,) = await one.allocate(assignment("card-a"))
    for path in world.state.glob("ledger.db*"):
        path.unlink()

    async with serving(world) as one:
        await one.broker.restore()
        with pytest.raises(HoldConflict):
            await prepare(one.broker, claim("u1", "card-a"))
        assert one.shown() == ()
        (after,) = await one.allocate(assignment("card-a"))

        assert after == before
        assert [(held.resource, held.id) for held in one.shown()] == [
            ("hardpoint.dev/card", "card-a")
        ]


async def test_an_id_that_means_another_device_by_now_is_taken_anew(world: World) -> None:
    async with serving(world) as one:
        await one.allocate(replace(assignment("card-a"), id="1"))
        (got,) = await one.allocate(replace(assignment("card-b"), id="1"))

        assert [held.device for held in one.shown()] == ["card-b"]
    assert minors(world, got) == [2]
    assert world.cards.calls == ["prepare card-a", "unprepare card-a", "prepare card-b"]


async def test_a_driver_that_fails_leaves_nothing_held(world: World) -> None:
    world.cards.faults["prepare card-b"] = HookFault("cards", "prepare_device", "no")
    async with serving(world) as one:
        with pytest.raises(HoldError, match="prepare_device of plugin 'cards' failed"):
            await one.allocate(assignment("card-a"), assignment("card-b"))

        assert one.broker.holds() == ()
    assert world.files() == []


def test_the_domain_decides_who_publishes_and_not_what_it_is_held_under() -> None:
    one = assignment("card-a")
    other = replace(one, domain=replace(DOMAIN, dra_driver="other.dev"))

    assert one.key.uid == other.key.uid
    assert one.key != other.key
