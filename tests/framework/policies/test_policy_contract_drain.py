"""The policy that hands the node back keeps the contract of policies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hardpoint.policies.drain import Drain
from hardpoint.testing import PolicyContract
from hardpoint.testing.policy_contract import PolicyNode


class TestDrainOfANodeInService(PolicyContract):
    """Nothing asks for a drain, and there is nothing to do."""

    plugin = Drain
    reads = writes_api = False

    async def until_served(self, node: PolicyNode) -> None:
        await node.until(lambda: node.server.requests)
        assert node.agent.withdrawn == ""


class TestDrain(PolicyContract):
    plugin = Drain
    reads = False

    def configure(self, root: Path) -> Mapping[str, Any]:
        return {"request_file": str(root / "drain")}

    async def arrange(self, node: PolicyNode) -> None:
        (node.root / "drain").write_text("")
        node.add_pod("train")

    async def until_served(self, node: PolicyNode) -> None:
        def drained() -> bool:
            (found,) = node.server.items("nodes")
            return found["spec"].get("unschedulable") is True and not node.pods()

        await node.until(drained)
        assert node.agent.withdrawn
