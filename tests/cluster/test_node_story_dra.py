"""The seed's page on a real node, by DRA: grants come and go under real claims."""

from __future__ import annotations

import pytest
from cluster import pods
from cluster.granted import DRA, Granted, claiming, seen
from cluster.waiting import until
from cluster.witness import Namespace
from cluster.world import GPUS

from hardpoint.grants import published_name

OPEN = "exec 3</dev/acme/gpu0 || exec 3</dev/acme/gpu1; trap '' TERM; while :; do sleep 1; done"
"""A program that has its GPU open, and does not end when it is told to."""


@pytest.fixture
def gpu(granted: Granted) -> str:
    """The first GPU's device."""
    return granted.names[0]


def run(namespace: Namespace, name: str, script: str = pods.WAIT) -> None:
    """Run a pod with a claim of its own, of the same name."""
    namespace.create(pods.claim(name, gpu="bcd-gpu"))
    namespace.create(claiming(name, name, script=script))


def test_a_grant_appears_in_slices_under_its_own_name_and_a_pod_gets_exactly_that_device(
    granted: Granted, namespace: Namespace, gpu: str
) -> None:
    granted.begin(DRA)
    granted.until_published()

    granted.grant("alloc-1", gpu)

    granted.until_published(**{gpu.replace("-", "_"): "alloc-1"})
    run(namespace, "p")
    namespace.until_running("p")
    [device] = granted.witness.devices(GPUS, "n4").values()
    attributes = device["attributes"]
    assert next(v for k, v in attributes.items() if k.endswith("allocation"))["string"] == "alloc-1"
    assert namespace.allocated("p") == [published_name(gpu, "alloc-1")]
    assert seen(namespace, "p") == ([granted.node_of(gpu)], "alloc-1")
    [hold] = granted.agent.says("holds")
    assert hold["device"] == gpu


def test_a_grant_ends_under_a_running_pod_which_is_reaped_by_the_timings_before_it_is_released(
    granted: Granted, namespace: Namespace, gpu: str
) -> None:
    granted.begin(DRA, policy__pod_reaper__first_after_s="30")
    granted.grant("alloc-2", gpu)
    granted.until_published(**{gpu.replace("-", "_"): "alloc-2"})
    run(namespace, "p")
    namespace.until_running("p")

    revoked = granted.revoke("alloc-2")

    granted.until_published()
    until("pending", lambda: granted.pending() == ["alloc-2"])
    deleted = until("deleted", lambda: granted.deletions("p"))
    assert [one.grace for one in deleted] == [10]
    assert 30 <= deleted[0].at - revoked < 60
    assert granted.until_released("alloc-2") >= deleted[0].at
    namespace.until_gone("p")  # its containers ended; the API server is told by and by
    until("nothing held", lambda: not granted.agent.says("holds"))


def test_a_gpu_that_comes_back_under_another_grant_is_another_device(
    granted: Granted, namespace: Namespace, gpu: str
) -> None:
    """The claim that had it under the grant that ended is allocated the other one."""
    granted.begin(DRA)
    granted.grant("alloc-3", gpu)
    granted.until_published(**{gpu.replace("-", "_"): "alloc-3"})
    run(namespace, "p")
    namespace.until_running("p")
    granted.revoke("alloc-3")
    granted.until_released("alloc-3")
    namespace.until_gone("p")
    until("the claim is free again", lambda: not namespace.allocated("p"))

    granted.grant("alloc-4", gpu)
    granted.until_published(**{gpu.replace("-", "_"): "alloc-4"})
    namespace.create(claiming("late", "p"))

    namespace.until_running("late")
    assert namespace.allocated("p") == [published_name(gpu, "alloc-4")]
    assert seen(namespace, "late")[1] == "alloc-4"


@pytest.mark.parametrize("who", ["agent", "kubelet", "API server"])
@pytest.mark.parametrize("when", ["granted", "ended", "reaping"])
def test_what_is_killed_in_the_middle_changes_nothing(
    granted: Granted, namespace: Namespace, gpu: str, who: str, when: str
) -> None:
    granted.begin(DRA)
    allocation = f"dra-{who}-{when}".lower().replace(" ", "-")
    granted.grant(allocation, gpu)
    if when == "granted":
        granted.kill(who)
    granted.until_published(**{gpu.replace("-", "_"): allocation})
    run(namespace, "p", OPEN if when == "reaping" else pods.WAIT)
    namespace.until_running("p")

    granted.revoke(allocation)
    if when == "ended":
        granted.kill(who)
    if when == "reaping":
        until("reaped", lambda: granted.lines("pod-reaped"))
        granted.kill(who)

    released = granted.until_released(allocation)
    assert released >= granted.deletions("p")[0].at
    namespace.until_gone("p")
    granted.until_published()
