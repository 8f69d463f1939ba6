"""An id that is asked for while it is held: by the pod that has it, or by one that comes after."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from broker_world import World, claim, prepare
from pod_world import CARD, Watched, assignment

from hardpoint._core.offer.inventory import QUARANTINED
from hardpoint._core.pods.handover import Handover
from hardpoint.allocation import allocation_key
from hardpoint.errors import HoldBusy, HoldConflict, HoldFailed, HookFault, TryAgain
from hardpoint.kubelet.podsource import CHECKPOINT, PodSource
from hardpoint.model import Device, DeviceNode, Hold, HoldState, Withheld
from hardpoint.testing.cdi import CdiRegistry

FOR_ANOTHER = ["prepare card-a", "unprepare card-a", "prepare card-a"]


def impatient(one: Watched) -> None:
    one.watch.handover = Handover(one.pods, patience=0.1)


# -- another pod -----------------------------------------------------------------------------------


async def test_what_a_pod_left_is_undone_before_the_next_has_its_device(
    world: World, one: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hardpoint._core.claims.broker._SCRUB", 600.0)
    (first,) = await one.allocate(assignment("card-a"))
    (before,) = one.broker.holds()

    (second,) = await one.allocate(assignment("card-a"))

    assert world.cards.calls == FOR_ANOTHER
    assert second.cdi_ids == first.cdi_ids
    (now,) = one.broker.holds()
    assert now.state is HoldState.HELD
    assert now is not before
    runtime = CdiRegistry(world.cdi, info=world.node.info)
    assert [node["minor"] for node in runtime.inject(second.cdi_ids).nodes] == [1]
    assert [event.facts["devices"] for event in world.told("allocation-ended")] == ["card-a"]


async def test_a_device_is_scrubbed_before_the_next_pod_has_it(world: World, one: Watched) -> None:
    world.cards.releases = True
    await one.allocate(assignment("card-a"))

    await one.allocate(assignment("card-a"))

    assert world.cards.calls == [
        "prepare card-a",
        "unprepare card-a",
        "release card-a",
        "prepare card-a",
    ]
    assert len(one.broker.holds()) == 1


async def test_a_driver_that_scrubs_alone_is_asked_too(world: World, one: Watched) -> None:
    class Scrubbing:
        releases = True
        calls: list[str] = []  # noqa: RUF012 - of this test alone

        def release_device(self, device: Device, hold: Hold) -> None:
            self.calls.append(device.name)

    world.hooks.drivers["scrubbing"] = Scrubbing()
    node = DeviceNode(path="/dev/s0", major=240, minor=9)
    world.add(Device(name="s0", kind="card", driver="scrubbing", nodes=(node,)))
    await one.allocate(assignment("s0"))
    await one.allocate(assignment("s0"))

    assert Scrubbing.calls == ["s0"]


async def test_a_scrubbing_that_lasts_refuses_the_next_pod_and_withholds_the_device(
    world: World, one: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hardpoint._core.claims.broker._SCRUB", 0.05)
    world.cards.releases = True
    scrubbed = anyio.Event()

    async def slowly(device: Device, hold: Hold) -> None:
        await scrubbed.wait()

    monkeypatch.setattr(world.cards, "release_device", slowly)
    await one.allocate(assignment("card-a"))

    with pytest.raises(HoldConflict, match="the release after"):
        await one.allocate(assignment("card-a"))

    assert [hold.state for hold in one.broker.holds()] == [HoldState.RELEASING]
    assert ("hardpoint.dev", "card-a") in one.broker.quarantined()
    scrubbed.set()
    await one.broker.attend()
    (got,) = await one.allocate(assignment("card-a"))
    assert got.delivery.nodes


async def test_what_a_pod_left_is_given_back_when_the_next_cannot_have_all_that_it_asks_for(
    world: World, one: Watched
) -> None:
    await one.allocate(assignment("card-a"))
    await prepare(one.broker, claim("u1", "card-b"))

    with pytest.raises(HoldConflict):
        await one.allocate(assignment("card-a"), assignment("card-b"))

    assert one.devices() == ["card-b"]


async def test_the_next_pod_waits_until_its_device_is_not_withheld_for_the_last_ones_sake(
    world: World, one: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offer is made again a little after a device was scrubbed."""
    monkeypatch.setattr("hardpoint._core.claims.broker._SCRUB", 60.0)
    await one.allocate(assignment("card-a"))
    others = [Withheld("card-a", "vetoed", "w"), Withheld("card-b", QUARANTINED, "w")]
    world.withheld = [*others, Withheld("card-a", QUARANTINED, "its last holder's")]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.allocate, assignment("card-a"))
        while not world.told("allocation-ended"):
            await anyio.wait_all_tasks_blocked()
        await anyio.wait_all_tasks_blocked()
        assert world.cards.calls == FOR_ANOTHER[:2]
        with anyio.fail_after(10):
            world.withheld = others
            while world.cards.calls != FOR_ANOTHER:
                await anyio.wait_all_tasks_blocked()


