"""The fake kubelet's pods, and what its pod-resources service says of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardpoint.kubelet import podresources_v1_pb2 as pb
from hardpoint.kubelet.server import SocketServer
from hardpoint.kubelet.services import Status, serve, service_of
from hardpoint.testing._kubelet_claims import Claims, Container, Pod
from hardpoint.testing._kubelet_devices import Devices

if TYPE_CHECKING:
    from hardpoint.testing.kubelet import Behaviour

Change = Callable[[pb.ListPodResourcesResponse], Awaitable[pb.ListPodResourcesResponse]]
"""What a test makes of an answer: it may wait, change it, or raise ``Status``."""

AllocatableChange = Callable[
    [pb.AllocatableResourcesResponse], Awaitable[pb.AllocatableResourcesResponse]
]
"""The same, of what may be given out."""


class Pods:
    """The pods that are not over, and the service that lists them."""

    def __init__(self, root: Path, behaviour: Behaviour, devices: Devices, claims: Claims) -> None:
        self.active: dict[str, Pod] = {}
        """By UID."""
        self.known = True
        """False: the API server has not told of them yet, as after a start while it is away."""
        self.change: Change | None = None
        self.change_allocatable: AllocatableChange | None = None
        self.lists = 0
        self._behaviour, self._devices, self._claims = behaviour, devices, claims
        handlers = serve(
            service_of(pb, "PodResourcesLister"),
            {
                "List": self._list,
                "Get": self._get,
                "GetAllocatableResources": self._allocatable,
            },
        )
        self._server = SocketServer(root / "pod-resources" / "kubelet.sock", [handlers])

    @property
    def socket(self) -> Path:
        """Where pod-resources is served."""
        return self._server.path

    async def start(self) -> None:
        """Serve."""
        self.socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        await self._server.start()

    async def stop(self) -> None:
        """End."""
        await self._server.close()

    def uids(self) -> set[str]:
        """Return whose devices are not free: while pods are not known, everybody's."""
        had = {one.pod for one in self._devices.allocated}
        return set(self.active) if self.known else had | set(self.active)

    # -- the service ------------------------------------------------------------------------------

    async def _list(self, request: pb.ListPodResourcesRequest) -> pb.ListPodResourcesResponse:
        self.lists += 1
        self._behaviour.changed()
        if self.known:
            self._devices.keep(self.uids())
        pods = self.active.values() if self.known else ()
        answer = pb.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in pods])
        return answer if self.change is None else await self.change(answer)

    async def _get(self, request: pb.GetPodResourcesRequest) -> pb.GetPodResourcesResponse:
        if not self._behaviour.serves_get:
            raise Status("UNKNOWN", "PodResources API Get method disabled")
        for pod in self.active.values() if self.known else ():
            if (pod.name, pod.namespace) == (request.pod_name, request.pod_namespace):
                return pb.GetPodResourcesResponse(pod_resources=self._pod(pod))
        raise Status("NOT_FOUND", f"pod {request.pod_name} not found")

    async def _allocatable(
        self, request: pb.AllocatableResourcesRequest
    ) -> pb.AllocatableResourcesResponse:
        """List each healthy device once, or once for each NUMA node that it is on."""
        answer = pb.AllocatableResourcesResponse(devices=self._healthy())
        if self.change_allocatable is not None:
            return await self.change_allocatable(answer)
        return answer

    def _healthy(self) -> list[pb.ContainerDevices]:
        return [
            pb.ContainerDevices(resource_name=name, device_ids=[id_], topology=on)
            for name, resource in self._devices.resources().items()
            for id_ in sorted(resource.healthy)
            for on in _topology(resource.devices[id_].numa)
        ]

    def _pod(self, pod: Pod) -> pb.PodResources:
        """Say what a pod's containers have: of init containers, sidecars alone are listed."""
        containers = [one for one in pod.containers if not one.init or one.restartable]
        if not pod.containers:
            containers = [Container(name="main")]
        return pb.PodResources(
            name=pod.name,
            namespace=pod.namespace,
            containers=[
                pb.ContainerResources(
                    name=one.name,
                    devices=self._of_plugins(pod, one.name),
                    dynamic_resources=self._of_claims(pod),
                )
                for one in containers
            ],
        )

    def _of_plugins(self, pod: Pod, container: str) -> list[pb.ContainerDevices]:
        return [
            pb.ContainerDevices(resource_name=one.resource, device_ids=one.ids)
            for one in self._devices.of(pod, container)
        ]

    def _of_claims(self, pod: Pod) -> list[Any]:
        """Return the claims of a pod, which every container of it is shown with."""
        found = self._claims.prepared(pod)
        return [
            pb.DynamicResource(
                claim_name=claim,
                claim_namespace=pod.namespace,
                claim_resources=[self._resource(one) for one in found if one.claim == claim],
            )
            for claim in _each(one.claim for one in found)
        ]

    def _resource(self, one: Any) -> pb.ClaimResource:
        resource = pb.ClaimResource(
            cdi_devices=[pb.CDIDevice(name=name) for name in one.cdi_ids],
            driver_name=one.driver,
            pool_name=one.pool,
            device_name=one.device,
        )
        if one.share_id:
            resource.share_id = one.share_id
        return resource


def _topology(numa: tuple[int, ...]) -> list[pb.TopologyInfo | None]:
    if not numa:
        return [None]
    return [pb.TopologyInfo(nodes=[pb.NUMANode(ID=node)]) for node in numa]


def _each(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
