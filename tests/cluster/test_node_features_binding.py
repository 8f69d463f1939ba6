"""Binding conditions: a pod waits until somebody has said that its device is attached.

Where the server keeps them the scheduler waits, and binds the pod after. Older servers drop them:
the pod is bound at once, and its prepare waits.

No test here leaves a pod that the scheduler waits for: 1.37 frees the device of one that is deleted
up to 5 s later, when it looks again, and does not wake the pods that could have it then.
"""

from __future__ import annotations

from typing import Any

import pytest
from cluster import pods
from cluster.boards import ATTACHED, FAILED, Boards, which
from cluster.waiting import until
from cluster.witness import Namespace
from cluster.world import World

NOW = "2026-11-30T00:00:00Z"


def pod_with(namespace: Namespace, name: str = "p", request: Any = "acme-remote") -> str:
    """Return the device that a new pod's claim is allocated while it waits."""
    namespace.create(pods.claim(name, board=request))
    namespace.create(pods.pod(name, {"board": name}))
    [device] = until("allocated", lambda: namespace.allocated(name))
    return device


def say(namespace: Namespace, claim: str, condition: str) -> None:
    """Write into a claim's status what a controller has done, or failed to do."""
    status = namespace.claim(claim)["status"]
    [found] = status["allocation"]["devices"]["results"]
    about = {key: found[key] for key in ("driver", "pool", "device")}
    said = {"type": condition, "status": "True", "reason": "Said", "message": "by the cabling"}
    entry = about | {"conditions": [said | {"lastTransitionTime": NOW}]}
    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace.name}/resourceclaims/{claim}/status"
    body = namespace.claim(claim)
    body["status"] = status | {"devices": [entry]}
    namespace.witness.ask("PUT", path, body)


def test_a_pod_waits_until_its_device_is_attached_and_then_has_it(
    boards: Boards, namespace: Namespace
) -> None:
    device = pod_with(namespace)
    assert namespace.pod("p")["status"]["phase"] == "Pending"
    assert boards.holds() == []

    say(namespace, "p", ATTACHED)

    namespace.until_running("p")
    assert namespace.run("p", "ls", "/dev/acme").split() == [device]
    assert boards.held() == [device]

    def conditions() -> set[str]:
        devices = namespace.claim("p")["status"].get("devices") or ()
        return {one["type"] for entry in devices for one in entry["conditions"]}

    until("both have their say", lambda: conditions() == {ATTACHED, "Ready"})
    namespace.delete_pods("p")
    assert boards.holds() == []


@pytest.mark.usefixtures("modern")
def test_while_the_scheduler_waits_nothing_is_bound_and_nothing_held(
    boards: Boards, namespace: Namespace
) -> None:
    device = pod_with(namespace)

    [found] = namespace.claim("p")["status"]["allocation"]["devices"]["results"]
    assert (found["bindingConditions"], found["bindingFailureConditions"]) == ([ATTACHED], [FAILED])
    assert not namespace.pod("p")["spec"].get("nodeName")
    other = pod_with(namespace, "q")
    assert {device, other} == {"remote-0", "remote-1"}
    assert boards.holds() == []
    for name in ("p", "q"):
        say(namespace, name, ATTACHED)
    namespace.until_running("p", "q")


@pytest.mark.usefixtures("modern")
def test_a_pod_whose_device_fails_to_attach_is_given_another_one(
    boards: Boards, namespace: Namespace
) -> None:
    device = pod_with(namespace)
    boards.set(device, taint="no-path")  # else the first that fits is the same again
    boards.until_tainted(device, "acme.example.com/no-path")

    say(namespace, "p", FAILED)

    [other] = {"remote-0", "remote-1"} - {device}
    until("another one", lambda: namespace.allocated("p") == [other])
    say(namespace, "p", ATTACHED)
    namespace.until_running("p")
    assert boards.held() == [other]


def test_where_conditions_are_dropped_the_pod_is_told_what_its_device_waits_for(
    world: World, boards: Boards, namespace: Namespace
) -> None:
    if world.modern:
        pytest.skip("this server keeps binding conditions: KUBERNETES=1.34 does not")
    device = pod_with(namespace, request=which("remote-1", "remote"))

    said = namespace.until_says("p", "FailedPrepareDynamicResources")

    assert f"device {device} is not ready for {namespace.name}/p yet" in said
    assert f"it waits for {ATTACHED} in the claim's status" in said
    assert boards.holds() == []
    say(namespace, "p", FAILED)
    namespace.until_says("p", f"device {device} failed: {FAILED}: by the cabling")
    say(namespace, "p", ATTACHED)
    namespace.until_running("p")
