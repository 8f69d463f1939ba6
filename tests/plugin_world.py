"""A kubelet, an agent, and the device plugin frontend between them, for its tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from hardpoint.kubelet import deviceplugin_v1beta1_pb2 as pb
from hardpoint.model import Device
from hardpoint.testing._kubelet_plugins import PluginInstance
from hardpoint.testing.agent import FakeAgent
from hardpoint.testing.kubelet import FakeKubelet
from hardpoint_deviceplugin.serving import Serving
from hardpoint_deviceplugin.settings import DevicePluginSettings

RADIO = "hardpoint.dev/radio"
_TIMES = ("linger", "listens_within")


def radio(name: str, **facts: Any) -> Device:
    return Device(name=name, kind="radio", driver="radios", **facts)


class World:
    """One node as the frontend's tests see it."""

    def __init__(self, root: Path, kubelet: FakeKubelet) -> None:
        self.root, self.kubelet = root, kubelet
        self.agent = FakeAgent(root)
        self.lists: dict[str, list[dict[str, str]]] = {}
        """Ids and health of each list that came, by resource."""
        self._listed = kubelet.plugins._listed
        kubelet.plugins._listed = self._keep  # type: ignore[method-assign]

    def _keep(self, instance: PluginInstance, message: pb.ListAndWatchResponse) -> None:
        health = {one.ID: one.health for one in message.devices}
        self.lists.setdefault(instance.resource, []).append(health)
        self._listed(instance, message)

    @property
    def directory(self) -> Path:
        return self.kubelet.plugins.directory

    @property
    def sockets(self) -> set[str]:
        return {path.name for path in self.directory.glob("*.sock")}

    @property
    def registered(self) -> list[str]:
        """The resources that were registered, each time that one was."""
        return [one.resource for one in self.kubelet.plugins.registrations if not one.error]

    @asynccontextmanager
    async def serving(
        self, *, agent: FakeAgent | None = None, wait: bool = True, **settings: Any
    ) -> AsyncIterator[anyio.Event]:
        """Serve until the block ends; begins once the frontend is ready."""
        ready = anyio.Event()
        times = {name: settings.pop(name) for name in _TIMES if name in settings}
        checked = DevicePluginSettings.model_validate(settings)
        async with anyio.create_task_group() as tasks:
            serving = Serving(agent or self.agent, checked, ready.set, **times)
            tasks.start_soon(serving.run)
            if wait:
                with anyio.fail_after(10):
                    await ready.wait()
            yield ready
            tasks.cancel_scope.cancel()

    # -- what the kubelet sees --------------------------------------------------------------------

    def health(self, resource: str = RADIO) -> dict[str, str]:
        return {one.id: one.health for one in self.kubelet.listed(resource).values()}

    async def until_health(self, resource: str = RADIO, /, **health: str) -> None:
        wanted = {name.replace("_", "-"): word for name, word in health.items()}
        await self.kubelet.until(lambda: self.health(resource) == wanted)

    async def until_listed(self, resource: str, *ids: str) -> PluginInstance:
        """Wait until exactly these are listed, through a plugin that is registered."""

        def there() -> bool:
            listed = set(self.health(resource)) == set(ids)
            newest = self.kubelet.plugins.newest(resource)
            return listed and newest is not None and newest.lists > 0

        await self.kubelet.until(there)
        newest = self.kubelet.plugins.newest(resource)
        assert newest is not None
        return newest

    async def until_registered(self, times: int) -> None:
        await self.kubelet.until(lambda: len(self.registered) == times)

    def hang_up(self, resource: str) -> None:
        """End a resource's stream, its sockets untouched."""
        newest = self.kubelet.plugins.newest(resource)
        assert newest is not None
        newest.scope.cancel()

    # -- what the kubelet asks --------------------------------------------------------------------

    async def allocate(self, resource: str, *containers: Sequence[str]) -> Any:
        request = pb.AllocateRequest(
            container_requests=[pb.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
        )
        return await self.call(resource, "Allocate", request)

    async def prefer(
        self, resource: str, available: Sequence[str], size: int, must: Sequence[str] = ()
    ) -> list[str]:
        request = pb.PreferredAllocationRequest(
            container_requests=[
                pb.ContainerPreferredAllocationRequest(
                    available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
                )
            ]
        )
        answer = await self.call(resource, "GetPreferredAllocation", request)
        return list(answer.container_responses[0].deviceIDs)

    async def call(self, resource: str, method: str, request: Any) -> Any:
        newest = self.kubelet.plugins.newest(resource)
        assert newest is not None, f"{resource} is not registered"
        return await newest.call(method, request, 10)
