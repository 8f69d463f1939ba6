from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from hardpoint._core.plugins.discovery import Plugin, Plugins
from hardpoint._core.plugins.faults import FaultBoard
from hardpoint._core.plugins.relay import Relay
from hardpoint.node import Node

RelayOf = Callable[..., Any]


def plugins_of(role: str = "driver", **classes: Any) -> Plugins:
    plugins = Plugins()
    for name, made in classes.items():
        plugin = Plugin(role, name, loaded=made)
        plugins.all.append(plugin)
        plugins.start(plugin, Node(name="n"), {})
        assert plugin.state == "running", plugin.reason
    return plugins


@pytest.fixture
async def relay_of() -> AsyncIterator[RelayOf]:
    async with AsyncExitStack() as stack:

        async def make(role: str = "driver", **classes: Any) -> Relay:
            relay = Relay(plugins_of(role, **classes), FaultBoard())
            return await stack.enter_async_context(relay)

        yield make
