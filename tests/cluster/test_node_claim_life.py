"""A claim's life on a real node, with every program killed and restarted at its steps."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cluster import pods
from cluster.waiting import until
from cluster.witness import Namespace
from cluster.world import ADAPTER, LIKEN, WHOLE, World

TTY = ("ls", "-l", "/dev/ttyUSB0")
HERE = "188,   0"
GPU = {"gpu": "gpu"}


def adapter_app(namespace: Namespace) -> str:
    """A Recreate Deployment on a standalone claim; return its pod once it has the adapter."""
    namespace.create(pods.claim("adapter", adapter="zigbee-adapter"))
    namespace.create(pods.deployment("app", {"adapter": "adapter"}, type="Recreate"))
    [pod] = namespace.until_app_runs("app")
    return pod


def replace_pod(namespace: Namespace, old: str) -> str:
    """Roll the Deployment out again; return its new pod once it runs."""
    again = {"metadata": {"annotations": {"after": old}}}
    namespace.witness.patch("Deployment", "app", {"spec": {"template": again}}, namespace.name)
    namespace.until_gone(old)
    [new] = namespace.until_app_runs("app")
    return new


def contents(world: World) -> dict[str, str]:
    directory = world.cluster.paths()["cdi"]
    return {name: (directory / name).read_text() for name in world.cdi_files()}


def test_a_claim_survives_restarts_and_serves_the_next_pod_under_the_same_uid(
    world: World, namespace: Namespace
) -> None:
    first = adapter_app(namespace)
    uid = namespace.claim("adapter")["metadata"]["uid"]
    files = contents(world)
    assert list(files) == [f"{LIKEN}-{uid}.json"]

    world.agent.kill()
    world.agent.start()
    world.until_registered()
    world.cluster.restart("n0-kubelet")
    world.until_published(WHOLE)

    assert contents(world) == files
    assert HERE in until("exec", lambda: said(namespace, first))
    second = replace_pod(namespace, first)
    assert HERE in namespace.run(second, *TTY)
    assert namespace.claim("adapter")["metadata"]["uid"] == uid
    assert contents(world) == files
    assert world.holds() == {ADAPTER: "held"}


def test_a_claim_that_ended_leaves_neither_file_nor_hold(
    world: World, namespace: Namespace
) -> None:
    namespace.create(pods.claim("adapter", adapter="zigbee-adapter"))
    namespace.create(pods.pod("p", {"adapter": "adapter"}))
    namespace.until_running("p")

    namespace.delete_pods("p")

    assert world.cdi_files() == []
    assert world.holds() == {}
    assert namespace.allocated("adapter") == []


@pytest.mark.parametrize(
    ("how", "part"),
    [
        ("restart", "n0-kubelet"),
        ("crash", "n0-kubelet"),
        ("restart", "n0-containerd"),
        ("crash", "n0-containerd"),
        ("crash", "kube-apiserver"),
    ],
)
@pytest.mark.field_case("A02")
def test_a_pod_keeps_its_device_and_ends_cleanly_when_a_program_restarts(
    world: World, namespace: Namespace, how: str, part: str
) -> None:
    namespace.create(pods.claim("adapter", adapter="zigbee-adapter"))
    namespace.create(pods.pod("p", {"adapter": "adapter"}))
    namespace.until_running("p")

    getattr(world.cluster, how)(part)
    world.until_server_is_ready()

    namespace.until_running("p")
    assert HERE in until("exec", lambda: said(namespace, "p"))
    namespace.delete_pods("p")
    assert world.cdi_files() == []
    assert world.holds() == {}


@pytest.mark.field_case("B15")
def test_a_pod_ends_when_the_agent_is_back_not_before(world: World, namespace: Namespace) -> None:
    pod = adapter_app(namespace)
    world.agent.kill()

    namespace.delete("Deployment", "app")
    until("containers ended", lambda: ended(namespace, pod))
    assert namespace.witness.get("Pod", pod, namespace.name) is not None
    world.agent.start()

    namespace.until_gone(pod)
    assert world.cdi_files() == []


@pytest.mark.field_case("A01")
def test_a_pod_that_came_while_the_agent_was_away_starts_when_it_is_back(
    world: World, namespace: Namespace
) -> None:
    world.agent.kill()
    namespace.create(pods.claim("gpu", gpu="gpu-render"))
    namespace.create(pods.pod("p", GPU))

    namespace.until_says("p", "FailedPrepareDynamicResources")
    world.agent.start()

    namespace.until_running("p")


def test_a_container_that_restarts_finds_its_device_again(
    world: World, namespace: Namespace
) -> None:
    pod = adapter_app(namespace)
    world.agent.kill()  # CDI files are enough

    namespace.run(pod, "kill", "1")

    until("a second life", lambda: restarts(namespace, pod))
    namespace.until_running(pod)
    assert HERE in namespace.run(pod, *TTY)


@pytest.mark.field_case("A01", "C06")
def test_after_a_reboot_every_pod_has_its_device_again(world: World, namespace: Namespace) -> None:
    pod = adapter_app(namespace)
    files = contents(world)

    world.reboot()
    assert world.cdi_files() == []
    world.agent.start()

    until("a second life", lambda: restarts(namespace, pod))
    namespace.until_running(pod)
    assert HERE in namespace.run(pod, *TTY)
    assert contents(world) == files
    assert world.holds() == {ADAPTER: "held"}


def test_claims_end_while_the_api_server_is_away(world: World, namespace: Namespace) -> None:
    """A prepare asks it for the claim, an unprepare asks nobody: pods must be able to end."""
    pod = adapter_app(namespace)
    world.cluster.kill("kube-apiserver")

    world.machine.unplug_card()  # something to publish meanwhile
    world.agent.kill()
    world.agent.start()
    until("the hold is known", lambda: world.holds() == {ADAPTER: "held"})
    assert len(world.cdi_files()) == 1
    world.cluster.start("kube-apiserver")
    world.until_server_is_ready()

    world.until_published({name for name in WHOLE if "03-00" not in name})
    namespace.delete("Deployment", "app")
    namespace.until_gone(pod)
    assert world.holds() == {}
    until("no faults", lambda: world.agent.says("status")["faults"] == [])
    assert "too old resource version" not in world.agent.log.read_text()


# -- slices that others touch ---------------------------------------------------------------------


@pytest.mark.field_case("B03")
def test_a_slice_that_somebody_deletes_is_there_again(world: World) -> None:
    [old] = world.witness.slices(LIKEN)

    world.witness.delete("ResourceSlice", old["metadata"]["name"])

    until("a new one", lambda: uids(world) not in ([], [old["metadata"]["uid"]]))
    assert set(world.published()) == WHOLE


def test_a_slice_that_somebody_edits_is_as_it_was(world: World) -> None:
    [old] = world.witness.slices(LIKEN)
    spec: dict[str, Any] = old["spec"] | {"devices": old["spec"]["devices"][:2]}

    world.witness.patch("ResourceSlice", old["metadata"]["name"], {"spec": spec})

    world.until_published(WHOLE)


def test_a_stale_slice_of_a_second_name_is_removed(world: World) -> None:
    [own] = world.witness.slices(LIKEN)
    spec = json.loads(json.dumps(own["spec"]))
    copy = {"apiVersion": own["apiVersion"], "kind": own["kind"], "spec": spec}

    world.witness.create(copy | {"metadata": {"name": "somebody-elses"}})

    until("it is gone", lambda: world.witness.get("ResourceSlice", "somebody-elses") is None)
    assert set(world.published()) == WHOLE


# -- small looks ----------------------------------------------------------------------------------


def said(namespace: Namespace, pod: str) -> str:
    try:
        return namespace.run(pod, *TTY)
    except Exception:  # noqa: BLE001 - the kubelet is not back yet
        return ""


def ended(namespace: Namespace, pod: str) -> bool:
    statuses = namespace.pod(pod)["status"].get("containerStatuses") or ()
    return bool(statuses) and all("terminated" in one["state"] for one in statuses)


def restarts(namespace: Namespace, pod: str) -> int:
    statuses = namespace.pod(pod)["status"].get("containerStatuses") or ()
    return sum(int(one["restartCount"]) for one in statuses)


def uids(world: World) -> list[str]:
    return [one["metadata"]["uid"] for one in world.witness.slices(LIKEN)]
