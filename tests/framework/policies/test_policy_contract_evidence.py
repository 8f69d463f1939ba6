"""The framework's own sources of evidence keep the contract of policies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any

import pytest
from pod_processes import SYSTEMD, Procfs, process

from hardpoint.allocation import device_id
from hardpoint.grants import Release
from hardpoint.kubelet import podresources_v1_pb2 as pb
from hardpoint.kubelet.services import Status
from hardpoint.policies.kubepods_processes import KubepodsProcesses
from hardpoint.policies.pod_resources import PodResourcesUsers
from hardpoint.policies.prepared_claims import PreparedClaims
from hardpoint.testing import Pod, PolicyContract
from hardpoint.testing.policy_contract import PolicyNode

OTHERS = Pod(name="coredns", namespace="kube-system")
"""A pod of the API server's: the kubelet knows its pods."""
_UNREADABLE = "4242"


class TestPodResources(PolicyContract):
    plugin = PodResourcesUsers
    settings = MappingProxyType({"settle": 0, "worker_files": ()})
    writes_api = False

    async def arrange(self, node: PolicyNode) -> None:
        await node.kubelet.admit(OTHERS)

    async def make_unreadable(self, node: PolicyNode) -> None:
        async def fails(answer: pb.ListPodResourcesResponse) -> pb.ListPodResourcesResponse:
            raise Status("UNAVAILABLE", "not now")

        node.kubelet.answer_pods(fails)

    async def make_readable(self, node: PolicyNode) -> None:
        node.kubelet.answer_pods(None)

    async def use(self, node: PolicyNode, release: Release) -> None:
        (name,) = release.names
        held = pb.ContainerDevices(
            resource_name="contract.test/gpu", device_ids=[device_id(name, release.allocation)]
        )
        container = pb.ContainerResources(name="main", devices=[held])
        pod = pb.PodResources(name="train", namespace="media", containers=[container])

        async def more(answer: pb.ListPodResourcesResponse) -> pb.ListPodResourcesResponse:
            answer.pod_resources.append(pod)
            return answer

        node.kubelet.answer_pods(more)

    async def until_served(self, node: PolicyNode) -> None:
        await node.kubelet.until(lambda: node.kubelet.pods.lists > 0)


class TestPodResourcesWithoutASocket(TestPodResources):
    async def make_unreadable(self, node: PolicyNode) -> None:
        await node.kubelet.stop(killed=True)

    async def make_readable(self, node: PolicyNode) -> None:
        await node.kubelet.start()


class TestPreparedClaims(PolicyContract):
    plugin = PreparedClaims
    reads = False

    async def use(self, node: PolicyNode, release: Release) -> None:
        (device,) = release.devices
        left, claim = node.agent.offer.devices, node.claim(device)

        async def read() -> Any:
            return claim

        node.agent.show(*node.offered)
        await node.agent.prepare(claim.key, read)
        node.agent.show(*left)


class TestKubepodsProcesses(PolicyContract):
    plugin = KubepodsProcesses

    @pytest.fixture(autouse=True)
    def _ends_processes(self) -> Iterator[None]:
        with ExitStack() as self.started:
            yield

    async def arrange(self, node: PolicyNode) -> None:
        Procfs(node.machine.proc)

    async def make_unreadable(self, node: PolicyNode) -> None:
        at = node.machine.proc / _UNREADABLE
        (at / "task").mkdir(parents=True)
        (at / "cgroup").write_text(SYSTEMD)
        (at / "stat").write_text(f"{_UNREADABLE} (train) S 1")
        (at / "fd").write_text("no directory")

    async def make_readable(self, node: PolicyNode) -> None:
        (node.machine.proc / _UNREADABLE).rename(node.root / "ended")

    async def use(self, node: PolicyNode, release: Release) -> None:
        pid = self.started.enter_context(process("opens", "/dev/full"))
        Procfs(node.machine.proc).show(pid)
