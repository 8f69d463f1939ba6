"""The policy of the Node's labels and conditions keeps the contract of policies."""

from __future__ import annotations

from types import MappingProxyType

from hardpoint.policies.node_status import NodeStatus
from hardpoint.testing import PolicyContract
from hardpoint.testing.policy_contract import PolicyNode


class TestNodeStatus(PolicyContract):
    plugin = NodeStatus
    settings = MappingProxyType({"site": "site-1"})
    reads = False

    async def until_served(self, node: PolicyNode) -> None:
        def labelled() -> bool:
            (found,) = (one["metadata"] for one in node.server.items("nodes"))
            return "hardpoint.dev/site" in found.get("labels", {})

        await node.until(labelled)
