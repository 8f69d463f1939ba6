"""The framework's reaper keeps the contract of policies."""

from __future__ import annotations

from types import MappingProxyType

from hardpoint.policies.pod_reaper import NOT_ADMITTED, PodReaper
from hardpoint.testing import PolicyContract
from hardpoint.testing.policy_contract import PolicyNode

_OWNER = {
    "apiVersion": "apps/v1",
    "kind": "ReplicaSet",
    "name": "train",
    "uid": "6b1d3a52-0000-4000-8000-000000000001",
    "controller": True,
}


class TestPodReaper(PolicyContract):
    plugin = PodReaper
    settings = MappingProxyType({"clean_failed_admission": True, "failed_after_s": 0})
    reads = False

    async def arrange(self, node: PolicyNode) -> None:
        container = {
            "name": "main",
            "image": "registry.example/train",
            "resources": {"limits": {"contract.test/gpu": "1"}},
        }
        node.add_pod(
            "refused",
            metadata={"ownerReferences": [_OWNER]},
            spec={"nodeName": node.agent.node.name, "containers": [container]},
            status={"phase": "Failed", "reason": NOT_ADMITTED},
        )

    async def until_served(self, node: PolicyNode) -> None:
        await node.until(lambda: "refused" not in _names(node))


class TestPodReaperDryRun(PolicyContract):
    plugin = PodReaper
    settings = MappingProxyType({"dry_run": True})
    reads = writes_api = False

    async def until_served(self, node: PolicyNode) -> None:
        assert not node.server.writes()


def _names(node: PolicyNode) -> list[str]:
    return [pod["metadata"]["name"] for pod in node.pods().values()]
