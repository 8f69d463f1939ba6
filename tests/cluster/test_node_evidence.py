"""Who has a device, by a real kubelet, its checkpoint, and the processes of real containers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
import pytest
from cluster import pods
from cluster.plugged import BOARD, BOARDS, NODE, Plugged, pod, wants
from cluster.waiting import until
from cluster.witness import Namespace

from hardpoint.agent import Paths
from hardpoint.grants import Evidence, Release
from hardpoint.kubelet.podsource import PodSource
from hardpoint.model import Device, DeviceNode
from hardpoint.node import Node
from hardpoint.policies.exclusive_source import ExclusiveSource, ExclusiveSourceSettings
from hardpoint.policies.kubepods_processes import KubepodsProcesses, KubepodsProcessesSettings
from hardpoint.policies.pod_resources import PodResourcesSettings, PodResourcesUsers
from hardpoint.testing import FakeAgent

FREE = 120.0
"""Seconds: the checkpoint is written anew when the plugin says its list again."""
NULL = DeviceNode(path="/dev/null", major=1, minor=3)
"""A device that every process of a container has open."""


class Asked:
    """The policies, asked of the node as its agent would ask them."""

    def __init__(self, plugged: Plugged, work: Path) -> None:
        self.paths = plugged.cluster.paths(NODE)
        node = Node(
            name=NODE, kubelet=self.paths["kubelet"], device_plugins=self.paths["device_plugins"]
        )
        self.agent = FakeAgent(work, node=node)
        self.agent.paths = Paths(
            state=work,
            cdi=self.paths["cdi"],
            kubelet=self.paths["kubelet"],
            device_plugins=self.paths["device_plugins"],
        )
        self.kubelet = PodResourcesUsers(node, PodResourcesSettings(settle=0, worker_files=()))
        self.processes = KubepodsProcesses(node, KubepodsProcessesSettings())

    def kubelets(self, board: str) -> Evidence:
        ask = partial(self.kubelet.find_users, release(board), (), self.agent)
        return anyio.run(ask)

    def processes_of(self, board: str, node: DeviceNode) -> Evidence:
        ask = partial(self.processes.find_users, release(board, node), self.agent)
        return anyio.run(ask)


@pytest.fixture
def asked(plugged: Plugged, tmp_path: Path) -> Asked:
    return Asked(plugged, tmp_path)


def release(board: str, *nodes: DeviceNode) -> Release:
    device = Device(name=board, kind="acme.board")
    return Release(id="r", allocation="a", source="s", devices=(device,), since=0, nodes=nodes)


@pytest.mark.timeout(400)
def test_an_init_containers_and_a_containers_devices_are_in_use_until_they_end(
    asked: Asked, namespace: Namespace
) -> None:
    first = wants(pods.container("load", script="echo $ACME_BOARD; exec sleep 1000"))
    namespace.create(pods.pod("i", {}, pods.container(), initContainers=[first]))
    namespace.create(pod("p"))
    until("it loads", lambda: loads(namespace, "i"))
    (loading,) = until("its board", lambda: namespace.log("i", "load").split())
    namespace.until_running("p")
    free = [name for name in BOARDS if not asked.kubelets(name).users]
    taken = sorted({*BOARDS} - {*free, loading})

    assert len(taken) == 1
    uid = namespace.pod("i")["metadata"]["uid"]
    assert uid in asked.kubelets(loading).users[0]
    assert asked.kubelets(taken[0]).users == (f"pod {namespace.name}/p",)

    namespace.delete_pods("i", "p")
    for board in (loading, taken[0]):
        until("free", partial(_is_free, asked, board), FREE)


def test_a_pods_processes_are_known_by_their_cgroup(asked: Asked, namespace: Namespace) -> None:
    namespace.create(pod("p"))
    namespace.until_running("p")
    uid = namespace.pod("p")["metadata"]["uid"]

    assert asked.processes.not_applicable == ""
    assert any(uid in user for user in asked.processes_of(BOARDS[0], NULL).users)

    namespace.delete_pods("p")
    until(
        "its processes are gone",
        lambda: not any(uid in user for user in asked.processes_of(BOARDS[0], NULL).users),
        FREE,
    )


def test_what_may_be_given_out_is_what_the_plugin_lists(asked: Asked, plugged: Plugged) -> None:
    source = PodSource(asked.paths["kubelet"], asked.paths["device_plugins"])
    found = anyio.run(source.allocatable)

    assert {id_ for held in found if held.resource == BOARD for id_ in held.ids} == {*BOARDS}


def test_a_real_plugins_resource_is_a_rival_to_who_names_it(asked: Asked) -> None:
    guard = {"kinds": ["gpu"], "resources": [BOARD]}
    settings = ExclusiveSourceSettings.model_validate({"guards": [guard]})
    policy = ExclusiveSource(asked.agent.node, settings)
    asked.agent.show(Device(name="gpu0", kind="gpu"))

    vetoes = anyio.run(policy.veto_devices, asked.agent.offer, asked.agent)

    assert [BOARD in veto.reason for veto in vetoes] == [True]


def loads(namespace: Namespace, name: str) -> bool:
    """Say whether a pod's init container runs."""
    seen = namespace.pod(name)["status"].get("initContainerStatuses") or ()
    return any("running" in (one.get("state") or {}) for one in seen)


def _is_free(asked: Asked, board: str) -> bool:
    found = asked.kubelets(board)
    return not (found.users or found.why)
