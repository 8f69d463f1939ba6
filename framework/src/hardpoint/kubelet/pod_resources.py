"""Which pod holds what, as the kubelet tells it: the pod-resources service."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import anyio

from hardpoint.errors import CallFailed
from hardpoint.kubelet import podresources_v1_pb2 as pb
from hardpoint.kubelet.client import Client
from hardpoint.kubelet.pods import HeldDevice, HeldResource, PodUse
from hardpoint.kubelet.services import service_of

__all__ = ["MAX_RECEIVE", "HeldDevice", "HeldResource", "PodResources", "PodUse"]

MAX_RECEIVE = 16 << 20
"""Bytes; a busy node's list outgrows gRPC's default of 4 MiB."""

_TIMEOUT = 10.0
_TRIES = 5
_FIRST_WAIT = 0.1
"""Seconds; the kubelet lets 100 calls a second through, 10 at once, and rejects the others."""


class PodResources:
    """The kubelet's answers; every call reads anew. Close it when done."""

    def __init__(self, kubelet_root: str | Path, *, timeout_s: float = _TIMEOUT) -> None:
        path = Path(kubelet_root) / "pod-resources" / "kubelet.sock"
        self._client = Client(path, max_receive=MAX_RECEIVE)
        self._service = service_of(pb, "PodResourcesLister")
        self._timeout = timeout_s

    async def list(self) -> tuple[PodUse, ...]:
        """Return every pod of the node. Raises ``CallFailed``: that is not "no pods"."""
        answer = await self._call("List", pb.ListPodResourcesRequest())
        return tuple(_pod_use(pod) for pod in answer.pod_resources)

    async def get(self, namespace: str, name: str) -> PodUse | None:
        """Return one pod, or None if the kubelet has none of that name. Raises ``CallFailed``.

        Kubelets that do not serve single pods are asked for the list.
        """
        request = pb.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
        try:
            answer = await self._call("Get", request)
        except CallFailed as error:
            if error.code == "NOT_FOUND":
                return None
            if error.code not in ("UNIMPLEMENTED", "UNKNOWN"):  # UNKNOWN: the gate is off
                raise
            return _named(await self.list(), namespace, name)
        return _pod_use(answer.pod_resources)

    async def allocatable(self) -> tuple[HeldResource, ...]:
        """Return the healthy devices of every device plugin, one entry per device and NUMA node.

        A resource of which nothing is healthy is not in it, nor is anything of DRA. ``container``
        is empty. Raises ``CallFailed``.
        """
        answer = await self._call("GetAllocatableResources", pb.AllocatableResourcesRequest())
        return tuple(
            HeldResource(container="", resource=one.resource_name, ids=tuple(one.device_ids))
            for one in answer.devices
        )

    async def _call(self, method: str, request: Any) -> Any:
        wait = _FIRST_WAIT
        for _ in range(_TRIES - 1):
            try:
                return await self._client.call(
                    self._service, method, request, timeout_s=self._timeout
                )
            except CallFailed as error:
                if error.code != "RESOURCE_EXHAUSTED" or "larger than max" in error.details:
                    raise
            await anyio.sleep(wait)
            wait *= 2
        return await self._client.call(self._service, method, request, timeout_s=self._timeout)

    async def close(self) -> None:
        """End the connection."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


def _named(pods: Iterable[PodUse], namespace: str, name: str) -> PodUse | None:
    return next((pod for pod in pods if (pod.namespace, pod.name) == (namespace, name)), None)


def _pod_use(pod: pb.PodResources) -> PodUse:
    return PodUse(
        namespace=pod.namespace,
        name=pod.name,
        resources=tuple(
            HeldResource(
                container=container.name, resource=held.resource_name, ids=tuple(held.device_ids)
            )
            for container in pod.containers
            for held in container.devices
        ),
        devices=tuple(
            _held_device(container.name, claim, held)
            for container in pod.containers
            for claim in container.dynamic_resources
            for held in claim.claim_resources
        ),
    )


def _held_device(container: str, claim: pb.DynamicResource, held: pb.ClaimResource) -> HeldDevice:
    return HeldDevice(
        container=container,
        claim_namespace=claim.claim_namespace,
        claim_name=claim.claim_name,
        driver=held.driver_name,
        pool=held.pool_name,
        device=held.device_name,
        share_id=held.share_id,
        cdi_ids=tuple(named.name for named in held.cdi_devices),
    )
