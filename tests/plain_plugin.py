"""A device plugin of a few lines, for tests of the kubelet's side."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from hardpoint.kubelet import deviceplugin_v1beta1_pb2 as pb
from hardpoint.kubelet.client import Client
from hardpoint.kubelet.server import SocketServer
from hardpoint.kubelet.services import Handler, Status, serve, service_of

GPU = "acme.dev/gpu"


class Plugin:
    """A device plugin: serves a list that a test changes, and allocates by name."""

    again = math.inf
    """Seconds after which the list is said again though nothing has changed."""

    def __init__(self, directory: Path, *ids: str, resource: str = GPU, name: str = "") -> None:
        self.directory, self.resource = directory, resource
        self.endpoint = name or f"{resource.replace('/', '-')}.sock"
        self.options = pb.DevicePluginOptions()
        self.devices = [pb.Device(ID=id_, health="Healthy") for id_ in ids]
        self.prefer: list[str] = []
        self.refusal = ""
        self.empty = False
        self.specs = False
        self.asked: list[Any] = []
        self.news = anyio.Event()
        self.hanging_up = anyio.Event()
        handlers: dict[str, Handler] = {
            "GetDevicePluginOptions": self._options,
            "ListAndWatch": self._list,
            "Allocate": self._allocate,
            "GetPreferredAllocation": self._prefer,
            "PreStartContainer": self._pre_start,
        }
        service = service_of(pb, "DevicePlugin")
        self.server = SocketServer(directory / self.endpoint, [serve(service, handlers)], grace=0)

    async def _options(self, request: pb.Empty) -> pb.DevicePluginOptions:
        return self.options

    async def _list(self, request: pb.Empty) -> AsyncIterator[pb.ListAndWatchResponse]:
        hanging_up = self.hanging_up
        while not hanging_up.is_set():
            news = self.news
            yield pb.ListAndWatchResponse(devices=self.devices)
            with anyio.move_on_after(self.again):
                await news.wait()

    async def _allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        self.asked.append(request)
        if self.refusal:
            raise Status("FAILED_PRECONDITION", self.refusal)
        if self.empty:
            return pb.AllocateResponse()
        (container,) = request.container_requests
        names = [pb.CDIDevice(name=f"acme.dev/device={id_}") for id_ in container.devices_ids]
        response = pb.ContainerAllocateResponse(cdi_devices=[] if self.specs else names)
        if self.specs:
            response.devices.add(container_path="/dev/null", host_path="/dev/null", permissions="r")
            response.mounts.add(container_path="/lib/x", host_path="/usr/x", read_only=True)
            response.envs["GPUS"] = ",".join(sorted(container.devices_ids))
        return pb.AllocateResponse(container_responses=[response])

    async def _prefer(self, request: Any) -> pb.PreferredAllocationResponse:
        self.asked.append(request)
        answer = pb.ContainerPreferredAllocationResponse(deviceIDs=self.prefer)
        return pb.PreferredAllocationResponse(container_responses=[answer])

    async def _pre_start(self, request: pb.PreStartContainerRequest) -> Any:
        self.asked.append(request)
        if self.refusal:
            raise Status("INTERNAL", self.refusal)
        return pb.PreStartContainerResponse()

    def tell(self, *devices: pb.Device) -> None:
        """List these from now on."""
        self.devices = list(devices)
        news, self.news = self.news, anyio.Event()
        news.set()

    def hang_up(self) -> None:
        """End the streams that are open."""
        self.hanging_up.set()
        self.tell(*self.devices)
        self.hanging_up = anyio.Event()

    async def register(self, **changes: str) -> None:
        request = pb.RegisterRequest(
            version=changes.get("version", "v1beta1"),
            endpoint=changes.get("endpoint", self.endpoint),
            resource_name=changes.get("resource", self.resource),
            options=self.options,
        )
        async with Client(self.directory / "kubelet.sock") as client:
            service = service_of(pb, "Registration")
            await client.call(service, "Register", request, timeout_s=10)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Plugin]:
        async with self.server:
            await self.register()
            yield self
