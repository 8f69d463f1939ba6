"""The policy that hands a node back keeps the contract of policies."""

from __future__ import annotations

from hardpoint.policies.drain import Drain
from hardpoint.testing import PolicyContract
from hardpoint.testing.policy_contract import PolicyNode


class TestDrain(PolicyContract):
    plugin = Drain
    reads = False

    async def arrange(self, node: PolicyNode) -> None:
        node.agent.paths.state.mkdir(parents=True, exist_ok=True)
        (node.agent.paths.state / "drain").touch()

    async def until_served(self, node: PolicyNode) -> None:
        def cordoned() -> bool:
            (found,) = node.server.items("nodes")
            return bool(found["spec"].get("unschedulable"))

        await node.until(cordoned)
