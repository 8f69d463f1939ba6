"""What the Node object says of this machine: labels, conditions, and whether its taints drift.

Everything is said through ``nodes/status`` by one server-side apply, under a field manager of its
own: the server remembers what is ours, so that what is not wanted any more is removed, and what
somebody else has set never is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardpoint import Event, Node, hookimpl
from hardpoint.policies.node_status.events import Happenings
from hardpoint.policies.node_status.settings import NodeStatusSettings

if TYPE_CHECKING:
    from hardpoint.agent import Agent


class NodeStatus:
    """Keeps the Node object in step."""

    Settings = NodeStatusSettings

    def __init__(self, node: Node, settings: NodeStatusSettings) -> None:
        self.node, self.settings = node, settings
        self.happened = Happenings()

    @hookimpl
    async def observe(self, event: Event) -> None:
        """Keep what is to be told of the Node."""
        if self.settings.events:
            self.happened.observe(event)

    @hookimpl
    async def serve_policy(self, agent: Agent) -> None:
        """Keep it in step for the life of the agent; of two agents the one that writes does."""
        from hardpoint.policies.node_status.keeping import Keeping, Pace

        await agent.until_writing()
        async with agent.connect() as kube:
            await Keeping(agent, self.settings, kube, Pace(), self.happened).run()
