"""The reaper's own part: which pod it deletes, how, and whom it must not hit."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest
import yaml
from pydantic import ValidationError
from reaper_world import DOMAIN, HOUR, NODE, ReaperWorld, gpu, reaping
from tutorial import ROOT

from hardpoint.agent import Agent
from hardpoint.allocation import Allocation
from hardpoint.errors import CallFailed, KubeUnreachable
from hardpoint.grants import HoldingPod, Reaped, ReapResult, Release
from hardpoint.kube import PODS, Kube
from hardpoint.model import HoldState
from hardpoint.node import Node
from hardpoint.policies.pod_reaper import PodReaper, PodReaperSettings, Rate
from hardpoint.testing.agent import FakeAgent
from hardpoint.testing.api_server import FakeApiServer
from hardpoint.testing.clock import ManualClock


async def yes() -> bool:
    return True


class Scene:
    """A reaper with an API server, and one pod that has what it must not have."""

    def __init__(self, world: ReaperWorld, agent: FakeAgent) -> None:
        self.world, self.agent = world, agent
        self.since = world.wall() - 60
        self.reaper = self.policy()

    def policy(self, **settings: Any) -> PodReaper:
        self.reaper = PodReaper(Node(name=NODE), PodReaperSettings(**settings))
        return self.reaper

    async def reap(
        self,
        name: str = "train",
        *,
        attempt: int = 1,
        uids: tuple[str, ...] = (),
        still_holds: Callable[[], Awaitable[bool]] = yes,
    ) -> ReapResult:
        pod = HoldingPod(
            namespace="ns",
            name=name,
            devices=("gpu0",),
            since=self.since,
            uids=uids,
            still_holds=still_holds,
        )
        release = Release(
            id="r", allocation="a1", source="s", devices=(gpu("gpu0"),), since=self.since
        )
        found = await self.reaper.reap_pod(pod, release, attempt, self.agent)
        assert found is not None
        return found

    def deletes(self) -> list[tuple[str, Any]]:
        """What was asked to be deleted, and how."""
        return [
            (one.path.rpartition("/")[2], one.body)
            for one in self.world.server.requests
            if one.method == "DELETE"
        ]

    def is_going(self, name: str = "train") -> bool:
        found = self.world.pods_there().get(name)
        return found is None or "deletionTimestamp" in found["metadata"]


@pytest.fixture
async def scene(tmp_path: Any) -> AsyncIterator[Scene]:
    async with FakeApiServer() as server:
        server.add_node(NODE)
        agent = FakeAgent(
            tmp_path,
            node=Node(name=NODE),
            domains=[DOMAIN],
            kube=lambda: Kube.at(server.url),
        )
        yield Scene(ReaperWorld(server), agent)


# -- the pod that is meant ------------------------------------------------------------------------


async def test_it_is_deleted_by_its_uid_with_ten_seconds_to_end(scene: Scene) -> None:
    uid = scene.world.api_pod("train")
    result = await scene.reap()

    assert result.what is Reaped.DELETED
    ((name, body),) = scene.deletes()
    assert (name, body["preconditions"], body["gracePeriodSeconds"]) == ("train", {"uid": uid}, 10)
    about = scene.world.pods_there()["train"]["metadata"]
    assert about["deletionGracePeriodSeconds"] == 10, "it stays until its kubelet is done"


@pytest.mark.parametrize("attempt", [2, 3, 9])
async def test_who_holds_on_is_killed_at_once(scene: Scene, attempt: int) -> None:
    scene.world.api_pod("train")
    await scene.reap()
    assert (await scene.reap(attempt=attempt)).what is Reaped.DELETED

    assert scene.deletes()[1][1]["gracePeriodSeconds"] == 0
    assert "train" not in scene.world.pods_there()


async def test_the_grace_may_be_set(scene: Scene) -> None:
    scene.world.api_pod("train")
    scene.policy(grace_s=120)
    await scene.reap()
    assert scene.deletes()[0][1]["gracePeriodSeconds"] == 120


async def test_one_that_is_ending_already_is_left_to_end_until_it_is_killed(scene: Scene) -> None:
    scene.world.api_pod("train")
    async with Kube.at(scene.world.server.url) as kube:
        await kube.delete(PODS, "train", namespace="ns", grace=600)
    assert (await scene.reap()).what is Reaped.DELETED
    assert len(scene.deletes()) == 1
    assert (await scene.reap(attempt=2)).what is Reaped.DELETED
    assert "train" not in scene.world.pods_there()


async def test_a_daemon_sets_pod_is_not_spared(scene: Scene) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u"}
    scene.world.api_pod("train", metadata={"ownerReferences": [{**owner, "controller": True}]})
    assert (await scene.reap()).what is Reaped.DELETED


async def test_the_pod_is_told_why(scene: Scene) -> None:
    uid = scene.world.api_pod("train")
    await scene.reap()
    (event,) = scene.world.server.items("events")
    assert event["involvedObject"]["uid"] == uid
    assert (event["reason"], event["type"], event["count"]) == ("DeviceRevoked", "Warning", 1)
    assert event["message"] == (
        "deleted: it has gpu0 of allocation a1, which it must not have any more"
    )


async def test_that_nobody_may_write_events_is_no_matter(scene: Scene) -> None:
    scene.world.api_pod("train")
    scene.world.server.deny("create", "events")
    assert (await scene.reap()).what is Reaped.DELETED


async def test_a_dry_run_looks_at_everything_and_deletes_nothing(scene: Scene) -> None:
    scene.world.api_pod("train")
    scene.policy(dry_run=True, pods_per_minute=1)
    for _ in range(3):
        assert (await scene.reap()).what is Reaped.WOULD_DELETE
    scene.world.api_pod("static", metadata={"annotations": {"kubernetes.io/config.mirror": "x"}})
    assert (await scene.reap("static")).what is Reaped.SPARED
    assert scene.deletes() == []


async def test_so_many_in_a_minute_and_no_more(scene: Scene) -> None:
    scene.policy(pods_per_minute=2)
    for number in range(3):
        scene.world.api_pod(f"train-{number}")
    found = [(await scene.reap(f"train-{number}")).what for number in range(3)]
    assert found == [Reaped.DELETED, Reaped.DELETED, Reaped.LATER]
    assert not scene.is_going("train-2")


@pytest.mark.parametrize("status", [403, 409, 422, 429, 404])
async def test_deletions_that_are_refused_keep_no_other_pod_from_its_end(
    scene: Scene, status: int
) -> None:
    """A webhook lets nobody delete in one namespace, and it is tried each ten seconds."""
    scene.policy(pods_per_minute=1)
    scene.world.api_pod("protected")
    scene.world.api_pod("train")
    scene.world.server.trouble(method="DELETE", path="pods/protected", status=status)
    for _ in range(3):
        assert (await scene.reap("protected")).what is not Reaped.DELETED
    assert (await scene.reap("train")).what is Reaped.DELETED


async def test_one_that_may_have_been_done_counts(scene: Scene) -> None:
    scene.policy(pods_per_minute=1)
    scene.world.api_pod("train-0")
    scene.world.api_pod("train-1")
    scene.world.server.trouble(method="DELETE", lose=True, times=1)
    assert (await scene.reap("train-0")).what is Reaped.LATER
    assert "in a minute" in (await scene.reap("train-1")).reason


def test_the_minute_slides() -> None:
    clock = ManualClock()
    rate = Rate(2, clock.now)
    taken = []
    for _ in range(7):
        taken.append(rate.take())
        clock.advance(20)
    assert taken == [True, True, False, True, True, False, True]


# -- pods that must live --------------------------------------------------------------------------


async def test_a_static_pod_is_spared_and_said_how_it_ends(scene: Scene) -> None:
    scene.world.api_pod("train", metadata={"annotations": {"kubernetes.io/config.mirror": "x"}})
    result = await scene.reap()
    assert result.what is Reaped.SPARED
    assert "file" in result.reason
    assert scene.deletes() == []


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_what_has_ended_is_left(scene: Scene, phase: str) -> None:
    scene.world.api_pod("train", status={"phase": phase})
    assert (await scene.reap(attempt=2)).what is Reaped.GONE
    assert scene.deletes() == []


async def test_what_is_gone_is_gone(scene: Scene) -> None:
    assert (await scene.reap()).what is Reaped.GONE


async def test_a_pod_of_another_node_is_not_ours_to_delete(scene: Scene) -> None:
    scene.world.server.add_node("node-2")
    scene.world.api_pod("train", node="node-2")
    assert (await scene.reap(attempt=2)).what is Reaped.SPARED
    assert scene.deletes() == []


@pytest.mark.field_case("J06")
@pytest.mark.parametrize("attempt", [1, 2])
async def test_a_namesake_of_whom_a_claim_was_for_lives(scene: Scene, attempt: int) -> None:
    scene.world.api_pod("train")
    result = await scene.reap(attempt=attempt, uids=("another-uid",))
    assert (result.what, scene.deletes()) == (Reaped.SPARED, [])


@pytest.mark.field_case("J06")
async def test_a_namesake_that_comes_during_the_last_look_lives(scene: Scene) -> None:
    scene.world.api_pod("train")

    async def replaced() -> bool:
        scene.world.server.remove("pods", "train", "ns")
        scene.world.api_pod("train")
        return True

    result = await scene.reap(attempt=2, still_holds=replaced)
    assert result.what is Reaped.SPARED
    assert not scene.is_going()


async def test_one_that_went_during_the_last_look_is_gone(scene: Scene) -> None:
    scene.world.api_pod("train")

    async def went() -> bool:
        scene.world.server.remove("pods", "train", "ns")
        return True

    assert (await scene.reap(still_holds=went)).what is Reaped.GONE


@pytest.mark.parametrize("uids", [False, True])
async def test_a_pod_younger_than_the_release_lives(scene: Scene, uids: bool) -> None:
    uid = scene.world.api_pod("train", born=scene.since + 1)
    result = await scene.reap(attempt=2, uids=(uid,) if uids else ())
    assert (result.what, scene.deletes()) == (Reaped.SPARED, [])


@pytest.mark.parametrize(
    ("created", "started", "deleted"),
    [
        (-10, -9, True),
        (0, 30, True),  # in the very second
        (600, 0, True),
        (-10, 60, True),
        (-10, 61, False),
        (-10, 30, True),  # it was given its devices, and its start was told a little later
        (-10, 3600, False),  # so long after it, it was given nothing
        (600, -10, True),  # the API server's clock is ahead: it had started before
        (600, 601, False),
        (-600, 90, False),  # the API server's clock is behind: a namesake looks old
    ],
)
async def test_two_clocks_say_how_old_a_pod_is(
    scene: Scene, created: int, started: int, deleted: bool
) -> None:
    scene.world.api_pod("train", born=scene.since + created, started=scene.since + started)
    result = await scene.reap()
    assert (result.what is Reaped.DELETED) == deleted
    assert scene.is_going() == deleted


async def test_of_a_pod_that_a_claim_names_it_does_not_matter_when_it_started(
    scene: Scene,
) -> None:
    uid = scene.world.api_pod("train", born=scene.since - 10, started=scene.since + 3600)
    assert (await scene.reap(uids=(uid,))).what is Reaped.DELETED


async def test_one_that_its_kubelet_has_not_started_holds_nothing_yet(scene: Scene) -> None:
    scene.world.api_pod("train", status={"phase": "Pending", "startTime": None})
    assert (await scene.reap()).what is Reaped.LATER
    assert scene.deletes() == []


async def test_one_whose_init_containers_run_holds_what_it_was_given(scene: Scene) -> None:
    scene.world.api_pod("train", started=scene.since + 30, status={"phase": "Pending"})
    assert (await scene.reap()).what is Reaped.DELETED


async def test_one_that_runs_holds_it_though_its_start_is_not_told(scene: Scene) -> None:
    scene.world.api_pod("train", status={"startTime": None})
    assert (await scene.reap()).what is Reaped.DELETED


@pytest.mark.parametrize("at", ["yesterday", "2026-01-01T00:00:00", ""])
async def test_a_creation_that_cannot_be_read_is_no_old_age(scene: Scene, at: str) -> None:
    scene.world.api_pod("train", status={"startTime": None})
    scene.world.server.edit("pods", "train", "ns").change(
        lambda pod: pod["metadata"].update(creationTimestamp=at)
    )
    assert (await scene.reap()).what is Reaped.SPARED
    assert scene.deletes() == []


async def test_who_does_not_hold_it_any_more_lives(scene: Scene) -> None:
    scene.world.api_pod("train")

    async def no() -> bool:
        return False

    assert (await scene.reap(attempt=2, still_holds=no)).what is Reaped.GONE
    assert scene.deletes() == []


async def test_of_whom_that_cannot_be_said_lives(scene: Scene) -> None:
    scene.world.api_pod("train")

    async def unknown() -> bool:
        raise CallFailed("kubelet.sock", "List", "UNAVAILABLE")

    result = await scene.reap(attempt=2, still_holds=unknown)
    assert result.what is Reaped.LATER
    assert "UNAVAILABLE" in result.reason
    assert scene.deletes() == []


async def test_the_last_look_comes_after_the_uid_was_read(scene: Scene) -> None:
    scene.world.api_pod("train")
    asked: list[str] = []

    async def looked() -> bool:
        asked.extend(one.method for one in scene.world.server.requests)
        return True

    await scene.reap(still_holds=looked)
    assert asked == ["GET"]


# -- an API server that fails ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble",
    [
        {"status": 500},
        {"status": 403},
        {"status": 401},
        {"status": 429},
        {"drop": True},
    ],
)
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_request_that_fails_is_done_later(
    scene: Scene, method: str, trouble: dict[str, Any]
) -> None:
    scene.world.api_pod("train")
    scene.world.server.trouble(method=method, **trouble)
    result = await scene.reap()
    assert result.what is Reaped.LATER
    assert result.reason
    assert not scene.is_going()


async def test_without_a_connection_it_is_later(scene: Scene) -> None:
    def none() -> Kube:
        raise KubeUnreachable("not in a pod")

    scene.agent._kube = none
    assert (await scene.reap()).what is Reaped.LATER


async def test_a_pod_without_a_uid_is_deleted_by_nothing(scene: Scene) -> None:
    """An empty precondition is none: it would be deleted by its name."""
    scene.world.api_pod("train")
    scene.world.server.edit("pods", "train", "ns").change(
        lambda pod: pod["metadata"].update(uid="")
    )
    assert (await scene.reap(attempt=2)).what is Reaped.LATER
    assert scene.deletes() == []


@pytest.mark.parametrize(
    "odd", [{"spec": {"nodeName": 7}}, {"status": "gone"}, {"status": {"startTime": 5}}]
)
async def test_what_is_no_pod_is_not_deleted(scene: Scene, odd: dict[str, Any]) -> None:
    scene.world.api_pod("train")
    scene.world.server.edit("pods", "train", "ns").update(**odd)
    assert (await scene.reap()).what is Reaped.LATER
    assert scene.deletes() == []


# -- settings -------------------------------------------------------------------------------------


def test_the_seeds_timings_are_the_defaults() -> None:
    made = PodReaper(Node(name=NODE), PodReaperSettings())
    assert (made.first_after_s, made.again_after_s, made.settings.grace_s) == (30, 60, 10)
    assert not made.settings.dry_run
    assert not made.settings.clean_failed_admission


@pytest.mark.parametrize(
    "bad",
    [
        {"first_after_s": 0},
        {"again_after_s": -1},
        {"grace_s": -1},
        {"grace_s": 1.5},
        {"pods_per_minute": 0},
        {"first_after_s": float("inf")},
        {"first_after_s": float("nan")},
        {"gracee_s": 1},
    ],
)
def test_settings_that_make_no_sense_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PodReaperSettings(**bad)


# -- pods that were never admitted ----------------------------------------------------------------

CONTROLLED = [
    {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
]


def refused(scene: Scene, name: str, *, age: float = HOUR, **changes: Any) -> str:
    """A pod that its kubelet has refused."""
    resources = changes.pop("resources", {"limits": {"hardpoint.dev/gpu": "1"}})
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "containerStatuses": []}
    return scene.world.api_pod(
        name,
        born=time.time() - age,
        metadata={
            "ownerReferences": changes.pop("owners", CONTROLLED),
            "finalizers": changes.pop("finalizers", []),
        },
        spec={"containers": [{"name": "m", "image": "i", "resources": resources}]},
        status=status | changes.pop("status", {}),
        **changes,
    )


@pytest.mark.field_case("J03")
async def test_pods_that_were_refused_our_resources_are_cleaned_up(scene: Scene) -> None:
    uid = refused(scene, "train")
    scene.policy(clean_failed_admission=True)
    await scene.reaper.clean(scene.agent)
    assert scene.world.pods_there() == {}
    assert scene.deletes()[0][1]["preconditions"] == {"uid": uid}
    assert [event.name for event in scene.agent.events] == ["failed-pod-cleaned"]


async def test_a_resource_with_another_prefix_is_ours_if_it_is_held(scene: Scene) -> None:
    refused(scene, "train", resources={"requests": {"example.com/fast": "1"}})
    scene.policy(clean_failed_admission=True)
    await scene.reaper.clean(scene.agent)
    assert len(scene.world.pods_there()) == 1
    held = Allocation(
        resource="example.com/fast",
        id="gpu0",
        device="gpu0",
        dra_driver="d",
        state=HoldState.HELD,
        users=None,
    )
    scene.agent.allocations = lambda: (held,)  # type: ignore[method-assign]
    await scene.reaper.clean(scene.agent)
    assert scene.world.pods_there() == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"owners": []},  # nobody makes another: it is somebody's to look at
        {"owners": None},
        {"age": 5},
        {"status": {"reason": "OutOfcpu"}},
        {"status": {"phase": "Succeeded"}},
        {"resources": {"limits": {"nvidia.com/gpu": "1"}}},
        {"resources": {}},
        {"node": "node-2"},
    ],
)
async def test_other_failures_are_left_to_be_looked_at(
    scene: Scene, changes: dict[str, Any]
) -> None:
    scene.world.server.add_node("node-2")
    refused(scene, "train", **changes)
    scene.policy(clean_failed_admission=True)
    await scene.reaper.clean(scene.agent)
    assert scene.deletes() == []


async def test_one_of_an_age_that_cannot_be_read_is_left_and_costs_no_other(scene: Scene) -> None:
    refused(scene, "odd")
    refused(scene, "train")
    scene.world.server.edit("pods", "odd", "ns").change(
        lambda pod: pod["metadata"].update(creationTimestamp="yesterday")
    )
    scene.policy(clean_failed_admission=True)
    await scene.reaper.clean(scene.agent)
    assert list(scene.world.pods_there()) == ["odd"]


@pytest.mark.parametrize("status", [404, 409], ids=["is gone", "is another"])
async def test_what_is_not_the_pod_that_was_listed_any_more_is_not_said_to_be_deleted(
    scene: Scene, status: int
) -> None:
    refused(scene, "train")
    refused(scene, "untrain")
    scene.policy(clean_failed_admission=True)
    scene.world.server.trouble(method="DELETE", status=status, times=1)
    await scene.reaper.clean(scene.agent)
    assert [event.facts["pod"] for event in scene.agent.events] == ["ns/untrain"]


async def test_what_somebody_deletes_already_is_left_to_them(scene: Scene) -> None:
    refused(scene, "train", finalizers=["batch.kubernetes.io/job-tracking"])
    scene.policy(clean_failed_admission=True)
    await scene.reaper.clean(scene.agent)
    await scene.reaper.clean(scene.agent)
    assert len(scene.deletes()) == 1


async def test_cleaning_up_leaves_half_of_a_minutes_deletions_to_reaping(scene: Scene) -> None:
    """Of the failed there may be thousands, and who holds a device must not wait for them."""
    for number in range(9):
        refused(scene, f"failed-{number}")
    for number in range(4):
        scene.world.api_pod(f"train-{number}")
    scene.policy(clean_failed_admission=True, pods_per_minute=5)
    await scene.reaper.clean(scene.agent)
    await scene.reaper.clean(scene.agent)
    assert len(scene.agent.events) == 3, "the next look is for the rest"

    found = [(await scene.reap(f"train-{number}")).what for number in range(3)]
    assert found == [Reaped.DELETED, Reaped.DELETED, Reaped.LATER]


async def test_one_in_a_minute_may_be_a_failed_one(scene: Scene) -> None:
    refused(scene, "failed")
    scene.policy(clean_failed_admission=True, pods_per_minute=1)
    await scene.reaper.clean(scene.agent)
    assert len(scene.agent.events) == 1


async def test_cleaning_up_in_a_dry_run_says_it_once(scene: Scene) -> None:
    refused(scene, "train")
    scene.policy(clean_failed_admission=True, dry_run=True)
    await scene.reaper.clean(scene.agent)
    await scene.reaper.clean(scene.agent)
    assert scene.deletes() == []
    assert len(scene.agent.events) == 1


async def test_cleaning_up_goes_on_after_a_failure(scene: Scene) -> None:
    refused(scene, "train")
    policy = scene.policy(clean_failed_admission=True)
    scene.world.server.trouble(method="GET", status=500, times=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(policy.serve_policy, scene.agent)
        await scene.world.server.until(
            lambda: any(r.method == "GET" for r in scene.world.server.requests)
        )
        tasks.cancel_scope.cancel()
    await policy.clean(scene.agent)
    assert scene.world.pods_there() == {}


async def test_a_failure_to_clean_up_is_a_fault_until_it_succeeds(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again soon, and each minute else."""
    policy = scene.policy(clean_failed_admission=True)
    answers = iter([False, False, True, False, True])
    slept: list[tuple[float, int]] = []
    done = anyio.Event()

    async def clean(agent: Agent) -> None:
        if not next(answers):
            raise KubeUnreachable("the API server is away")

    async def sleep(seconds: float) -> None:
        slept.append((seconds, len(scene.agent.faults)))
        if len(slept) == 5:
            done.set()
            await anyio.sleep_forever()

    policy.clean = clean  # type: ignore[method-assign]
    monkeypatch.setattr(anyio, "sleep", sleep)
    monkeypatch.setattr(random, "uniform", lambda least, most: 1.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(policy.serve_policy, scene.agent)
        with anyio.fail_after(5):
            await done.wait()
        tasks.cancel_scope.cancel()
    assert slept == [(1.0, 1), (2.0, 1), (60.0, 0), (1.0, 1), (60.0, 0)]


async def test_nothing_is_cleaned_up_unless_that_is_set(scene: Scene) -> None:
    asked: list[Agent] = []

    async def clean(agent: Agent) -> None:
        asked.append(agent)

    scene.reaper.clean = clean  # type: ignore[method-assign]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(scene.reaper.serve_policy, scene.agent)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert asked == []


async def test_the_other_of_two_agents_cleans_nothing_up(scene: Scene, tmp_path: Any) -> None:
    refused(scene, "train")
    policy = scene.policy(clean_failed_admission=True)
    other = FakeAgent(tmp_path, writing=False, kube=lambda: Kube.at(scene.world.server.url))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(policy.serve_policy, other)
        await anyio.wait_all_tasks_blocked()
        assert scene.world.server.requests == []
        tasks.cancel_scope.cancel()


# -- with the agent's own part --------------------------------------------------------------------


async def test_the_whole_story_of_a_pod_that_ignores_its_end(scene: Scene) -> None:
    world = scene.world
    world.pod("train", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, PodReaper) as one:
        await one.look()
        await one.look(after=30)
        assert world.pods_there()["train"]["metadata"]["deletionGracePeriodSeconds"] == 10
        await one.look(after=60)
        assert "train" not in world.pods_there()
        world.pods.gone("train")
        await one.look(after=5)
    assert [e.name for e in world.events] == ["pod-overstays", "pod-reaped", "pod-reaped"]
    assert world.left == 1


async def test_the_successor_of_a_pod_that_was_killed_lives(scene: Scene) -> None:
    """Its kubelet still lists the old one, by the name that the new one has by now."""
    world = scene.world
    world.pod("train-0", "gpu0@a1")
    world.revoke("gpu0", "a1")
    async with reaping(world, PodReaper) as one:
        await one.look()
        await one.look(after=30)
        await one.look(after=60)
        world.api_pod("train-0", born=world.wall() + 1)
        for _ in range(5):
            await one.look(after=60)
    assert not scene.is_going("train-0")


ROLE = "hardpoint-pod-reaper"


async def test_the_role_that_is_shipped_is_what_is_asked_for(scene: Scene) -> None:
    world = scene.world
    uid = world.api_pod("train")
    world.claim("claim", "gpu0", "a1", pods=[("train", uid)])
    world.revoke("gpu0", "a1")
    async with reaping(world, PodReaper) as one:
        await one.look()
        await one.look(after=30)
    scene.policy(clean_failed_admission=True)
    await scene.reaper.clean(scene.agent)

    documents = list(yaml.safe_load_all((ROOT / "deploy/rbac-policies.yaml").read_text()))
    role = next(one for one in documents if one and one["metadata"]["name"] == ROLE)
    granted = {
        (r, verb) for rule in role["rules"] for r in rule["resources"] for verb in rule["verbs"]
    }
    assert {_asked(seen) for seen in world.server.requests} - {None} == granted


def _asked(seen: Any) -> tuple[str, str] | None:
    """Return resource and verb of a request; None for one that everybody may ask."""
    steps = seen.path.strip("/").split("/")
    plurals = [step for step in steps if step in ("pods", "events", "resourceclaims")]
    if not plurals:
        return None
    named = steps[-1] != plurals[0]
    verbs = {"GET": "get" if named else "list", "POST": "create", "DELETE": "delete"}
    return plurals[0], verbs[seen.method]
