"""The DRA frontend keeps the promises of every frontend."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

from hardpoint.testing import FrontendContract
from hardpoint.testing.frontend_contract import Claimed, FrontendNode
from hardpoint.testing.kubelet import Pod, PodFailed, Prepared
from hardpoint_dra import Dra

DRIVER = "contract.test"
NUMBERS = itertools.count()


class TestDraKeepsTheFrontendContract(FrontendContract):
    plugin = Dra
    impatient: ClassVar[dict[str, Any]] = {"registration_silence": 0.05}

    def offered(self, node: FrontendNode) -> dict[str, bool]:
        return {
            device["name"]: not device.get("taints")
            for found in node.server.items("resourceslices")
            for device in found["spec"].get("devices", ())
        }

    async def claim(self, node: FrontendNode, *devices: str) -> Claimed:
        number = next(NUMBERS)
        pod = Pod(name=f"pod-{number}", claims=(f"claim-{number}",))
        uid = self.allocate(node, pod, devices)
        await node.kubelet.until(lambda: any(i.connected for i in node.kubelet.instances(DRIVER)))
        return claimed(uid, pod, await node.kubelet.prepare(pod))

    async def claim_again(self, node: FrontendNode, claimed: Claimed) -> Claimed:
        await node.kubelet.until(lambda: any(i.connected for i in node.kubelet.instances(DRIVER)))
        answer = await self.call(node, "NodePrepareResources", claimed)
        return Claimed(
            uid=claimed.uid,
            devices=tuple(device.device_name for device in answer.devices),
            cdi_ids=tuple(name for device in answer.devices for name in device.cdi_device_ids),
        )

    async def give_back(self, node: FrontendNode, claimed: Claimed) -> None:
        await self.call(node, "NodeUnprepareResources", claimed)

    async def call(self, node: FrontendNode, method: str, claimed: Claimed) -> Any:
        """Call as the kubelet does; its own memory of what is over would hide a second call."""
        name = claimed.handle.claims[0] if claimed.handle else "never"
        wire = {"namespace": "default", "name": name, "uid": claimed.uid}
        answer = (await node.kubelet.call(DRIVER, method, [wire])).claims[claimed.uid]
        if answer.error:
            raise PodFailed(answer.error)
        return answer

    def allocate(self, node: FrontendNode, pod: Pod, devices: tuple[str, ...]) -> str:
        (name,) = pod.claims
        requests = [
            {"name": f"r{i}", "exactly": {"deviceClassName": "radio"}} for i in range(len(devices))
        ]
        made = node.server.add(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"devices": {"requests": requests}},
            }
        )
        results = [
            {"request": f"r{i}", "driver": DRIVER, "pool": "node-1", "device": device}
            for i, device in enumerate(devices)
        ]
        reserved = [{"resource": "pods", "name": pod.name, "uid": pod.identity}]
        node.server.allocate("default", name, results, reserved_for=reserved)
        return str(made["metadata"]["uid"])


def claimed(uid: str, pod: Pod, prepared: tuple[Prepared, ...]) -> Claimed:
    return Claimed(
        uid=uid,
        devices=tuple(one.device for one in prepared),
        cdi_ids=tuple(name for one in prepared for name in one.cdi_ids),
        handle=pod,
    )