@pytest.mark.parametrize("fault", [TryAgain("the card is busy"), HookFault("cards", "x", "no")])
async def test_a_device_that_cannot_be_undone_goes_to_nobody(
    world: World, one: Watched, fault: Exception
) -> None:
    await one.allocate(assignment("card-a"))
    world.cards.faults["unprepare"] = fault

    for _ in range(2):
        with pytest.raises(HoldFailed, match="is not undone"):
            await one.allocate(assignment("card-a"))
    assert world.cards.calls.count("prepare card-a") == 1

    del world.cards.faults["unprepare"]
    await one.allocate(assignment("card-a"))
    assert world.cards.calls[-2:] == ["unprepare card-a", "prepare card-a"]


async def test_of_several_ids_each_is_judged_by_itself(world: World, one: Watched) -> None:
    await one.allocate(assignment("card-a"), assignment("card-b"))
    one.pods.writes("card-b", at=1)

    await one.allocate(assignment("card-a"), assignment("card-b"))

    assert sorted(world.cards.calls) == [
        "prepare card-a",
        "prepare card-a",
        "prepare card-b",
        "unprepare card-a",
    ]


# -- the same pod ----------------------------------------------------------------------------------


async def test_what_an_init_container_had_goes_on_to_the_next_of_its_pod(
    world: World, one: Watched
) -> None:
    (init,) = await one.allocate(assignment("card-a"))
    one.pods.writes("card-a", at=1)

    assert await one.allocate(assignment("card-a")) == (init,)
    assert world.cards.calls == ["prepare card-a"]


async def test_what_a_pod_is_listed_with_is_not_taken_from_it_whatever_a_checkpoint_says(
    world: World, one: Watched
) -> None:
    """A directory of another kubelet's, or of one that was moved away."""
    await one.allocate(assignment("card-a"))
    one.pods.has("train", "card-a")

    await one.allocate(assignment("card-a"))

    assert world.cards.calls == ["prepare card-a"]


async def test_pods_that_cannot_be_listed_leave_the_checkpoint_to_say_it(
    world: World, one: Watched
) -> None:
    await one.allocate(assignment("card-a"))
    one.pods.broken = "no such socket"

    await one.allocate(assignment("card-a"))

    assert world.cards.calls == FOR_ANOTHER


async def test_a_driver_that_leaves_nothing_behind_needs_nobody_to_be_asked(
    world: World, one: Watched
) -> None:
    one.pods.silent = True
    node = DeviceNode(path="/dev/p0", major=240, minor=9)
    world.add(Device(name="p0", kind="card", driver="plain", nodes=(node,)))
    first = await one.allocate(assignment("p0"))

    assert await one.allocate(assignment("p0")) == first


async def test_what_a_call_left_half_done_goes_on_and_nobody_is_asked(
    world: World, one: Watched
) -> None:
    """No pod has run with it."""
    impatient(one)
    world.hooks.hanging = {"prepare_device"}
    with pytest.raises(HoldBusy):
        await one.allocate(assignment("card-a"))
    world.hooks.hanging = set()
    one.pods.silent, one.pods.broken, one.pods.unreadable = True, "away", "away"

    await one.allocate(assignment("card-a"))

    assert [hold.state for hold in one.broker.holds()] == [HoldState.HELD]
    assert world.cards.calls == []  # the call that hung was the only one


