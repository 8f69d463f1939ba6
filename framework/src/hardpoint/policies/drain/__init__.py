"""Hands the node back when it is asked to, and takes it into service again when it is not.

For the kubelet nothing is over: the machine stays a cordoned member of its cluster.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from hardpoint import Node, hookimpl
from hardpoint.errors import KubeUnreachable
from hardpoint.policies.drain.settings import DrainSettings

if TYPE_CHECKING:
    from hardpoint.agent import Agent


class Drain:
    """Drains the node while a file or an annotation of its Node asks for it."""

    Settings = DrainSettings

    def __init__(self, node: Node, settings: DrainSettings) -> None:
        self.node, self.settings = node, settings

    @hookimpl
    async def serve_policy(self, agent: Agent) -> None:
        """Follow the request for the life of the agent; of two agents the one that writes does."""
        from hardpoint.policies.drain.draining import Draining, Pace

        await agent.until_writing()
        async with AsyncExitStack() as exits:
            try:
                kube = await exits.enter_async_context(agent.connect())
            except KubeUnreachable:  # none is named: nothing can be cordoned, the rest can be done
                kube = None
            await Draining(agent, self.settings, kube, _own_pod(agent), Pace()).run()


def _own_pod(agent: Agent) -> frozenset[str]:
    """Return the agent's pod: its UID, and its namespace and name."""
    namespace, name = os.environ.get("POD_NAMESPACE", ""), os.environ.get("POD_NAME", "")
    named = {f"{namespace}/{name}"} if namespace and name else set()
    return frozenset({agent.instance} | named) - {""}
