"""The device plugin frontend keeps the promises of every frontend."""

from __future__ import annotations

from typing import Any, ClassVar

from hardpoint.errors import CallFailed
from hardpoint.kubelet import deviceplugin_v1beta1_pb2 as pb
from hardpoint.testing import FrontendContract
from hardpoint.testing.frontend_contract import Claimed, FrontendNode
from hardpoint.testing.kubelet import PodFailed
from hardpoint_deviceplugin import DevicePlugin

RADIO = "contract.test/radio"


class TestDevicePluginKeepsTheFrontendContract(FrontendContract):
    plugin = DevicePlugin
    impatient: ClassVar[dict[str, Any]] = {"registration_silence": 0.05}
    writes_objects = False
    ends_claims = False
    serves_idle = False

    def offered(self, node: FrontendNode) -> dict[str, bool]:
        return {one.id: one.health == "Healthy" for one in node.kubelet.listed(RADIO).values()}

    async def claim(self, node: FrontendNode, *devices: str) -> Claimed:
        """Ask for these very devices; the kubelet's own choice is none of the contract's."""
        listed = set(devices)
        await node.kubelet.until(
            lambda: listed <= self.offered(node).keys() and self.is_registered(node)
        )
        return await self.allocate(node, devices)

    async def claim_again(self, node: FrontendNode, claimed: Claimed) -> Claimed:
        return await self.allocate(node, claimed.devices)

    def received(self, claimed: Claimed, device: str) -> str:
        return device

    def is_registered(self, node: FrontendNode) -> bool:
        newest = node.kubelet.plugins.newest(RADIO)
        return newest is not None and newest.lists > 0

    async def allocate(self, node: FrontendNode, ids: tuple[str, ...]) -> Claimed:
        newest = node.kubelet.plugins.newest(RADIO)
        assert newest is not None
        request = pb.AllocateRequest(
            container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)]
        )
        try:
            answer = await newest.call("Allocate", request, 10)
        except CallFailed as error:
            raise PodFailed(error.details) from error
        (container,) = answer.container_responses
        names = tuple(one.name for one in container.cdi_devices)
        return Claimed(uid=" ".join(ids), devices=ids, cdi_ids=names)
