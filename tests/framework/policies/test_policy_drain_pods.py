"""Which pods go with a node that is handed back, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hardpoint.errors import KubeUnreachable
from hardpoint.kube import PODS
from hardpoint.policies._pods import read_pod
from hardpoint.policies.drain import _own_pod
from hardpoint.policies.drain.pods import in_words
from hardpoint.testing.agent import FakeAgent

from .drain_world import DAEMON, NODE, DrainWorld

OURS = {"limits": {"hardpoint.dev/gpu": "1"}}
CLAIM = [{"name": "gpu", "resourceClaimName": "claim-1"}]
EXTENDED = {"phase": "Running", "extendedResourceClaimStatus": {"resourceClaimName": "c"}}


@pytest.mark.parametrize(
    ("spec", "grace"),
    [
        ({}, 30),
        ({"terminationGracePeriodSeconds": 5}, 5),
        ({"terminationGracePeriodSeconds": 3600}, 30),
        ({"terminationGracePeriodSeconds": 0}, 1),
    ],
)
async def test_a_pod_gets_its_own_grace_and_no_more_than_thirty_seconds(
    drain_world: DrainWorld, spec: dict[str, Any], grace: int
) -> None:
    drain_world.add_pod("train", **spec)
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.going() == {"train": grace})
        await drain_world.quiet()

    assert len(drain_world.server.writes("pods")) == 1


async def test_a_pod_that_takes_an_hour_to_end_gets_thirty_seconds(
    drain_world: DrainWorld,
) -> None:
    uid = drain_world.add_pod("train", terminationGracePeriodSeconds=3600)
    async with drain_world.kube() as kube:
        await kube.delete(PODS, "train", namespace="default", uid=uid)
    assert drain_world.going() == {"train": 3600}
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.going() == {"train": 30})


async def test_a_pod_that_waits_to_be_started_goes_too(drain_world: DrainWorld) -> None:
    drain_world.add_pod("train", phase="Pending")
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(drain_world.going)


@pytest.mark.parametrize(
    "pod",
    [
        {"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}},
        {"phase": "Succeeded"},
        {"phase": "Failed"},
        {"node": "node-2"},
        {"metadata": {"ownerReferences": DAEMON}},
        {"metadata": {"ownerReferences": DAEMON}, "resources": {"limits": {"cpu": "1"}}},
        {"metadata": {"ownerReferences": DAEMON}, "resources": {"limits": {"other.dev/gpu": "1"}}},
        {"metadata": {"namespace": "hardpoint", "name": "agent"}, "resources": OURS},
    ],
    ids=["static", "succeeded", "failed", "elsewhere", "daemon", "cpu", "others", "own"],
)
async def test_whom_a_drain_spares(drain_world: DrainWorld, pod: dict[str, Any]) -> None:
    drain_world.add_pod("spared", **pod)
    drain_world.ask()
    async with drain_world.served(own="hardpoint/agent"):
        await drain_world.until(lambda: drain_world.released)
        await drain_world.quiet()

    assert drain_world.server.writes("pods") == []


@pytest.mark.parametrize(
    "asks",
    [
        {"resources": OURS},
        {"resources": {"requests": {"hardpoint.dev/gpu": "1"}}},
        {"initContainers": [{"name": "i", "resources": OURS}]},
        {"resourceClaims": CLAIM},
    ],
    ids=["limits", "requests", "init", "claim"],
)
async def test_a_daemon_sets_pod_goes_if_it_asks_for_a_device(
    drain_world: DrainWorld, asks: dict[str, Any]
) -> None:
    drain_world.add_pod("d", metadata={"ownerReferences": DAEMON}, **asks)
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(lambda: "d" in drain_world.going())


async def test_a_daemon_sets_pod_goes_that_got_its_device_through_an_extended_resource(
    drain_world: DrainWorld,
) -> None:
    drain_world.add_pod("d", metadata={"ownerReferences": DAEMON})
    drain_world.server.edit("pods", "d", "default").update(status=EXTENDED)
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(lambda: "d" in drain_world.going())


async def test_a_namesake_does_not_die_for_the_pod_that_was_meant(
    drain_world: DrainWorld,
) -> None:
    drain_world.add_pod("train")

    def replace() -> None:
        drain_world.end("train")
        drain_world.add_pod("train", node="node-2")

    drain_world.server.trouble(method="DELETE", times=1, before=replace)
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.released)

    assert drain_world.going() == {}


async def test_one_pod_that_may_not_be_deleted_costs_no_other(drain_world: DrainWorld) -> None:
    for name in ("a", "b", "c"):
        drain_world.add_pod(name)
    drain_world.server.trouble(method="DELETE", path="/pods/a", status=403)
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.going() == {"b": 30, "c": 30})

        await drain_world.until(lambda: "policy/drain: pods" in drain_world.agent.faults)
        assert not drain_world.released


async def test_a_pod_that_comes_later_goes_too(drain_world: DrainWorld) -> None:
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(lambda: drain_world.released)
        drain_world.add_pod("late")

        await drain_world.until(lambda: drain_world.going() == {"late": 30})
        await drain_world.until(lambda: not drain_world.released)


async def test_each_deletion_is_told(drain_world: DrainWorld) -> None:
    drain_world.add_pod("train")
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(drain_world.going)
        await drain_world.quiet()

    told = [event.name for event in drain_world.agent.events]
    assert told == ["node-drain-begun", "node-cordoned", "node-drain-pod-deleted"]


# -- disruption budgets ---------------------------------------------------------------------------


async def test_budgets_are_asked_first_where_the_settings_say_so(drain_world: DrainWorld) -> None:
    drain_world.add_pod("train", terminationGracePeriodSeconds=60)
    drain_world.ask()
    async with drain_world.served(evict=True):
        await drain_world.until(lambda: drain_world.going() == {"train": 30})

    assert [one.method for one in drain_world.server.writes("pods")] == ["POST"]


async def test_a_budget_holds_a_pod_only_for_a_time(drain_world: DrainWorld) -> None:
    drain_world.add_pod("train")
    refused = drain_world.server.trouble(path="/eviction", status=429)
    drain_world.ask()
    async with drain_world.served(evict=True, evict_for_s=100):
        await drain_world.until(lambda: refused.met > 2)
        assert drain_world.going() == {}

        drain_world.now += 101

        await drain_world.until(lambda: drain_world.going() == {"train": 30})


# -- the agent's own ------------------------------------------------------------------------------


def test_the_agents_own_pod_is_known_by_uid_and_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = FakeAgent(tmp_path, instance="uid-of-the-pod")
    monkeypatch.setenv("POD_NAMESPACE", "hardpoint")
    monkeypatch.setenv("POD_NAME", "hardpoint-x7")

    assert _own_pod(agent) == {"uid-of-the-pod", "hardpoint/hardpoint-x7"}


async def test_a_node_of_that_name_that_is_not_there_is_drained_of_its_pods(
    drain_world: DrainWorld,
) -> None:
    drain_world.add_pod("train")
    drain_world.server.remove("nodes", NODE)
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(drain_world.going)

    assert drain_world.server.items("nodes") == []


async def test_a_pod_that_the_server_does_not_name_whole_stops_the_look_and_is_said(
    drain_world: DrainWorld,
) -> None:
    drain_world.add_pod("train")
    drain_world.server.edit("pods", "train", "default").change(
        lambda pod: pod["spec"].update(terminationGracePeriodSeconds="long")
    )
    drain_world.ask()
    async with drain_world.served():
        await drain_world.until(lambda: "policy/drain: pods" in drain_world.agent.faults)

        assert not drain_world.released


async def test_a_node_is_not_cordoned_where_the_settings_say_so(drain_world: DrainWorld) -> None:
    drain_world.ask()
    async with drain_world.served(cordon=False):
        await drain_world.until(lambda: drain_world.released)

    assert not drain_world.cordoned


@pytest.mark.parametrize(
    "body",
    [{}, {"metadata": {"name": "a", "uid": ""}}, {"metadata": {"name": "a", "uid": 7}}],
    ids=["nothing", "no UID", "a number"],
)
def test_what_is_no_pod_is_not_read_as_one(body: dict[str, Any]) -> None:
    with pytest.raises(KubeUnreachable):
        read_pod(body)


def test_many_pods_are_named_by_a_few() -> None:
    assert in_words(["a", "b"]) == "a, b"
    assert in_words(list("abcdefg")) == "a, b, c, d, e and 2 more"
