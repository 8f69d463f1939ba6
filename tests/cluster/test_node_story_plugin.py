"""The seed's page on a real node, by the device plugin API: grants come and go under real pods."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from cluster import pods
from cluster.granted import GPU, NODE, PLUGIN, Granted, pod, seen
from cluster.waiting import until
from cluster.witness import Namespace

DEAF = "trap '' TERM; while :; do sleep 1000 & wait; done"
"""A program that does not end when it is told to."""
OPEN = "exec 3</dev/acme/gpu0 || exec 3</dev/acme/gpu1; " + DEAF
"""One that has its GPU open, besides."""


@pytest.fixture
def gpu(granted: Granted) -> str:
    """The first GPU's device."""
    return granted.names[0]


def test_a_grant_appears_and_pods_get_exactly_its_devices_with_its_id_in_their_environment(
    granted: Granted, namespace: Namespace, gpu: str
) -> None:
    granted.begin(PLUGIN)
    granted.until_allocatable(0)

    granted.grant("alloc-1", gpu)

    granted.until_allocatable(1)
    namespace.create(pod("p"))
    namespace.until_running("p")
    assert seen(namespace, "p") == ([granted.node_of(gpu)], "alloc-1")
    namespace.create(pod("second"))
    namespace.until_says("second", f"Insufficient {GPU}")
    until("told", lambda: granted.report("alloc-1").get("outcome") == "in-force")
    [hold] = granted.agent.says("holds")
    assert hold["claim"]["name"] == f"{gpu}@alloc-1"


def test_a_grant_ends_under_a_running_pod_which_is_reaped_by_the_timings_before_it_is_released(
    granted: Granted, namespace: Namespace
) -> None:
    granted.begin(PLUGIN, policy__pod_reaper__first_after_s="30")
    granted.grant("alloc-2", *granted.names)
    granted.until_allocatable(2)
    namespace.create(pod("p"))
    namespace.until_running("p")

    revoked = granted.revoke("alloc-2")

    granted.until_allocatable(0)
    until("pending", lambda: granted.pending() == ["alloc-2"])
    deleted = until("deleted", lambda: granted.deletions("p"))
    assert [one.grace for one in deleted] == [10]
    assert 30 <= deleted[0].at - revoked < 60
    assert granted.until_released("alloc-2") >= deleted[0].at
    namespace.until_gone("p")  # its containers ended; the API server is told by and by
    until("nothing pending", lambda: not granted.pending())


def test_a_grant_that_ends_leaves_the_pods_of_another_alone(
    granted: Granted, namespace: Namespace
) -> None:
    granted.begin(PLUGIN)
    for allocation, device in zip(("alloc-a", "alloc-b"), granted.names, strict=True):
        granted.grant(allocation, device)
    granted.until_allocatable(2)
    for name in ("p", "q"):
        namespace.create(pod(name))
    namespace.until_running("p", "q")
    ids = {name: seen(namespace, name)[1] for name in ("p", "q")}
    [gone] = [name for name, allocation in ids.items() if allocation == "alloc-a"]
    [stays] = [name for name, allocation in ids.items() if allocation == "alloc-b"]

    granted.revoke("alloc-a")

    granted.until_released("alloc-a")
    assert namespace.witness.get("Pod", gone, namespace.name) is None
    assert seen(namespace, stays)[1] == "alloc-b"
    assert granted.deletions(stays) == []


def test_a_pod_that_ignores_sigterm_is_killed_and_only_then_is_its_gpu_released(
    granted: Granted, namespace: Namespace, gpu: str
) -> None:
    granted.begin(PLUGIN)
    granted.grant("alloc-3", gpu)
    granted.until_allocatable(1)
    namespace.create(pod("p", script=OPEN, terminationGracePeriodSeconds=600))
    namespace.until_running("p")

    granted.revoke("alloc-3")

    until("a second attempt", lambda: len(granted.deletions("p")) > 1)
    deleted = granted.deletions("p")
    assert [one.grace for one in deleted][:2] == [10, 0]
    assert granted.until_released("alloc-3") >= deleted[0].at
    namespace.until_gone("p")


