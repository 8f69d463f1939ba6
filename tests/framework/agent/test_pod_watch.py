"""What follows from the kubelet's list of pods, and what does not."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from broker_world import World, claim, prepare, two_cards
from pod_world import CARD, Pods, Watched, assignment, watched

from hardpoint._core.ledger.records import Record
from hardpoint.allocation import PodUser
from hardpoint.errors import HoldError, HoldFailed, HookFault
from hardpoint.kubelet.pods import HeldResource, PodUse
from hardpoint.kubelet.podsource import Checkpoint
from hardpoint.model import Device, Hold, HoldState


@pytest.fixture
def world(tmp_path: Path) -> World:
    return two_cards(tmp_path)


@pytest.fixture
def pods() -> Pods:
    """A kubelet that knows a pod of the API server's."""
    made = Pods()
    made.has("bystander")
    return made


@asynccontextmanager
async def serving(
    world: World, pods: Pods, itself: tuple[str, str] | None = None
) -> AsyncIterator[Watched]:
    async with world.broker() as broker:
        yield watched(world, broker, pods, itself)


@asynccontextmanager
async def holding(world: World, pods: Pods) -> AsyncIterator[Watched]:
    """A card that a pod has, and a kubelet that has been listing it for a while."""
    async with serving(world, pods) as one:
        await one.allocate(assignment("card-a"))
        pods.has("train", "card-a")
        await one.settle()
        yield one


# -- the end --------------------------------------------------------------------------------------


@pytest.mark.field_case("J04")
async def test_a_hold_ends_after_two_good_reads_without_its_id(world: World, pods: Pods) -> None:
    async with holding(world, pods) as one:
        pods.gone("train")
        await one.look()
        assert one.devices() == ["card-a"]
        await one.look()
        assert one.devices() == []

        assert world.files() == []
        assert world.cards.calls == ["prepare card-a", "unprepare card-a"]
        await prepare(one.broker, claim("u1", "card-a"))
    assert [event.facts["claim"] for event in world.told("allocation-ended")] == [
        "hardpoint.dev/card/card-a"
    ]


async def test_an_init_container_that_no_list_names_keeps_its_device(
    world: World, pods: Pods
) -> None:
    async with serving(world, pods) as one:
        await one.allocate(assignment("card-a"))
        pods.has("train")
        pods.writes("card-a", at=1)
        for _ in range(30):
            await one.look()
        assert one.devices() == ["card-a"]

        pods.writes(at=2)
        await one.look()
        assert one.devices() == []


async def test_a_checkpoint_that_cannot_be_read_ends_nothing_and_is_said(
    world: World, pods: Pods
) -> None:
    async with holding(world, pods) as one:
        pods.gone("train")
        pods.unreadable = "PermissionError"
        for _ in range(5):
            await one.look()
        assert one.devices() == ["card-a"]
        assert [e.source for e in one.board.entries] == ["pod-resources checkpoint"]

        pods.unreadable = ""
        await one.look()
        assert one.devices() == []
        assert not one.board.entries


async def test_a_checkpoint_that_nobody_writes_any_more_is_not_believed_for_ever(
    world: World, pods: Pods
) -> None:
    async with holding(world, pods) as one:
        pods.gone("train")
        pods.writes("card-a", at=1)
        for _ in range(5):
            await one.look()
        assert one.devices() == ["card-a"]

        await one.look(after=one.watch.pace.alone)
        assert one.devices() == []


async def test_two_reads_at_one_moment_count_once(world: World, pods: Pods) -> None:
    async with holding(world, pods) as one:
        pods.gone("train")
        await one.look()
        await one.look(after=0.1)
        assert one.devices() == ["card-a"]


async def test_a_failed_read_is_none(world: World, pods: Pods) -> None:
    async with holding(world, pods) as one:
        pods.gone("train")
        await one.look()
        pods.broken = "connection refused"
        for _ in range(5):
            assert not await one.look()
        assert one.devices() == ["card-a"]
        pods.broken = ""
        await one.look()
        assert one.devices() == []


async def test_a_read_that_lists_it_starts_the_count_anew(world: World, pods: Pods) -> None:
    async with holding(world, pods) as one:
        pods.gone("train")
        await one.look()
        pods.has("train", "card-a")
        await one.look()
        pods.gone("train")
        await one.look()
        assert one.devices() == ["card-a"]


