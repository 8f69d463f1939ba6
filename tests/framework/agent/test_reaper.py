"""Who holds what they must not, when they are reaped, and who never is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anyio
import pytest
from reaper_world import DOMAIN, GPU, Asked, ReaperWorld, Watching, gpu, reaping, record

from hardpoint._core.pods.reaper import Timings, timings_of
from hardpoint._core.pods.revoked import Granted
from hardpoint.allocation import Assignment, allocation_key
from hardpoint.contract import hookimpl
from hardpoint.errors import Refuse, TryAgain
from hardpoint.grants import HoldingPod, Reaped, ReapResult, Release
from hardpoint.kubelet.pods import HeldResource, PodUse
from hardpoint.model import ClaimKey, Domain, Verdict
from hardpoint.testing.api_server import FakeApiServer


@pytest.fixture
async def world() -> AsyncIterator[ReaperWorld]:
    async with FakeApiServer() as server:
        server.add_node("node-1")
        made = ReaperWorld(server)
        made.pods.has("bystander")
        yield made


async def reaped(one: Watching, after: float = 30.0) -> list[tuple[str, str, int]]:
    """Look now and once more after a while; return whom the policy was asked about."""
    await one.look()
    await one.look(after)
    return list(one.policy.calls)


def faults(world: ReaperWorld) -> list[str]:
    """What is on the fault board."""
    return [entry.message for entry in world.board.entries]


# -- when -----------------------------------------------------------------------------------------


async def test_a_pod_has_thirty_seconds_to_let_go(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        await one.look()
        await one.look(after=29.9)
        assert one.policy.calls == []
        await one.look(after=0.2)
        assert one.policy.calls == [("train", "a1", 1)]


async def test_who_holds_on_is_tried_again_each_minute(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        await reaped(one)
        await one.look(after=59.0)
        assert len(one.policy.calls) == 1
        await one.look(after=1.0)
        await one.look(after=60.0)
        assert [attempt for _, _, attempt in one.policy.calls] == [1, 2, 3]


async def test_who_lets_go_in_time_is_left_alone_and_the_release_looked_at(
    world: ReaperWorld,
) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        await one.look()
        world.gone("train")
        await one.look(after=30)
        assert one.policy.calls == []
        assert world.left == 1


async def test_who_comes_back_has_thirty_seconds_again(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        await one.look()
        world.pods.has("train")
        await one.look(after=20)
        world.pods.has("train", "gpu0@a1")
        await one.look(after=20)
        await one.look(after=29)
        assert one.policy.calls == []


async def test_a_new_process_begins_again_and_the_release_keeps_its_date(
    world: ReaperWorld,
) -> None:
    world.pod("train", "gpu0@a1")
    release = world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        await one.look()
    world.clock.advance(300)
    async with reaping(world, Asked) as one:
        await one.look()
        assert one.policy.calls == []
        await one.look(after=30)
        assert one.policy.releases == [release]


async def test_the_wall_clock_may_jump_either_way(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        await one.look()
        world.jump = 86400.0
        await one.look(after=10)
        world.jump = -86400.0
        await one.look(after=10)
        assert one.policy.calls == []
        await one.look(after=10)
        assert len(one.policy.calls) == 1


async def test_a_policy_may_say_when(world: ReaperWorld) -> None:
    class Patient(Asked):
        first_after_s, again_after_s = 120.0, 600

    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Patient) as one:
        assert await reaped(one, 119) == []
        await one.look(after=1)
        await one.look(after=599)
        assert len(one.policy.calls) == 1
        await one.look(after=1)
        assert len(one.policy.calls) == 2


def test_a_policy_may_be_in_a_hurry() -> None:
    class Quick:
        first_after_s, again_after_s = 0.5, 1

    assert timings_of([object(), Quick()]) == Timings(first_after=0.5, again_after=1.0)


@pytest.mark.parametrize("bad", [0, -1, "30", None, float("nan"), float("inf")])
def test_timings_that_are_none_leave_the_defaults(bad: Any) -> None:
    class Odd:
        first_after_s, again_after_s = bad, 60.0

    assert timings_of([Odd(), object()]) == Timings()


def test_timings_that_cannot_be_read_leave_those_of_the_next() -> None:
    class Broken:
        again_after_s = 60.0

        @property
        def first_after_s(self) -> float:
            raise RuntimeError("no settings yet")

    class Quick:
        first_after_s, again_after_s = 1.0, 1.0

    assert timings_of([Broken(), Quick()]) == Timings(first_after=1.0, again_after=1.0)


async def test_a_policy_that_could_not_do_it_now_is_asked_soon_again(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        one.policy.answer = ReapResult(Reaped.LATER, "too many in a minute")
        await reaped(one)
        await one.look(after=10)
        assert one.policy.calls == [("train", "a1", 1), ("train", "a1", 1)]
        assert world.told("pod-not-reaped-yet") == ["ns/train"]


async def test_what_keeps_a_pod_from_being_deleted_is_a_fault_until_it_does_not(
    world: ReaperWorld,
) -> None:
    """A role without the right to delete pods: nothing else would say so of an orphan."""
    world.pod("train", "gpu0@a1")
    async with reaping(world, Asked) as one:
        for number in range(20):
            one.policy.answer = ReapResult(Reaped.LATER, f"403 forbidden, request {number}")
            await one.look(after=30)
        assert faults(world) == ["403 forbidden, request 19"]
        assert [entry.source for entry in world.board.entries] == ["reaper pod ns/train"]
        assert world.told("pod-not-reaped-yet") == ["ns/train"]

        one.policy.answer = ReapResult(Reaped.DELETED, "at last")
        await one.look(after=10)
        assert faults(world) == []


@pytest.mark.parametrize("how", ["it lets go", "nothing is governed", "another writes"])
async def test_no_fault_of_a_pod_outlives_its_having_what_it_must_not(
    world: ReaperWorld, how: str
) -> None:
    world.pod("train", "gpu0@a1")
    async with reaping(world, Asked) as one:
        one.policy.answer = ReapResult(Reaped.LATER, "403")
        await reaped(one)
        assert faults(world) == ["403"]

        if how == "it lets go":
            world.gone("train")
        world.active, world.writes = how != "nothing is governed", how != "another writes"
        await one.look(after=10)
        assert faults(world) == []


async def test_a_pod_that_only_the_kubelet_knows_is_said_when_it_stays(world: ReaperWorld) -> None:
    """A static pod without a mirror, or one that was force-deleted and does not end."""
    world.pod("train", "gpu0@a1")
    async with reaping(world, Asked) as one:
        one.policy.answer = ReapResult(Reaped.GONE, "there is no such pod")
        await reaped(one)
        assert faults(world) == []
        await one.look(after=60)
        assert faults(world) == [
            "there is no such pod, and the kubelet says that it still has its devices"
        ]


async def test_reasons_that_never_end_are_not_told_for_ever(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1")
    async with reaping(world, Asked) as one:
        for number in range(50):
            one.policy.answer = ReapResult(Reaped.SPARED, f"busy until {number} o'clock")
            await one.look(after=60)
        assert len(one.policy.calls) > 40
        assert len(world.told("pod-spared")) == 8


async def test_a_namesake_with_other_devices_has_thirty_seconds_and_a_first_attempt(
    world: ReaperWorld,
) -> None:
    """A StatefulSet's next pod comes between two looks, and its own grant ends at once."""
    world.pod("train-0", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        await reaped(one)
        world.gone("train-0")
        world.pod("train-0", "gpu1@a2")
        world.revoke("gpu1", "a2")
        await one.look(after=5)
        await one.look(after=29)
        assert one.policy.calls == [("train-0", "a1", 1)]
        await one.look(after=1)
        assert one.policy.calls == [("train-0", "a1", 1), ("train-0", "a2", 1)]


async def test_a_namesake_that_a_claim_tells_apart_has_a_first_attempt(world: ReaperWorld) -> None:
    first = world.api_pod("train-0")
    world.claim("c-1", "gpu0", "a1", pods=[("train-0", first)])
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        await reaped(one)
        world.records.clear()
        world.gone("train-0")
        second = world.api_pod("train-0")
        world.claim("c-2", "gpu0", "a1", pods=[("train-0", second)])
        await reaped(one, after=60)
        assert [pod.uids for pod in one.policy.pods] == [(first,), (second,)]
        assert [attempt for _, _, attempt in one.policy.calls] == [1, 1]


async def test_a_namesake_under_another_allocation_has_a_first_attempt(world: ReaperWorld) -> None:
    world.pod("train-0", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        await reaped(one)
        world.releases.clear()
        world.gone("train-0")
        world.pod("train-0", "gpu0@a2")
        world.revoke("gpu0", "a2")
        await reaped(one, after=60)
        assert one.policy.calls == [("train-0", "a1", 1), ("train-0", "a2", 1)]


async def test_a_drain_makes_no_other_pod_of_one_that_overstays(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        await reaped(one)
        world.releases.append(replace(world.releases[0], id="drain", allocation="", source="drain"))
        await one.look(after=60)
        assert [attempt for _, _, attempt in one.policy.calls] == [1, 2]


async def test_a_pod_that_has_one_thing_less_is_the_same_still(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1", "gpu1@a2")
    world.revoke("gpu0", "a1")
    world.revoke("gpu1", "a2")
    async with reaping(world, Asked) as one:
        await reaped(one)
        world.pods.has("train", "gpu1@a2")
        await one.look(after=60)
        assert [attempt for _, _, attempt in one.policy.calls] == [1, 2]


async def test_one_that_is_spared_stays_at_the_first_attempt_and_is_told_once(
    world: ReaperWorld,
) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        one.policy.answer = ReapResult(Reaped.SPARED, "it is a static pod")
        await reaped(one)
        await one.look(after=10)
        await one.look(after=50)
        assert one.policy.calls == [("train", "a1", 1), ("train", "a1", 1)]
        assert world.told("pod-spared") == ["ns/train"]


async def test_what_is_going_on_is_told(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        await reaped(one)
    assert [(e.name, e.warning) for e in world.events] == [
        ("pod-overstays", True),
        ("pod-reaped", True),
    ]
    assert world.events[1].message == (
        "pod ns/train has gpu0 (release of a1): attempt 1: so a test says"
    )


async def test_a_pod_with_several_devices_is_deleted_once(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1", "gpu1@a2")
    world.revoke("gpu0", "a1")
    world.clock.advance(5)
    world.revoke("gpu1", "a2")
    async with reaping(world, Asked) as one:
        await reaped(one)
        assert one.policy.calls == [("train", "a2", 1)]
        (pod,) = one.policy.pods
        assert (pod.namespace, pod.name, pod.devices) == ("ns", "train", ("gpu0", "gpu1"))


async def test_run_looks_by_itself(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one, anyio.create_task_group() as tasks:
        tasks.start_soon(one.reaper.run)
        with anyio.fail_after(10):
            while not world.told("pod-overstays"):
                one.reaper.wake()
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


async def test_a_wake_during_a_look_is_answered_by_another_look(world: ReaperWorld) -> None:
    async with reaping(world, Asked) as one, anyio.create_task_group() as tasks:
        looked, again = anyio.Event(), anyio.Event()

        async def sweep() -> None:
            if looked.is_set():
                again.set()
            else:
                looked.set()
                one.reaper.wake()

        one.reaper.sweep = sweep  # type: ignore[method-assign]
        tasks.start_soon(one.reaper.run)
        await anyio.wait_all_tasks_blocked()
        one.reaper.wake()
        with anyio.fail_after(5):
            await again.wait()
        tasks.cancel_scope.cancel()


async def test_the_next_look_is_when_the_first_is_due_and_never_later_than_usual(
    world: ReaperWorld,
) -> None:
    async with reaping(world, Asked) as one:
        await one.look()
        assert one.reaper._pause() == 10.0
        world.pod("train", "gpu0@a1")
        world.revoke("gpu0", "a1")
        await one.look()
        assert one.reaper._pause() == 5.0, "somebody holds what they must not"
        world.clock.advance(27.0)
        assert one.reaper._pause() == 3.0
        world.pod("play", "gpu1@a1")
        await one.look()
        assert one.reaper._pause() == 3.0, "the second is due later"
        world.clock.advance(60.0)
        assert one.reaper._pause() == 0.0


@pytest.mark.parametrize("away", ["the API server", "the kubelet", "the source of grants"])
async def test_who_is_due_while_nothing_can_be_said_of_them_is_no_reason_to_look_each_second(
    world: ReaperWorld, away: str
) -> None:
    uid = world.api_pod("train")
    world.claim("c", "gpu0", "a1", pods=[("train", uid)])
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        await one.look()
        world.kube_down = away == "the API server"
        world.readable = away != "the source of grants"
        world.pods.broken = "no such socket" if away == "the kubelet" else ""
        for _ in range(3):
            await one.look(after=60)
            assert one.reaper._pause() == 5.0

        world.kube_down, world.readable, world.pods.broken = False, True, ""
        await one.look(after=5)
        assert one.policy.calls == [("train", "a1", 1)]


async def test_one_wake_is_one_look_and_time_alone_is_reason_for_one(
    world: ReaperWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await anyio.lowlevel.checkpoint()

    async def until_slept(times: int) -> None:
        with anyio.fail_after(5):
            while len(slept) < times:
                await anyio.lowlevel.checkpoint()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()

    async def nothing() -> None:
        """A look that finds nobody."""

    async with reaping(world, Asked) as one, anyio.create_task_group() as tasks:
        one.reaper.sweep = nothing  # type: ignore[method-assign]
        tasks.start_soon(one.reaper.run)
        await anyio.wait_all_tasks_blocked()
        monkeypatch.setattr(anyio, "sleep", sleep)
        assert slept == []
        one.reaper.wake()
        await until_slept(1)
        assert slept == [1], "what comes in a burst is one look, a second apart from the next"
        one.reaper._pause = lambda: 0.0  # type: ignore[method-assign]
        one.reaper.wake()
        await until_slept(3)
        tasks.cancel_scope.cancel()


# -- what nobody may have -------------------------------------------------------------------------


async def test_an_id_of_a_grant_may_be_had(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1", "gpu1::3@a1")
    world.grant("gpu0", "a1")
    world.grant("gpu1", "a1")
    async with reaping(world, Asked) as one:
        assert await reaped(one, 600) == []
        assert one.reaper.orphans() == ()


@pytest.mark.parametrize("id_", ["gpu0@old", "gpu0::2@old", "gpu0"])
async def test_an_id_outside_every_grant_is_an_orphan(world: ReaperWorld, id_: str) -> None:
    world.pod("train", id_)
    world.grant("gpu0", "new")
    async with reaping(world, Asked) as one:
        await one.look()
        (orphan,) = one.reaper.orphans()
        began = world.wall()
        await one.look(after=30)
    assert (orphan.source, orphan.names, orphan.since) == ("orphan", ("gpu0",), began)
    assert orphan.allocation == ("old" if "@" in id_ else "")
    assert "outside every grant" in world.events[0].message
    assert one.policy.releases == [orphan]


async def test_an_orphan_keeps_its_id_and_date_and_goes_with_its_holder(
    world: ReaperWorld,
) -> None:
    world.pod("train", "gpu0@old")
    async with reaping(world, Asked) as one:
        await one.look()
        first = one.reaper.orphans()
        await one.look(after=20)
        assert one.reaper.orphans() == first
        world.gone("train")
        await one.look(after=1)
        assert one.reaper.orphans() == ()
    async with reaping(world, Asked) as one:
        world.pod("train", "gpu0@old")
        await one.look(after=5)
        assert [o.id for o in one.reaper.orphans()] == [o.id for o in first]


async def test_it_goes_on_after_the_node_stopped_offering_anything(world: ReaperWorld) -> None:
    """Not even the driver runs any more: the resource says the kind of what was granted."""
    world.pod("train", "gpu0@old")
    world.devices.clear()
    async with reaping(world, Asked) as one:
        assert await reaped(one) == [("train", "old", 1)]


async def test_a_resource_of_the_admins_is_known_from_what_was_announced(
    world: ReaperWorld,
) -> None:
    world.pods.has("train", "gpu0@old", "gpu1@old", resource="example.com/fast")
    assignment = Assignment(
        resource="example.com/fast", id="gpu0@new", device="gpu0", domain=DOMAIN, allocation="new"
    )
    world.announced["example.com/fast", "gpu0@new"] = assignment
    world.grant("gpu1", "old")
    async with reaping(world, Asked) as one:
        await reaped(one)
        assert [pod.devices for pod in one.policy.pods] == [("gpu0",)]


async def test_an_announced_id_without_its_grant_is_one_nobody_may_have(
    world: ReaperWorld,
) -> None:
    world.pods.has("train", "short", resource="example.com/fast")
    world.announced["example.com/fast", "short"] = Assignment(
        resource="example.com/fast", id="short", device="gpu0", domain=DOMAIN, allocation="a1"
    )
    world.grant("gpu0", "a1")
    async with reaping(world, Asked) as one:
        assert await reaped(one) == []
        world.revoke("gpu0", "a1")
        assert await reaped(one) == [("train", "a1", 1)]


async def test_the_ledger_knows_what_an_id_of_a_strangers_resource_is(world: ReaperWorld) -> None:
    world.pods.has("train", "x1", resource="acme.example/thing")
    world.hold("x1", gpu("gpu0"), "a1", resource="acme.example/thing")
    async with reaping(world, Asked) as one:
        assert await reaped(one) == [("train", "a1", 1)]


@pytest.mark.parametrize(
    ("resource", "id_"),
    [
        ("nvidia.com/gpu", "gpu0@old"),  # not ours
        (GPU, "gpu7"),  # no device that is known, and no grant in its name
        (GPU, "@old"),
        (GPU, "gpu0@"),
        (GPU, "GPU 0@old"),
        (GPU, ""),
        ("hardpoint.dev/radio", "radio0@old"),  # no source governs radios
        ("example.com/fast", "gpu7@old"),  # a resource of an admin's does not say the kind
    ],
)
async def test_what_stands_for_nothing_governed_is_left_alone(
    world: ReaperWorld, resource: str, id_: str
) -> None:
    world.pods.has("train", id_, resource=resource)
    world.announced["example.com/fast", "x"] = Assignment(
        resource="example.com/fast", id="x", device="gpu0", domain=DOMAIN
    )
    async with reaping(world, Asked) as one:
        assert await reaped(one, 600) == []


async def test_where_no_source_governs_nobody_is_reaped(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1", "gpu1")
    world.revoke("gpu0", "a1")
    world.governed.clear()
    async with reaping(world, Asked) as one:
        assert await reaped(one, 600) == []


async def test_a_node_that_is_handed_back_frees_what_nobody_governs_too(
    world: ReaperWorld,
) -> None:
    world.pod("train", "gpu0")
    world.pod("play", "gpu1")
    world.governed.clear()
    world.revoke("gpu0", "", source="drain")
    async with reaping(world, Asked) as one:
        assert await reaped(one) == [("train", "", 1)]


async def test_a_drain_wins_over_a_grant_that_is_in_force(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "", source="drain")
    world.grant("gpu0", "a1")
    async with reaping(world, Asked) as one:
        assert await reaped(one) == [("train", "", 1)]


async def test_an_allocation_that_is_granted_again_is_nobodys_to_take(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        await one.look()
        world.grant("gpu0", "a1")  # its release is still pending
        await one.look(after=30)
        assert one.policy.calls == []


async def test_a_release_is_about_the_devices_of_its_own_domain(world: ReaperWorld) -> None:
    other = Domain.named("other.example")
    world.domains = (DOMAIN, other)
    key = allocation_key("other.example/gpu", "gpu0", other.dra_driver)
    world.records.append(record(gpu("gpu0", kind="radio"), key))
    world.pods.has("listen", "gpu0", resource="other.example/gpu")
    world.revoke("gpu0", "a1")
    world.releases[0] = Release(
        id="d",
        allocation="",
        source="drain",
        devices=(gpu("gpu0"),),
        since=world.wall(),
        dra_drivers=(DOMAIN.dra_driver,),
    )
    async with reaping(world, Asked) as one:
        assert await reaped(one) == []


async def test_a_grant_of_a_namesake_in_another_domain_covers_nothing(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1")
    world.granted.add(Granted("other.example", "gpu0", "a1"))
    async with reaping(world, Asked) as one:
        assert await reaped(one) == [("train", "a1", 1)]


async def test_what_is_outside_every_grant_is_no_part_of_another_release(
    world: ReaperWorld,
) -> None:
    world.pod("train", "gpu0@old")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        await reaped(one)
        assert [release.source for release in one.policy.releases] == ["orphan"]


# -- claims ---------------------------------------------------------------------------------------


async def test_a_pod_is_found_through_its_claim_though_no_kubelet_lists_it(
    world: ReaperWorld,
) -> None:
    uid = world.api_pod("train")
    world.api_pod("another")
    world.claim("claim", "gpu0", "a1", pods=[("train", uid)])
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        assert await reaped(one) == [("train", "a1", 1)]
        assert one.policy.pods[0].uids == (uid,)


async def test_a_claim_under_a_grant_asks_the_api_server_for_nothing(world: ReaperWorld) -> None:
    uid = world.api_pod("train")
    world.claim("claim", "gpu0", "a1", pods=[("train", uid)])
    world.grant("gpu0", "a1")
    async with reaping(world, Asked) as one:
        await one.look()
        world.connects = 0
        await one.look(after=30)
        assert (one.policy.calls, world.connects) == ([], 0)


async def test_a_claim_of_the_same_name_and_another_uid_is_another(world: ReaperWorld) -> None:
    uid = world.api_pod("train")
    world.claim("claim", "gpu1", "a2", pods=[("train", uid)], written=False)
    world.records.append(
        record(gpu("gpu0"), ClaimKey("old-uid", "ns", "claim", DOMAIN.dra_driver), "a1")
    )
    world.grant("gpu1", "a2")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        assert await reaped(one) == []


async def test_a_claim_that_has_its_answer_holds_nobody(world: ReaperWorld) -> None:
    """Only the device waits, to be scrubbed."""
    uid = world.api_pod("train")
    key = world.claim("claim", "gpu0", "a1", pods=[("train", uid)], written=False)
    world.records.append(record(gpu("gpu0"), key, "a1", retired=True))
    world.revoke("gpu0", "a1")
    world.devices.clear()
    async with reaping(world, Asked) as one:
        assert await reaped(one) == []


async def test_a_claim_of_the_same_name_in_another_namespace_is_another(
    world: ReaperWorld,
) -> None:
    extended = {"resourceClaimName": "train-extended", "requestMappings": []}
    world.api_pod("train", namespace="other", status={"extendedResourceClaimStatus": extended})
    world.claim("train-extended", "gpu0", "a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        assert await reaped(one) == []


async def test_pods_that_have_ended_or_are_elsewhere_hold_no_claim(world: ReaperWorld) -> None:
    world.server.add_node("node-2")
    ended = world.api_pod("ended", status={"phase": "Succeeded"})
    elsewhere = world.api_pod("elsewhere", node="node-2")
    world.claim("claim", "gpu0", "a1", pods=[("ended", ended), ("elsewhere", elsewhere)])
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        assert await reaped(one) == []


async def test_a_pod_group_reserves_for_the_pods_that_name_the_claim(world: ReaperWorld) -> None:
    statuses = [{"name": "gpu", "resourceClaimName": "claim"}]
    uid = world.api_pod("member", status={"phase": "Running", "resourceClaimStatuses": statuses})
    world.api_pod("another")
    world.claim("claim", "gpu0", "a1", groups=["gang"])
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        assert await reaped(one) == [("member", "a1", 1)]
        assert one.policy.pods[0].uids == (uid,)


@pytest.mark.field_case("B23")
async def test_a_claim_for_an_extended_resource_is_named_in_the_status_alone(
    world: ReaperWorld,
) -> None:
    extended = {"resourceClaimName": "train-extended", "requestMappings": []}
    uid = world.api_pod("train", status={"extendedResourceClaimStatus": extended})
    world.claim("train-extended", "gpu0", "a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        assert await reaped(one) == [("train", "a1", 1)]
        assert one.policy.pods[0].uids == (uid,)


async def test_a_kubelet_that_lists_devices_of_claims_is_believed(world: ReaperWorld) -> None:
    published = record(gpu("gpu0"), ClaimKey("u", "ns", "c", "d"), "a1").allotment.published
    world.pods.claims("train", "claim", published)
    world.grant("gpu0", "a1")
    async with reaping(world, Asked) as one:
        assert await reaped(one) == []
        world.revoke("gpu0", "a1")
        assert await reaped(one) == [("train", "a1", 1)]


async def test_a_claim_of_a_grant_that_nobody_knows_any_more_is_an_orphan(
    world: ReaperWorld,
) -> None:
    published = record(gpu("gpu0"), ClaimKey("u", "ns", "c", "d"), "forgotten").allotment.published
    world.pods.claims("train", "claim", published)
    world.grant("gpu0", "a1")
    async with reaping(world, Asked) as one:
        assert await reaped(one) == [("train", "", 1)]
        assert [o.names for o in one.reaper.orphans()] == [("gpu0",)]


async def test_a_device_whose_own_name_looks_like_a_grants_is_itself(world: ReaperWorld) -> None:
    world.devices.append(gpu("gpu0-deadbeef", kind="radio"))
    world.pods.claims("listen", "claim", "gpu0-deadbeef")
    async with reaping(world, Asked) as one:
        assert await reaped(one) == []


async def test_a_hold_that_was_found_again_does_not_say_that_it_had_no_grant(
    world: ReaperWorld,
) -> None:
    uid = world.api_pod("train")
    key = world.claim("claim", "gpu0", "a1", pods=[("train", uid)], written=False)
    world.records.append(record(gpu("gpu0"), key, "", rebuilt=True))
    world.grant("gpu0", "a1")
    async with reaping(world, Asked) as one:
        assert await reaped(one) == []


async def test_what_nobody_wrote_down_is_found_in_the_claims_of_running_pods(
    world: ReaperWorld,
) -> None:
    waiting: dict[str, Any] = {"phase": "Pending", "containerStatuses": [], "startTime": None}
    for name, device, status in (("train", "gpu0", {}), ("waiting", "gpu1", waiting)):
        claims = [{"name": "gpu", "resourceClaimName": f"{name}-claim"}]
        uid = world.api_pod(name, status={**status, "resourceClaimStatuses": claims})
        world.claim(f"{name}-claim", device, "old", pods=[(name, uid)], written=False)
    async with reaping(world, Asked) as one:
        assert await reaped(one) == [("train", "", 1)]


async def test_of_the_pods_of_a_claim_that_nobody_wrote_down_those_have_it_that_run(
    world: ReaperWorld,
) -> None:
    status = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "claim"}]}
    running = world.api_pod("running", status=status)
    waiting = world.api_pod("waiting", status={**status, "containerStatuses": []})
    both = [("running", running), ("waiting", waiting)]
    world.claim("claim", "gpu0", "old", pods=both, written=False)
    async with reaping(world, Asked) as one:
        assert await reaped(one) == [("running", "", 1)]


async def test_claims_of_pods_that_do_not_run_are_not_read_for_nothing(
    world: ReaperWorld,
) -> None:
    status = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "claim"}]}
    world.api_pod("waiting", status={**status, "containerStatuses": []})
    async with reaping(world, Asked) as one:
        await one.look()
    assert [seen.path for seen in world.server.requests] == ["/api/v1/pods"]


async def test_a_hold_that_was_found_again_is_looked_for_in_its_pods_claims(
    world: ReaperWorld,
) -> None:
    """It does not say under which grant it was had, and the claim does not either."""
    status = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "claim"}]}
    uid = world.api_pod("train", status=status)
    key = world.claim("claim", "gpu0", "old", pods=[("train", uid)], written=False)
    world.records.append(record(gpu("gpu0"), key, "", rebuilt=True))
    async with reaping(world, Asked) as one:
        assert await reaped(one) == [("train", "", 1)]


async def test_claims_that_are_written_down_are_not_read_as_if_they_were_not(
    world: ReaperWorld,
) -> None:
    status = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "claim"}]}
    uid = world.api_pod("train", status=status)
    world.claim("claim", "gpu0", "a1", pods=[("train", uid)])
    world.grant("gpu0", "a1")
    async with reaping(world, Asked) as one:
        await one.look()
    assert [seen.path for seen in world.server.requests] == ["/api/v1/pods"]


async def test_one_device_that_is_governed_is_reason_to_look_and_without_one_there_is_none(
    world: ReaperWorld,
) -> None:
    world.devices.append(gpu("radio0", kind="radio"))
    async with reaping(world, Asked) as one:
        await one.look()
        assert world.connects == 1
        world.governed.clear()
        await one.look(after=600)
        uid = world.api_pod("train")
        world.claim("claim", "gpu0", pods=[("train", uid)])
        world.revoke("gpu0", "", source="drain")
        world.server.requests.clear()
        await one.look(after=600)
        paths = [seen.path for seen in world.server.requests]
    assert world.connects == 2
    assert paths.count("/api/v1/pods") == 1, "for the drain's own claim alone"


async def test_claims_that_nobody_wrote_down_are_looked_for_seldom(world: ReaperWorld) -> None:
    async with reaping(world, Asked) as one:
        for _ in range(31):
            await one.look(after=10)
    assert len(world.server.requests) == 2


async def test_they_are_looked_for_no_oftener_while_somebody_has_what_they_must_not(
    world: ReaperWorld,
) -> None:
    uid = world.api_pod("train")
    world.claim("claim", "gpu0", "a1", pods=[("train", uid)])
    world.revoke("gpu0", "a1")
    lists = []
    async with reaping(world, Asked) as one:
        for _ in range(3):
            world.server.requests.clear()
            await one.look(after=10)
            lists.append([seen.path for seen in world.server.requests].count("/api/v1/pods"))
    assert lists == [2, 1, 1]


async def test_the_last_look_at_what_nobody_wrote_down_is_a_new_one(world: ReaperWorld) -> None:
    claims = [{"name": "gpu", "resourceClaimName": "claim"}]
    uid = world.api_pod("train", status={"resourceClaimStatuses": claims})
    world.claim("claim", "gpu0", "old", pods=[("train", uid)], written=False)
    async with reaping(world, Asked) as one:
        one.policy.looks_again = True
        await one.look()
        world.on_ask = lambda: world.gone("train")
        await one.look(after=30)
        assert one.policy.held == [False]


@pytest.mark.parametrize(
    "foreign", [{"driver": "gpu.nvidia.com"}, {"pool": "node-2"}, {"driver": "other.example"}]
)
async def test_what_is_allocated_of_other_drivers_and_pools_is_not_ours(
    world: ReaperWorld, foreign: dict[str, str]
) -> None:
    claims = [{"name": "gpu", "resourceClaimName": "claim"}]
    uid = world.api_pod("train", status={"resourceClaimStatuses": claims})
    world.claim("claim", "gpu0", "old", pods=[("train", uid)], written=False, **foreign)
    async with reaping(world, Asked) as one:
        assert await reaped(one) == []


# -- reads that fail ------------------------------------------------------------------------------


async def test_nothing_is_reaped_while_the_kubelet_does_not_answer(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        await one.look()
        world.pods.broken = "no such socket"
        await one.look(after=600)
        assert one.policy.calls == []
        assert [entry.source for entry in world.board.entries] == ["reaper"]
        world.pods.broken = ""
        await one.look(after=1)
        assert one.policy.calls == [("train", "a1", 1)]
        assert world.board.entries == ()


async def test_a_kubelet_that_stays_silent_is_said_to_be_until_it_answers(
    world: ReaperWorld,
) -> None:
    world.pods.broken = "no such socket"
    async with reaping(world, Asked) as one:
        await one.look()
        assert world.silent == "", "one that restarts is silent for a moment"
        await one.look(after=9)
        assert world.silent == ""
        await one.look(after=1)
        assert "no such socket" in world.silent

        world.pods.broken = ""
        await one.look(after=1)
        assert world.silent == ""

        world.pods.broken = "no such socket"
        await one.look(after=1)
        assert world.silent == "", "its silence is counted anew"


@pytest.mark.parametrize("what", ["writes", "active"])
async def test_who_does_not_look_says_of_no_kubelet_that_it_is_silent(
    world: ReaperWorld, what: str
) -> None:
    world.pods.broken = "no such socket"
    async with reaping(world, Asked) as one:
        await one.look()
        await one.look(after=10)
        assert world.silent

        setattr(world, what, False)
        await one.look(after=1)

        assert world.silent == ""


async def test_a_ledger_that_cannot_be_read_is_no_silent_kubelet(world: ReaperWorld) -> None:
    world.unreadable_ledger = True
    async with reaping(world, Asked) as one:
        await one.look()
        await one.look(after=600)
        assert (world.silent, len(world.board.entries)) == ("", 1)


async def test_nothing_is_reaped_while_grants_cannot_be_read(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    world.readable = False
    async with reaping(world, Asked) as one:
        assert await reaped(one, 600) == []
        assert (world.events, world.board.entries) == ([], ()), "a condition says it already"


async def test_nothing_is_reaped_by_what_could_not_be_read_while_pods_were(
    world: ReaperWorld,
) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    listed = world.pods.list

    async def meanwhile() -> tuple[PodUse, ...]:
        world.readable = False
        return await listed()

    async with reaping(world, Asked) as one:
        await one.look()
        world.pods.list = meanwhile  # type: ignore[method-assign]
        await one.look(after=40)
        assert one.policy.calls == []


async def test_nothing_is_reaped_while_the_ledger_cannot_be_read(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    world.unreadable_ledger = True
    async with reaping(world, Asked) as one:
        assert await reaped(one, 600) == []


@pytest.mark.parametrize("what", ["pods", "resourceclaims"])
async def test_who_has_a_claim_is_not_known_while_the_api_server_fails(
    world: ReaperWorld, what: str
) -> None:
    uid = world.api_pod("train")
    world.claim("claim", "gpu0", "a1", pods=[("train", uid)])
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        await one.look()
        world.server.deny("*", what)
        await one.look(after=40)
        assert one.policy.calls == []
        assert [entry.source for entry in world.board.entries] == ["reaper"]
        assert world.left == 0, "it has not let go: nobody can say"
        world.server.allow("*", what)
        await one.look(after=1)
        assert one.policy.calls == [("train", "a1", 1)]


async def test_an_orphan_stays_one_while_its_holder_is_not_known(world: ReaperWorld) -> None:
    uid = world.api_pod("train")
    world.claim("claim", "gpu0", "a1", pods=[("train", uid)])
    async with reaping(world, Asked) as one:
        await one.look()
        before = one.reaper.orphans()
        world.server.deny("*", "pods")
        await one.look(after=40)
        assert (len(before), one.reaper.orphans()) == (1, before)


async def test_no_api_server_at_all_is_a_read_that_failed(world: ReaperWorld) -> None:
    uid = world.api_pod("train")
    world.claim("claim", "gpu0", "a1", pods=[("train", uid)])
    world.revoke("gpu0", "a1")
    world.kube_down = True
    async with reaping(world, Asked) as one:
        assert await reaped(one, 600) == []


async def test_who_the_kubelet_lists_is_reaped_though_nobody_knows_who_has_the_claims(
    world: ReaperWorld,
) -> None:
    uid = world.api_pod("train")
    world.claim("claim", "gpu0", "a1", pods=[("train", uid)])
    world.revoke("gpu0", "a1")
    world.pod("play", "gpu1@old")
    world.kube_down = True
    async with reaping(world, Asked) as one:
        assert await reaped(one) == [("play", "old", 1)]


async def test_the_last_look_believes_the_kubelet_though_claims_cannot_be_read(
    world: ReaperWorld,
) -> None:
    uid = world.api_pod("train")
    world.claim("claim", "gpu0", "a1", pods=[("train", uid)])
    world.revoke("gpu0", "a1")
    world.pod("play", "gpu1@old")
    async with reaping(world, Asked) as one:
        one.policy.looks_again = True
        await one.look()
        world.kube_down = True
        await one.look(after=30)
        held = dict(zip((pod.name for pod in one.policy.pods), one.policy.held, strict=True))
        assert held["play"] is True


async def test_the_last_look_needs_an_answer_of_every_source_and_not_the_one_before(
    world: ReaperWorld,
) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")

    async def ask() -> bool:
        return False

    world._ask = ask  # type: ignore[method-assign]
    async with reaping(world, Asked) as one:
        one.policy.looks_again = True
        await reaped(one)
        assert one.policy.held == ["what is granted cannot be read now"]


# -- the last look --------------------------------------------------------------------------------


async def test_the_last_look_sees_that_a_pod_has_let_go(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        one.policy.looks_again = True
        await one.look()
        world.on_ask = lambda: world.pods.has("train")
        await one.look(after=30)
        assert one.policy.held == [False]


@pytest.mark.field_case("J01")
async def test_the_last_look_sees_that_the_allocation_is_granted_again(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        one.policy.looks_again = True
        await one.look()
        world.on_ask = lambda: world.grant("gpu0", "a1")
        await one.look(after=30)
        assert one.policy.held == [False]


async def test_the_last_look_says_what_cannot_be_read(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        one.policy.looks_again = True
        one.policy.answer = ReapResult(Reaped.LATER, "not known")
        await one.look()

        def breaks(what: str) -> None:
            world.readable, world.pods.broken = what != "grants", what * (what == "pods")

        for after, what in ((30, "grants"), (10, "pods")):
            breaks("")
            world.on_ask = lambda what=what: breaks(what)  # type: ignore[misc]
            await one.look(after=after)
        assert ["cannot be read" in str(one.policy.held[0]), "pods" in str(one.policy.held[1])] == [
            True,
            True,
        ]


async def test_the_last_look_at_a_claim_needs_the_api_server(world: ReaperWorld) -> None:
    uid = world.api_pod("train")
    world.claim("claim", "gpu0", "a1", pods=[("train", uid)])
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        one.policy.looks_again = True
        await one.look()
        world.on_ask = lambda: world.server.deny("get", "resourceclaims")
        await one.look(after=30)
        assert ["403" in str(held) or "forbidden" in str(held) for held in one.policy.held] == [
            True
        ]


async def test_who_is_not_the_writer_any_more_does_not_reap(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")

    def lose() -> None:
        world.writes = False

    async with reaping(world, Asked) as one:
        one.policy.looks_again = True
        await one.look()
        world.on_ask = lose
        await one.look(after=30)
        assert one.policy.held == [False]


async def test_the_last_look_does_not_mistake_a_second_pod_of_that_name(
    world: ReaperWorld,
) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    second = PodUse(namespace="ns", name="train")
    async with reaping(world, Asked) as one:
        one.policy.looks_again = True
        await one.look()
        world.on_ask = lambda: world.pods.listed.update(second=second)
        await one.look(after=30)
        assert one.policy.held == [False]


@pytest.mark.parametrize("what", ["writes", "active"])
async def test_only_the_one_that_writes_and_has_reason_to_looks(
    world: ReaperWorld, what: str
) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        await one.look()
        setattr(world, what, False)
        reads = world.pods.reads
        await one.look(after=30)
        assert (world.pods.reads, one.policy.calls, one.reaper.orphans()) == (reads, [], ())
        setattr(world, what, True)
        await one.look()
        await one.look(after=29)
        assert one.policy.calls == [], "its thirty seconds begin with us"


async def test_who_stops_looking_says_neither_what_is_had_nor_that_it_cannot_look(
    world: ReaperWorld,
) -> None:
    world.pod("train", "gpu0@old")
    async with reaping(world, Asked) as one:
        await one.look()
        world.pods.broken = "no such socket"
        await one.look()
        assert (len(one.reaper.orphans()), len(world.board.entries)) == (1, 1)
        world.writes = False
        await one.look()
        assert (one.reaper.orphans(), world.board.entries) == ((), ())


async def test_a_pod_that_is_gone_when_it_is_to_be_deleted_is_a_reason_to_look_at_releases(
    world: ReaperWorld,
) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        one.policy.answer = ReapResult(Reaped.GONE, "there is no such pod")
        await reaped(one)
        assert world.left == 1
        assert world.told("pod-reaped") == []


async def test_two_pods_of_one_name_are_told_apart_by_nobody(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1")
    world.pods.listed["the other"] = PodUse(namespace="ns", name="train")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked) as one:
        assert await reaped(one) == []
        assert world.told("pod-spared") == ["ns/train"]


# -- what policies say ----------------------------------------------------------------------------


class Keeps:
    """A policy that keeps pods."""

    def __init__(self, node: Any, settings: Any) -> None: ...

    @hookimpl
    def admit_reap(self, pod: HoldingPod, release: Release) -> Verdict | None:
        return Verdict.deny("checkpointing") if pod.name == "train" else None


class Breaks:
    """A policy that fails."""

    def __init__(self, node: Any, settings: Any) -> None: ...

    @hookimpl
    def admit_reap(self, pod: HoldingPod) -> Verdict | None:
        raise OSError("broken")


async def test_any_denial_wins(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1")
    world.pod("play", "gpu1@a1")
    world.revoke("gpu0", "a1")
    world.revoke("gpu1", "a1")
    async with reaping(world, Asked, Keeps) as one:
        assert await reaped(one) == [("play", "a1", 1)]
        assert [e.message for e in world.events if e.name == "pod-spared"] == [
            "pod ns/train has gpu0 (release of a1): checkpointing"
        ]


async def test_a_policy_that_allows_it_spares_nobody(world: ReaperWorld) -> None:
    class Allows(Keeps):
        @hookimpl
        def admit_reap(self, pod: HoldingPod, release: Release) -> Verdict | None:
            return Verdict(allowed=True)

    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked, Allows) as one:
        assert await reaped(one) == [("train", "a1", 1)]


async def test_a_policy_that_fails_denies(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Asked, Breaks) as one:
        assert await reaped(one, 600) == []


async def test_without_a_policy_that_reaps_it_is_said_and_no_more(world: ReaperWorld) -> None:
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Keeps) as one:
        world.pod("play", "gpu1@a1")
        world.revoke("gpu1", "a1")
        await one.look()
        await one.look(after=30)
        assert world.told("pod-not-reaped-yet") == ["ns/play"]


@pytest.mark.parametrize(
    ("raised", "told"),
    [(Refuse("not this one"), "pod-spared"), (TryAgain("not now"), "pod-not-reaped-yet")],
)
async def test_a_reaper_may_refuse_or_ask_to_be_asked_again(
    world: ReaperWorld, raised: Exception, told: str
) -> None:
    class Raises:
        def __init__(self, node: Any, settings: Any) -> None: ...

        @hookimpl
        async def reap_pod(self) -> ReapResult | None:
            raise raised

    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, Raises) as one:
        await one.look()
        await one.look(after=30)
        assert world.told(told) == ["ns/train"]


async def test_many_are_reaped_at_one_look(world: ReaperWorld) -> None:
    for number in range(9):
        world.pods.listed[f"p{number}"] = PodUse(
            namespace="ns",
            name=f"p{number}",
            resources=(HeldResource(container="m", resource=GPU, ids=(f"gpu0@x{number}",)),),
        )
    async with reaping(world, Asked) as one:
        calls = await reaped(one)
        assert sorted(pod for pod, _, _ in calls) == [f"p{number}" for number in range(9)]


async def test_no_more_than_four_are_being_deleted_at_a_time(world: ReaperWorld) -> None:
    class Slow(Asked):
        now = most = 0

        @hookimpl
        async def reap_pod(
            self, pod: HoldingPod, release: Release, attempt: int
        ) -> ReapResult | None:
            self.now += 1
            self.most = max(self.most, self.now)
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            self.now -= 1
            return self.answer

    for number in range(9):
        world.pod(f"p{number}", f"gpu0@x{number}")
    async with reaping(world, Slow) as one:
        await reaped(one)
        assert (one.policy.most, len(world.told("pod-reaped"))) == (4, 9)
