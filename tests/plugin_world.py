"""A kubelet, an agent, and the device plugin frontend between them, for its tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from plugin_kubelet import PluginKubelet

from hardpoint.model import Device
from hardpoint.testing.agent import FakeAgent
from hardpoint_deviceplugin.serving import Serving
from hardpoint_deviceplugin.settings import DevicePluginSettings

RADIO = "hardpoint.dev/radio"


def radio(name: str, **facts: Any) -> Device:
    return Device(name=name, kind="radio", driver="radios", **facts)


class World:
    """A kubelet, an agent, and the frontend between them."""

    def __init__(self, root: Path, kubelet: PluginKubelet) -> None:
        self.root, self.kubelet = root, kubelet
        self.agent = FakeAgent(root)

    @asynccontextmanager
    async def serving(
        self, *, agent: FakeAgent | None = None, wait: bool = True, **settings: Any
    ) -> AsyncIterator[anyio.Event]:
        """Serve until the block ends; begins once the frontend is ready."""
        ready = anyio.Event()
        times = {
            name: settings.pop(name) for name in ("linger", "listens_within") if name in settings
        }
        checked = DevicePluginSettings.model_validate(settings)
        async with anyio.create_task_group() as tasks:
            serving = Serving(agent or self.agent, checked, ready.set, **times)
            tasks.start_soon(serving.run)
            if wait:
                with anyio.fail_after(10):
                    await ready.wait()
            yield ready
            tasks.cancel_scope.cancel()
