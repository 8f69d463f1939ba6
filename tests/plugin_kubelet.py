"""A kubelet's device plugin side, as much of it as the frontend's own tests look at."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from hardpoint.errors import CallFailed
from hardpoint.kubelet import deviceplugin_v1beta1_pb2 as pb
from hardpoint.kubelet.client import Client
from hardpoint.kubelet.server import SocketServer
from hardpoint.kubelet.services import Status, serve, service_of

PLUGIN = service_of(pb, "DevicePlugin")
REGISTRATION = service_of(pb, "Registration")


@dataclass(eq=False)
class Known:
    """A resource that was registered."""

    request: pb.RegisterRequest
    client: Client
    options: Any = None
    lists: list[dict[str, str]] = field(default_factory=list)
    """Ids and health, each time that the list was sent."""
    devices: list[Any] = field(default_factory=list)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: bool = False
    """True once the plugin ended its stream."""


class PluginKubelet:
    """Registers plugins, listens to them, and asks them, on real sockets in ``directory``."""

    def __init__(self, directory: Path, tasks: anyio.abc.TaskGroup) -> None:
        self.directory, self._tasks = directory, tasks
        self.known: dict[str, Known] = {}
        self.registered: list[str] = []
        """Names, each time that one came."""
        self.refuse = ""
        """What registrations are refused with, while set."""
        self.asked = 0
        """How many registrations came, answered or not."""
        self.gate = anyio.Event()
        """Registrations wait for it; open at first."""
        self.gate.set()
        self.deaf = False
        """True: registered plugins are not listened to."""
        self._server: SocketServer | None = None
        self._woken = anyio.Event()

    async def start(self, *, wipe: bool = True) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        for path in self.directory.iterdir() if wipe else ():
            path.unlink()
        handlers = [serve(REGISTRATION, {"Register": self._register})]
        self._server = SocketServer(self.directory / "kubelet.sock", handlers, grace=0)
        await self._server.start()

    async def stop(self) -> None:
        for name in list(self.known):
            self._drop(name)
        if self._server is not None:
            await self._server.close()
        self._wake()

    async def restart(self, *, wipe: bool = True) -> None:
        await self.stop()
        await self.start(wipe=wipe)

    def hang_up(self, resource: str) -> None:
        """End a resource's stream, its sockets untouched."""
        self.known[resource].scope.cancel()

    async def until(self, condition: Callable[[], object], within: float = 10.0) -> None:
        with anyio.fail_after(within):
            while not condition():
                self._woken = anyio.Event()
                with anyio.move_on_after(0.02):
                    await self._woken.wait()

    async def until_listed(self, resource: str, *ids: str) -> Known:
        await self.until(lambda: sorted(self.listed(resource)) == sorted(ids))
        return self.known[resource]

    def listed(self, resource: str) -> dict[str, str]:
        known = self.known.get(resource)
        return known.lists[-1] if known and known.lists else {}

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
        return await self.known[resource].client.call(PLUGIN, method, request, timeout_s=10)

    # -- registration -----------------------------------------------------------------------------

    async def _register(self, request: pb.RegisterRequest) -> pb.Empty:
        self.asked += 1
        await self.gate.wait()
        if self.refuse:
            raise Status("INVALID_ARGUMENT", self.refuse)
        known = Known(request, Client(self.directory / request.endpoint))
        known.options = await known.client.call(
            PLUGIN, "GetDevicePluginOptions", pb.Empty(), timeout_s=10
        )
        self._drop(request.resource_name)
        self.known[request.resource_name] = known
        self.registered.append(request.resource_name)
        if not self.deaf:
            self._tasks.start_soon(self._listen, known)
        self._wake()
        return pb.Empty()

    async def _listen(self, known: Known) -> None:
        try:
            with known.scope:
                async for one in known.client.stream(PLUGIN, "ListAndWatch", pb.Empty()):
                    known.devices = list(one.devices)
                    known.lists.append({d.ID: d.health for d in one.devices})
                    self._wake()
                known.ended = True
        except CallFailed:
            known.ended = True
        self._wake()

    def _drop(self, resource: str) -> None:
        known = self.known.pop(resource, None)
        if known is not None:
            known.scope.cancel()
            self._tasks.start_soon(known.client.close)

    def _wake(self) -> None:
        self._woken.set()


@asynccontextmanager
async def plugin_kubelet(directory: Path) -> AsyncIterator[PluginKubelet]:
    async with anyio.create_task_group() as tasks:
        kubelet = PluginKubelet(directory, tasks)
        await kubelet.start()
        try:
            yield kubelet
        finally:
            with anyio.CancelScope(shield=True):
                await kubelet.stop()
            tasks.cancel_scope.cancel()
