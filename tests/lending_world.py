"""A ledger, and policies that can be asked: what grants and releases need of an agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from hardpoint._core.ledger.ledger import Ledger
from hardpoint._core.plugins.discovery import Plugin, Plugins
from hardpoint._core.plugins.faults import FaultBoard
from hardpoint._core.plugins.relay import Relay
from hardpoint.node import Node


@asynccontextmanager
async def lending(root: Path, *policies: type) -> AsyncIterator[tuple[Ledger, Relay]]:
    """Start policies, called ``p0``, ``p1`` … in this order."""
    ledger, plugins = Ledger(root / "state"), Plugins()
    for number, policy in enumerate(policies):
        plugin = Plugin("policy", f"p{number}", loaded=policy)
        plugins.all.append(plugin)
        plugins.start(plugin, Node(name="node-1"), {})
    try:
        async with Relay(plugins, FaultBoard()) as relay:
            yield ledger, relay
    finally:
        ledger.close()
