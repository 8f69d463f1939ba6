"""Which pod holds what, asked of a pod-resources service on a real socket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hardpoint.errors import CallFailed
from hardpoint.kubelet import podresources_v1_pb2 as pb
from hardpoint.kubelet.pod_resources import HeldDevice, HeldResource, PodResources, PodUse
from hardpoint.kubelet.server import SocketServer
from hardpoint.kubelet.services import Status, serve, service_of

POD = pb.PodResources(
    name="train",
    namespace="ml",
    containers=[
        pb.ContainerResources(
            name="main",
            devices=[pb.ContainerDevices(resource_name="hardpoint.dev/gpu", device_ids=["a", "b"])],
            dynamic_resources=[
                pb.DynamicResource(
                    claim_name="gpu",
                    claim_namespace="ml",
                    claim_resources=[
                        pb.ClaimResource(
                            cdi_devices=[pb.CDIDevice(name="hardpoint.dev/claim=x")],
                            driver_name="hardpoint.dev",
                            pool_name="n1",
                            device_name="pci-0",
                            share_id="s",
                        )
                    ],
                )
            ],
        )
    ],
)
USE = PodUse(
    namespace="ml",
    name="train",
    resources=(HeldResource(container="main", resource="hardpoint.dev/gpu", ids=("a", "b")),),
    devices=(
        HeldDevice(
            container="main",
            claim_namespace="ml",
            claim_name="gpu",
            driver="hardpoint.dev",
            pool="n1",
            device="pci-0",
            share_id="s",
            cdi_ids=("hardpoint.dev/claim=x",),
        ),
    ),
)


class Lister:
    """The kubelet's service: ``refuse`` may raise before an answer."""

    def __init__(self, refuse: Callable[[str], None] = lambda method: None) -> None:
        self.pods = [POD]
        self.refuse = refuse

    async def list(self, request: pb.ListPodResourcesRequest) -> pb.ListPodResourcesResponse:
        self.refuse("List")
        return pb.ListPodResourcesResponse(pod_resources=self.pods)

    async def get(self, request: pb.GetPodResourcesRequest) -> pb.GetPodResourcesResponse:
        self.refuse("Get")
        for pod in self.pods:
            if (pod.namespace, pod.name) == (request.pod_namespace, request.pod_name):
                return pb.GetPodResourcesResponse(pod_resources=pod)
        raise Status("NOT_FOUND", "no such pod")

    def server(self, root: Path) -> SocketServer:
        (root / "pod-resources").mkdir()
        handler = serve(service_of(pb, "PodResourcesLister"), {"List": self.list, "Get": self.get})
        return SocketServer(root / "pod-resources/kubelet.sock", [handler])


def _refusing(code: str, times: int, only: str = "") -> Callable[[str], None]:
    left = [times]

    def refuse(method: str) -> None:
        if left[0] > 0 and only in ("", method):
            left[0] -= 1
            raise Status(code, "rejected by rate limit")

    return refuse


async def test_the_list_says_who_holds_what(short_path: Path) -> None:
    async with Lister().server(short_path), PodResources(short_path) as kubelet:
        assert await kubelet.list() == (USE,)


async def test_one_pod_is_found_by_name_and_another_is_none(short_path: Path) -> None:
    async with Lister().server(short_path), PodResources(short_path) as kubelet:
        assert await kubelet.get("ml", "train") == USE
        assert await kubelet.get("ml", "gone") is None


@pytest.mark.parametrize("code", ["UNIMPLEMENTED", "UNKNOWN"])
async def test_an_older_kubelet_is_asked_for_its_list(short_path: Path, code: str) -> None:
    lister = Lister(_refusing(code, 99, only="Get"))
    async with lister.server(short_path), PodResources(short_path) as kubelet:
        assert await kubelet.get("ml", "train") == USE
        assert await kubelet.get("ml", "gone") is None


async def test_a_call_rejected_for_its_rate_is_repeated(short_path: Path) -> None:
    lister = Lister(_refusing("RESOURCE_EXHAUSTED", 2))
    async with lister.server(short_path), PodResources(short_path) as kubelet:
        assert await kubelet.list() == (USE,)


async def test_a_kubelet_that_is_down_is_an_error_and_not_an_empty_list(short_path: Path) -> None:
    async with PodResources(short_path) as kubelet:
        with pytest.raises(CallFailed, match=r"PodResourcesLister\.List"):
            await kubelet.list()


async def test_an_error_other_than_the_rate_is_not_repeated(short_path: Path) -> None:
    lister = Lister(_refusing("INTERNAL", 1))
    async with lister.server(short_path), PodResources(short_path) as kubelet:
        with pytest.raises(CallFailed, match="INTERNAL"):
            await kubelet.list()


async def test_a_list_larger_than_grpcs_default_arrives(short_path: Path) -> None:
    lister = Lister()
    held = pb.ContainerDevices(resource_name="r", device_ids=["x" * 1000] * 6000)
    container = pb.ContainerResources(name="c", devices=[held])
    lister.pods = [pb.PodResources(name="big", containers=[container])]
    async with lister.server(short_path), PodResources(short_path) as kubelet:
        (pod,) = await kubelet.list()

    assert len(pod.resources[0].ids) == 6000