async def test_a_pod_that_is_being_admitted_is_not_listed_yet(world: World, pods: Pods) -> None:
    async with serving(world, pods) as one:
        await one.settle()
        await one.allocate(assignment("card-a"))
        for _ in range(8):
            await one.look(after=1.5)
        assert one.devices() == ["card-a"]


async def test_asking_again_starts_anew_whoever_asks(world: World, pods: Pods) -> None:
    async with holding(world, pods) as one, serving(world, Pods()) as other:
        pods.gone("train")
        await one.look()
        await other.allocate(assignment("card-a"))
        await one.look()
        await one.look(after=9)
        assert one.devices() == ["card-a"]
        await one.look()
        await one.look()
        assert one.devices() == []


async def test_a_hold_that_is_asked_for_while_it_is_being_ended_stays(
    world: World, pods: Pods
) -> None:
    """The decision is made before the turn: what was written since counts."""
    async with holding(world, pods) as one:
        (record,) = await one.broker._ledger.read()
        await one.allocate(assignment("card-a"))

        assert not await one.broker.give_back(record)
        assert one.devices() == ["card-a"]


async def test_nothing_ends_while_what_was_asked_for_with_it_is_still_prepared(
    world: World, pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pod is listed with an id before the whole call is answered, which may take a minute."""
    ready, prepare = threading.Event(), world.cards.prepare_device

    def slowly(device: Device, hold: Hold, parameters: Any) -> None:
        if device.name == "card-b":
            assert ready.wait(10)
        prepare(device, hold, parameters)

    monkeypatch.setattr(world.cards, "prepare_device", slowly)
    async with serving(world, pods) as one:
        await one.settle()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.allocate, assignment("card-a"), assignment("card-b"))
            with anyio.fail_after(10):
                while HoldState.HELD not in [hold.state for hold in one.broker.holds()]:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            for _ in range(6):
                await one.look()
            ready.set()
        for _ in range(3):
            await one.look(after=4.0)
        assert sorted(one.devices()) == ["card-a", "card-b"]
        await one.settle()
        assert one.devices() == []


async def test_an_agent_that_does_not_write_ends_nothing(world: World, pods: Pods) -> None:
    async with holding(world, pods) as one:
        world.writing = lambda: False
        one.watch._around = replace(one.watch._around, writing=lambda: False)
        pods.gone("train")
        for _ in range(5):
            await one.look()
        assert one.devices() == ["card-a"]


async def test_claims_are_never_ended(world: World, pods: Pods) -> None:
    async with serving(world, pods) as one:
        await prepare(one.broker, claim("u1", "card-a"))
        for _ in range(10):
            await one.look()
        assert one.devices() == ["card-a"]


@pytest.mark.field_case("A18")
async def test_an_allocation_ends_whatever_other_pods_do(world: World, pods: Pods) -> None:
    async with holding(world, pods) as one:
        await one.allocate(assignment("card-b"))
        pods.has("crash-looping", "card-b")
        pods.gone("train")
        for _ in range(3):
            await one.look()
        assert one.devices() == ["card-b"]


async def test_what_a_cancelled_call_left_half_done_ends_too(world: World, pods: Pods) -> None:
    world.hooks.hanging.add("prepare_device")
    async with serving(world, pods) as one:
        with pytest.raises(HoldError):
            await one.allocate(assignment("card-a"))
        assert [hold.state for hold in one.broker.holds()] == [HoldState.PREPARING]
        world.hooks.hanging.clear()
        await one.settle()
        await one.settle()
        assert one.devices() == []


async def test_a_driver_that_cannot_undo_is_asked_three_times_and_then_quarantined(
    world: World, pods: Pods
) -> None:
    world.cards.faults["unprepare"] = HookFault("cards", "unprepare_device", "stuck")
    async with holding(world, pods) as one:
        pods.gone("train")
        for _ in range(3):
            await one.look()
        assert any("stuck" in entry.message for entry in one.board.entries)
        await one.look()
        assert ("hardpoint.dev", "card-a") in one.broker.quarantined()
        assert one.shown() == ()
        await one.look()
        assert one.board.entries == ()


# -- kubelets that do not know --------------------------------------------------------------------


async def test_a_kubelet_that_was_started_anew_is_believed_after_a_while(
    world: World, pods: Pods
) -> None:
    async with holding(world, pods) as one:
        pods.gone("train")
        await one.look()
        pods.restart()
        for _ in range(4):
            await one.look()
        assert one.devices() == ["card-a"]
        await one.look()
        assert one.devices() == []


@pytest.mark.field_case("J04")
async def test_a_kubelet_that_lists_no_pod_of_the_api_servers_is_not_believed(
    world: World, pods: Pods
) -> None:
    """It has started while the API server is away: every container still runs."""
    async with holding(world, pods) as one:
        pods.restart()
        pods.listed.clear()
        pods.has("etcd-node-1")
        for _ in range(20):
            await one.look()
        assert one.devices() == ["card-a"]
        (said,) = one.board.entries
        assert "no pod of the API server's" in said.message
        assert "unknown" in one.watch.note()

        pods.has("train", "card-a")
        await one.look()
        assert one.board.entries == ()
        assert one.devices() == ["card-a"]


async def test_a_node_of_static_pods_alone_is_believed_after_an_hour(
    world: World, pods: Pods
) -> None:
    async with holding(world, pods) as one:
        pods.restart()
        pods.listed.clear()
        await one.look()
        await one.look(after=3600)
        await one.look(after=30)
        await one.look()
        assert one.devices() == []


async def test_a_list_without_the_agents_own_pod_is_never_believed(
    world: World, pods: Pods
) -> None:
    async with serving(world, pods, itself=("ns", "hardpoint-x")) as one:
        await one.allocate(assignment("card-a"))
        for _ in range(10):
            await one.look(after=1000)
        assert one.devices() == ["card-a"]
        assert "own pod ns/hardpoint-x" in one.board.entries[0].message
        pods.has("hardpoint-x")
        await one.settle()
        assert one.devices() == []


async def test_a_pod_that_the_list_lacks_is_asked_for_by_name(world: World, pods: Pods) -> None:
    async with holding(world, pods) as one:
        pods.named["train"] = pods.listed["train"]
        pods.gone("train")
        for _ in range(5):
            await one.look()
        assert one.devices() == ["card-a"]
        del pods.named["train"]
        await one.look()
        await one.look()
        assert one.devices() == []


# -- what pods have -------------------------------------------------------------------------------


async def test_what_a_pod_has_and_nothing_holds_is_held_again(world: World, pods: Pods) -> None:
    odd = replace(assignment("card-a"), resource="acme.dev/stick", id="no name of ours")
    async with serving(world, pods) as one:
        one.watch.announce("acme.dev/stick", [odd])
        one.watch.announce("acme.dev/stick", [])
        pods.has("train", odd.id, resource=odd.resource)
        await one.look()

        (held,) = one.shown()
        assert (held.resource, held.id, held.device) == (odd.resource, odd.id, "card-a")
        assert held.users == (PodUser("ns", "train", "main"),)
        with pytest.raises(HoldError):
            await prepare(one.broker, claim("u1", "card-a"))
        assert '"minor": 1,' in world.file(odd.key.uid)
        (again,) = await one.allocate(odd)
        assert again.cdi_ids == (f"hardpoint.dev/device={odd.key.uid}-card-a",)
        pods.gone("train")
        await one.settle()
        await one.settle()
        assert one.devices() == []


async def test_ids_of_our_prefix_are_ours_before_their_frontend_runs(
    world: World, pods: Pods
) -> None:
    pods.has("train", "card-a@grant-7")
    async with serving(world, pods) as one:
        await one.look()
        assert [(held.id, held.device) for held in one.shown()] == [("card-a@grant-7", "card-a")]


async def test_a_strangers_ids_are_not_ours(world: World, pods: Pods) -> None:
    pods.has("train", "card-a", resource="nvidia.com/gpu")
    pods.has("other", "card-zz", "", "@", "!!")
    async with serving(world, pods) as one:
        await one.look()
        assert one.devices() == []


async def test_a_device_that_somebody_else_has_by_now_is_told_of_and_kept(
    world: World, pods: Pods
) -> None:
    async with serving(world, pods) as one:
        await prepare(one.broker, claim("u1", "card-a"))
        pods.has("train", "card-a")
        await one.look()
        assert sorted(hold.claim.uid for hold in one.broker.holds())[1] == "u1"
        (twice,) = world.told("device-twice")
        assert "ns/claim-u1" in twice.message


async def test_a_pod_that_is_not_to_be_adopted_now_is_looked_at_again(
    world: World, pods: Pods
) -> None:
    world.veto("card-a")
    async with serving(world, pods) as one:
        one.watch.announce(CARD, [assignment("card-a")])
        pods.has("train", "card-a")
        await one.look()
        assert "not offered" in one.board.entries[0].message
        world.card("card-a", 1)
        await one.look()
        assert one.devices() == ["card-a"]
        assert one.board.entries == ()


# -- a ledger that was lost -----------------------------------------------------------------------


def lose(world: World) -> None:
    for path in world.state.glob("ledger.db*"):
        path.unlink()
    for path in world.cdi.iterdir():
        path.unlink()


@pytest.mark.field_case("C02")
async def test_what_pods_have_is_held_again_before_anything_is_granted(
    world: World, pods: Pods
) -> None:
    async with serving(world, pods) as one:
        await one.allocate(replace(assignment("card-a"), resource="acme.dev/stick"))
    pods.has("train", "card-a", resource="acme.dev/stick")
    lose(world)

    async with serving(world, pods) as one:
        await one.broker.restore()
        with pytest.raises(HoldError, match=r"acme\.dev/stick/card-a"):
            await prepare(one.broker, claim("u1", "card-a"))
        assert not one.broker.unknown


@pytest.mark.parametrize("there", [True, False])
async def test_what_no_list_names_is_found_again_in_the_kubelets_checkpoint(
    world: World, pods: Pods, there: bool
) -> None:
    """An init container's, or anybody's while the kubelet is away."""
    async with serving(world, pods) as one:
        await one.allocate(replace(assignment("card-a"), resource="acme.dev/stick"))
    pods.written = Checkpoint(frozenset({("acme.dev/stick", "card-a")}), (1, 1))
    if not there:
        pods.served, pods.broken = None, "there is no such socket"
    lose(world)

    async with serving(world, pods) as one:
        await one.broker.restore()
        with pytest.raises(HoldError, match=r"acme\.dev/stick/card-a"):
            await prepare(one.broker, claim("u1", "card-a"))
        await prepare(one.broker, claim("u2", "card-b"))


async def test_nothing_is_granted_while_pods_cannot_be_read_and_after_a_while_it_is(
    world: World, pods: Pods
) -> None:
    pods.broken = "no answer"
    async with serving(world, pods) as one:
        await one.broker.restore()
        with pytest.raises(HoldFailed, match="not known yet") as refused:
            await prepare(one.broker, claim("u1", "card-a"))
        assert refused.value.reason == "unknown"
        with pytest.raises(HoldFailed, match="not known yet"):
            await one.allocate(assignment("card-b"))

        one.clock.advance(30)
        await one.broker.attend()
        await prepare(one.broker, claim("u1", "card-a"))
        assert one.board.entries[0].message.endswith("no answer")


async def test_pods_that_answer_later_are_held_again_then(world: World, pods: Pods) -> None:
    pods.broken = "no answer"
    pods.has("train", "card-a")
    async with serving(world, pods) as one:
        await one.broker.restore()
        pods.broken = ""
        await one.broker.attend()
        assert one.devices() == ["card-a"]
        await prepare(one.broker, claim("u1", "card-b"))


async def test_a_socket_that_is_not_there_is_not_waited_for(world: World) -> None:
    pods = Pods(served=None, broken="there is no such socket")
    async with serving(world, pods) as one:
        await one.broker.restore()
        await prepare(one.broker, claim("u1", "card-a"))


async def test_a_hold_found_in_a_file_alone_is_named_by_who_has_it(
    world: World, pods: Pods
) -> None:
    async with serving(world, pods) as one:
        await one.allocate(assignment("card-a"))
        await one.allocate(assignment("card-b"))
    for path in world.state.glob("ledger.db*"):
        path.unlink()
    pods.has("train", "card-a")

    async with serving(world, pods) as one:
        await one.broker.restore()
        await one.look()
        assert [(held.resource, held.id) for held in one.shown()] == [(CARD, "card-a")]
        await one.settle()
        assert one.devices() == ["card-a"]


# -- showing --------------------------------------------------------------------------------------


async def test_users_are_shown_while_they_are_known(world: World, pods: Pods) -> None:
    async with serving(world, pods) as one:
        await one.allocate(assignment("card-a"))
        assert [held.users for held in one.shown()] == [None]
        two = tuple(HeldResource(container=n, resource=CARD, ids=("card-a",)) for n in "ab")
        pods.listed["train"] = PodUse(namespace="ns", name="train", resources=two)
        await one.look()
        (held,) = one.shown()
        assert held.users == (PodUser("ns", "train", "a"), PodUser("ns", "train", "b"))
        assert [str(user) for user in held.users] == ["ns/train", "ns/train"]
        pods.broken = "no answer"
        await one.look()
        assert one.shown() == (held,)
        await one.look(after=61)
        assert one.watch.note()["read"].endswith("no answer")
        assert [held.users for held in one.shown()] == [None]


async def test_pods_of_claims_are_known_too(world: World, pods: Pods) -> None:
    pods.claims("train", "claim-u1", "card-a")
    async with serving(world, pods) as one:
        await prepare(one.broker, claim("u1", "card-a"))
        await one.look()
        assert one.watch.latest is not None
        users = one.watch.latest.users(claim("u1").key, "card-a")
        assert users == (PodUser("ns", "train", "main"),)
        assert one.watch.latest.users(claim("u1").key, "card-b") == ()


async def test_what_cannot_be_known_is_said_where_it_matters(world: World, pods: Pods) -> None:
    pods.broken = "no answer"
    async with serving(world, pods) as one:
        await one.look()
        assert [entry.message for entry in one.board.entries] == []
        assert one.watch.note()["read"].endswith("no answer")
        await one.allocate(assignment("card-a"))
        await one.look()
        said = one.board.entries[0]
        assert (said.source, said.message.endswith("no answer")) == ("pod-resources", True)
        assert "devices of pods that ended stay held" in said.cost
        pods.broken = ""
        await one.look()
        assert one.board.entries == ()
        assert one.watch.note() == {"read": "well"}


async def test_nothing_is_read_while_nobody_holds_or_lists_anything(
    world: World, pods: Pods
) -> None:
    async with serving(world, pods) as one:
        assert not await one.watch._is_due(1)
        await prepare(one.broker, claim("u1", "card-a"))
        assert [await one.watch._is_due(count) for count in range(1, 7)] == [*[False] * 5, True]
        one.watch.announce(CARD, [assignment("card-b")])
        assert await one.watch._is_due(1)


async def test_what_goes_wrong_with_one_allocation_costs_no_other_and_ends_no_watch(
    world: World, pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(world, pods) as one:
        give_back = one.broker.give_back

        async def broken(record: Record) -> bool:
            if record.device.name == "card-a":
                raise RuntimeError("a driver's own")
            return await give_back(record)

        monkeypatch.setattr(one.broker, "give_back", broken)
        await one.allocate(assignment("card-a"))
        await one.allocate(assignment("card-b"))
        for _ in range(10):
            await one.look()

        assert one.devices() == ["card-a"]
        (entry,) = one.board.entries
        assert entry.source.startswith("pod-resources end of")
        assert "RuntimeError" in entry.message
        assert "a driver's own" not in entry.message


async def test_what_is_announced_during_a_look_is_looked_at_again(world: World, pods: Pods) -> None:
    async with serving(world, pods) as one, anyio.create_task_group() as tasks:
        looked, again = anyio.Event(), anyio.Event()

        async def look() -> bool:
            if looked.is_set():
                again.set()
            else:
                looked.set()
                one.watch.announce("example.com/new", [])
                one.watch.announce(CARD, [assignment("card-a")])
            return True

        one.watch.look = look  # type: ignore[method-assign]
        one.watch.pace = replace(one.watch.pace, apart=0.01)
        tasks.start_soon(one.watch.run)
        await anyio.wait_all_tasks_blocked()
        one.watch.wake()
        with anyio.fail_after(5):
            await again.wait()
        tasks.cancel_scope.cancel()