def test_a_static_pod_cannot_be_deleted_is_reported_and_keeps_its_gpu(
    granted: Granted, gpu: str
) -> None:
    granted.begin(PLUGIN)
    granted.grant("alloc-4", gpu)
    granted.until_allocatable(1)
    body = pod("static", script=OPEN)
    body["metadata"]["namespace"] = "default"
    del body["spec"]["nodeSelector"], body["spec"]["resourceClaims"]
    file = granted.cluster.static_pods(NODE) / "static.yaml"
    file.write_text(yaml.safe_dump(body))
    until("it has the GPU", lambda: granted.agent.says("holds"))

    granted.revoke("alloc-4")

    until("reported", lambda: granted.lines("pod-spared"))
    assert "static pod" in granted.lines("pod-spared")[-1]
    assert granted.pending() == ["alloc-4"]
    assert not granted.report("alloc-4").get("released")
    assert granted.deletions("static-n4") == []

    file.unlink()

    granted.until_released("alloc-4")


def test_a_daemon_sets_pod_is_not_spared(granted: Granted, namespace: Namespace, gpu: str) -> None:
    granted.begin(PLUGIN)
    granted.grant("alloc-5", gpu)
    granted.until_allocatable(1)
    template = {"metadata": {"labels": {"app": "d"}}, "spec": pod("d")["spec"]}
    selector = {"matchLabels": {"app": "d"}}
    body: dict[str, Any] = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d"}}
    namespace.create(body | {"spec": {"selector": selector, "template": template}})
    [name] = namespace.until_app_runs("d")

    granted.revoke("alloc-5")

    granted.until_released("alloc-5")
    assert granted.deletions(name)


def test_a_namesake_that_was_created_later_lives(granted: Granted, namespace: Namespace) -> None:
    """Its name is that of a pod of a grant that ended, and it has a device of one in force."""
    granted.begin(PLUGIN, policy__pod_reaper__first_after_s="20")
    granted.grant("alloc-6", granted.names[0])
    granted.until_allocatable(1)
    namespace.create(pod("p"))
    namespace.until_running("p")
    granted.grant("alloc-7", granted.names[1])
    granted.until_allocatable(2)
    granted.revoke("alloc-6")
    until("it is seen to hold on", lambda: granted.lines("pod-overstays"))

    namespace.delete_pods("p")
    namespace.create(pod("p"))

    namespace.until_running("p")
    granted.until_released("alloc-6")
    assert seen(namespace, "p") == ([granted.node_of(granted.names[1])], "alloc-7")
    assert granted.deletions("p") == []


@pytest.mark.parametrize("who", ["agent", "kubelet", "API server"])
@pytest.mark.parametrize("when", ["granted", "ended", "reaping"])
def test_what_is_killed_in_the_middle_changes_nothing(
    granted: Granted, namespace: Namespace, gpu: str, who: str, when: str
) -> None:
    granted.begin(PLUGIN)
    allocation = f"alloc-{who}-{when}".lower().replace(" ", "-")
    granted.grant(allocation, gpu)
    if when == "granted":
        granted.kill(who)
    granted.until_allocatable(1)
    namespace.create(pod("p", script=OPEN if when == "reaping" else pods.WAIT))
    namespace.until_running("p")
    assert seen(namespace, "p")[1] == allocation

    granted.revoke(allocation)
    if when == "ended":
        granted.kill(who)
    if when == "reaping":
        until("reaped", lambda: granted.lines("pod-reaped"))
        granted.kill(who)

    released = granted.until_released(allocation)
    assert released >= granted.deletions("p")[0].at
    namespace.until_gone("p")
    granted.until_allocatable(0)


def test_a_grant_that_ended_while_the_agent_was_down_is_released_by_the_next_one(
    granted: Granted, namespace: Namespace, gpu: str
) -> None:
    granted.begin(PLUGIN)
    granted.grant("alloc-8", gpu)
    granted.until_allocatable(1)
    namespace.create(pod("p"))
    namespace.until_running("p")
    granted.agent.kill()
    granted.revoke("alloc-8")
    granted.agent.start()

    granted.until_released("alloc-8")

    namespace.until_gone("p")
    assert [json.dumps(one.grace) for one in granted.deletions("p")] == ["10"]