async def test_a_new_id_asks_nobody(one: Watched) -> None:
    one.pods.silent, one.pods.broken, one.pods.unreadable = True, "away", "away"

    await one.allocate(assignment("card-a"))

    assert one.pods.reads == 0


# -- not to be known -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        ({"silent": True}, "has written no checkpoint within 0.1 s"),
        ({"unreadable": "ValueError"}, "ValueError"),
    ],
)
async def test_what_cannot_be_known_is_refused_and_nothing_is_changed(
    world: World, one: Watched, spoil: dict[str, Any], why: str
) -> None:
    impatient(one)
    await one.allocate(assignment("card-a"))
    for name, value in spoil.items():
        setattr(one.pods, name, value)

    with pytest.raises(HoldFailed, match=why) as refused:
        await one.allocate(assignment("card-a"))

    assert refused.value.reason == "try-again"
    assert "card-a is held for a pod of before" in str(refused.value)
    assert world.cards.calls == ["prepare card-a"]
    assert [hold.state for hold in one.broker.holds()] == [HoldState.HELD]


async def test_what_was_refused_ends_like_any_hold_that_no_pod_has(
    world: World, one: Watched
) -> None:
    impatient(one)
    await one.allocate(assignment("card-a"))
    one.pods.silent = True
    with pytest.raises(HoldFailed):
        await one.allocate(assignment("card-a"))
    one.pods.has("bystander")

    await one.settle()
    await one.settle()

    assert one.broker.holds() == ()


# -- the file --------------------------------------------------------------------------------------


class Written:
    """A kubelet's checkpoint, as a file; ``states`` is what is written at each look."""

    def __init__(self, root: Path, *states: str | None) -> None:
        self.source = PodSource(root, root)
        self.file, self.states = root / CHECKPOINT, list(states)
        self._write("before")

    def _write(self, id_: str | None) -> None:
        entries = f'[{{"ResourceName": "{CARD}", "DeviceIDs": {{"-1": ["{id_}"]}}}}]'
        fresh = self.file.with_name("fresh")
        fresh.write_text(f'{{"Data": {{"PodDeviceEntries": {entries if id_ else "null"}}}}}')
        os.replace(fresh, self.file)

    def written_at(self) -> tuple[int, int]:
        found = self.source.written_at()
        if self.states:
            state = self.states.pop(0)
            self.file.unlink() if state == "gone" else self._write(state)
        return found

    async def checkpoint(self) -> Any:
        return await self.source.checkpoint()

    async def list(self) -> Any:
        return await self.source.list()


KEY = allocation_key(CARD, "before", "hardpoint.dev")


@pytest.mark.parametrize(
    ("states", "over"),
    [
        (["before", "before", "before"], False),
        (["before", None], True),
        ([None], True),
        (["another"], True),
        (["gone", "before", "before", "before"], False),
        (["gone", "another"], True),
    ],
)
async def test_what_a_checkpoint_written_since_names_is_somebodys(
    tmp_path: Path, states: list[str | None], over: bool
) -> None:
    kubelet = Written(tmp_path, *states)

    assert await Handover(kubelet).is_over(KEY) is over


@pytest.mark.parametrize("states", [[], ["before"], ["gone"]])
async def test_a_checkpoint_of_before_says_nothing(
    tmp_path: Path, states: list[str | None]
) -> None:
    kubelet = Written(tmp_path, *states)

    with pytest.raises(HoldFailed, match="no checkpoint"):
        await Handover(kubelet, patience=0.1).is_over(KEY)


async def test_a_hold_of_another_id_of_the_same_device_is_not_meant(
    world: World, one: Watched
) -> None:
    """A device that several ids share is scrubbed for the id whose pod is over."""
    world.card("shared", 3, shareable=True)
    first, second = (replace(assignment("shared"), id=f"shared::{n}") for n in range(2))
    await one.allocate(first, second)
    one.pods.writes("shared::1", at=1)

    await one.allocate(first)

    assert world.cards.calls.count("unprepare shared") == 1
    assert len(one.broker.holds()) == 2
