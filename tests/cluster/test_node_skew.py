"""A new control plane over a kubelet three releases older, as while a cluster is upgraded."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from cluster import pods
from cluster.node import Cluster, own_directory
from cluster.programs import at_hand, release, releases
from cluster.skipping import cannot, strict
from cluster.waiting import until
from cluster.witness import Namespace
from cluster.world import ADAPTER, FIRST, WHOLE, World

OLD = releases()[0]
TTY = ("ls", "-l", "/dev/ttyUSB0")


@pytest.fixture(scope="module")
def session_world(session_world: World) -> Iterator[World]:
    """This run's control plane, with the oldest kubelet that we support."""
    wanted = release(os.environ.get("KUBERNETES", ""))
    if wanted.version == OLD:
        pytest.skip("this run's own kubelet is the oldest")
    if not (strict() or at_hand(OLD)):
        cannot(f"Kubernetes {OLD} is not built: PYTHONPATH=tests python -m cluster.programs {OLD}")
    assert session_world.cluster.parts()["kube-apiserver"]
    with (
        own_directory() as state,
        Cluster.up(state, wanted, kubelet=release(OLD)) as cluster,
    ):
        made = World(cluster)
        yield made
        made.close()


def adapter_pod(namespace: Namespace) -> None:
    namespace.create(pods.claim("adapter", adapter="zigbee-adapter"))
    namespace.create(pods.pod("p", {"adapter": "adapter"}))
    namespace.until_running("p")


def test_the_kubelet_is_older_than_the_control_plane(world: World) -> None:
    node = world.witness.get("Node", "n0")

    assert node is not None
    assert node["status"]["nodeInfo"]["kubeletVersion"] == f"v{OLD}"
    assert world.version > (1, 34)


def test_a_claim_lives_through_restarts_of_agent_and_kubelet(
    world: World, namespace: Namespace
) -> None:
    adapter_pod(namespace)
    files = world.cdi_files()

    world.agent.kill()
    world.agent.start()
    world.until_registered()
    world.cluster.restart("n0-kubelet")  # wipes the slices
    world.until_published(WHOLE)
    world.until_registered()
    world.cluster.crash("n0-kubelet")

    namespace.until_running("p")
    assert "188,   0" in until("exec", lambda: said(namespace))
    assert world.cdi_files() == files != []
    namespace.delete_pods("p")
    assert world.holds() == {}
    assert world.cdi_files() == []


def test_two_pods_share_a_device_by_what_the_server_keeps_and_the_kubelet_does_not_know(
    world: World, namespace: Namespace
) -> None:
    """Two claims of one device differ by a share id, which this kubelet's API has no field for."""
    if not world.modern:
        pytest.skip("this server drops allowMultipleAllocations")
    world.machine.unplug_card()
    until("one card", lambda: FIRST in world.published() and len(world.published()) < len(WHOLE))
    for name in ("one", "two"):
        namespace.create(pods.claim(name, gpu="gpu-render"))
        namespace.create(pods.pod(name, {"gpu": name}))

    namespace.until_running("one", "two")

    seen = [namespace.run(name, "ls", "/dev/dri").split() for name in ("one", "two")]
    assert seen == [["renderD128"]] * 2
    namespace.delete_pods("one")
    assert namespace.run("two", "ls", "/dev/dri").split() == ["renderD128"]
    assert list(world.holds()) == [FIRST]


def test_an_unplugged_device_is_tainted_by_the_server_and_the_pod_keeps_what_it_has(
    world: World, namespace: Namespace
) -> None:
    if not world.modern:
        pytest.skip("this server drops taints")
    adapter_pod(namespace)

    world.machine.unplug_adapter()
    world.until_tainted(ADAPTER)
    namespace.until_running("p")
    namespace.delete_pods("p")

    world.until_published(WHOLE - {ADAPTER})


def test_a_pod_that_came_while_the_agent_was_away_starts_when_it_is_back(
    world: World, namespace: Namespace
) -> None:
    """A kubelet before 1.36 tries a registration once for each socket."""
    world.agent.kill()
    world.cluster.restart("n0-kubelet")
    namespace.create(pods.claim("gpu", gpu="gpu-render"))
    namespace.create(pods.pod("p", {"gpu": "gpu"}))
    world.agent.start()

    namespace.until_running("p")


def said(namespace: Namespace) -> str:
    try:
        return namespace.run("p", *TTY)
    except Exception:  # noqa: BLE001 - the kubelet is not back yet
        return ""
