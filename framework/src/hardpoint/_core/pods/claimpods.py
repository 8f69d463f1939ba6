"""Which pods have a claim, as the API server tells it: kubelets need not list devices of claims.

A claim names the pods that it is reserved for, with their UIDs. Where it names something else too,
a PodGroup, its pods are those that name the claim; and the claim that the scheduler made for a
pod's extended resources is named in that pod's status alone (``extendedResourceClaimStatus``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hardpoint.errors import KubeError, KubeNotFound, KubeUnreachable
from hardpoint.model import ClaimKey

if TYPE_CHECKING:
    from hardpoint.kube import Kube

GROUP, PLURAL = "resource.k8s.io", "resourceclaims"
VERSIONS = ("v1", "v1beta2", "v1beta1")
"""Newest first; a claim's status is the same in all of them."""
FINISHED = ("Succeeded", "Failed")

_S = TypeVar("_S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True, order=True)
class PodId:
    """A pod that the API server knows."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class OfClaim:
    """A device that a claim has been allocated, and the pods that have the claim."""

    namespace: str
    claim: str
    driver: str
    device: str
    """As it is published."""
    pods: tuple[PodId, ...]


@dataclass(slots=True)
class Found:
    """Who has which claim, by the claim's UID, and why that could not be read of others."""

    pods: dict[str, tuple[PodId, ...]] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)


# -- what is read of an object, in the API's own words --------------------------------------------


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""


class _PodClaim(msgspec.Struct, rename="camel"):
    resource_claim_name: str | None = None


class _State(msgspec.Struct):
    running: Any = None


class _Container(msgspec.Struct):
    state: _State | None = None


class _PodSpec(msgspec.Struct, rename="camel"):
    resource_claims: tuple[_PodClaim, ...] | None = None


class _PodStatus(msgspec.Struct, rename="camel"):
    phase: str = ""
    resource_claim_statuses: tuple[_PodClaim, ...] | None = None
    extended_resource_claim_status: _PodClaim | None = None
    init_container_statuses: tuple[_Container, ...] | None = None
    container_statuses: tuple[_Container, ...] | None = None


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)

    @property
    def id(self) -> PodId:
        return PodId(self.metadata.namespace, self.metadata.name, self.metadata.uid)

    @property
    def extended(self) -> str:
        """The claim that stands for the pod's extended resources."""
        found = self.status.extended_resource_claim_status
        return (found and found.resource_claim_name) or ""

    @property
    def claims(self) -> frozenset[str]:
        """The names of its claims."""
        listed = (*(self.spec.resource_claims or ()), *(self.status.resource_claim_statuses or ()))
        named = {one.resource_claim_name for one in listed}
        return frozenset(name for name in (*named, self.extended) if name)

    @property
    def runs(self) -> bool:
        """Whether a container of it runs: its claims have been prepared then."""
        listed = (
            *(self.status.init_container_statuses or ()),
            *(self.status.container_statuses or ()),
        )
        return any(one.state is not None and one.state.running is not None for one in listed)


class _Consumer(msgspec.Struct, rename="camel"):
    resource: str = ""
    uid: str = ""
    api_group: str | None = None

    @property
    def is_pod(self) -> bool:
        return self.resource == "pods" and not self.api_group


class _Result(msgspec.Struct):
    driver: str = ""
    pool: str = ""
    device: str = ""


class _Devices(msgspec.Struct):
    results: tuple[_Result, ...] | None = None


class _Allocation(msgspec.Struct):
    devices: _Devices | None = None


class _ClaimStatus(msgspec.Struct, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: tuple[_Consumer, ...] | None = None


class _Claim(msgspec.Struct):
    metadata: _Metadata
    status: _ClaimStatus = msgspec.field(default_factory=_ClaimStatus)

    @property
    def results(self) -> tuple[_Result, ...]:
        allocation = self.status.allocation
        return (allocation and allocation.devices and allocation.devices.results) or ()

    def pods(self, of_node: Iterable[_Pod]) -> tuple[PodId, ...]:
        """Return those of a node's pods that have it."""
        consumers = self.status.reserved_for or ()
        uids = {one.uid for one in consumers if one.is_pod}
        groups = any(not one.is_pod for one in consumers)
        return tuple(
            pod.id
            for pod in of_node
            if pod.metadata.namespace == self.metadata.namespace
            and (
                pod.metadata.uid in uids
                or pod.extended == self.metadata.name
                or (groups and self.metadata.name in pod.claims)
            )
        )


class ClaimPods:
    """Reads claims and the pods of one node. Every call reads anew."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._version = ""

    async def of(self, kube: Kube, claims: Iterable[ClaimKey]) -> Found:
        """Return who has these claims. A claim that is gone, or is another by now, has nobody."""
        found, keys = Found(), list(claims)
        if not keys:
            return found
        try:
            pods = await self._pods(kube)
        except KubeError as error:
            found.unread = {key.uid: str(error) for key in keys}
            return found
        for key in keys:
            try:
                claim = await self._claim(kube, key.namespace, key.name)
            except KubeError as error:
                found.unread[key.uid] = str(error)
                continue
            same = claim is not None and claim.metadata.uid == key.uid
            found.pods[key.uid] = claim.pods(pods) if claim is not None and same else ()
        return found

    async def allocated(
        self, kube: Kube, known: Mapping[tuple[str, str], object]
    ) -> tuple[OfClaim, ...]:
        """Return what the running pods of the node have been allocated out of its pools.

        But for claims that are ``known``, by namespace and name: there may be claims that nobody
        wrote down. Raises ``KubeError``.
        """
        pods = await self._pods(kube)
        found: list[OfClaim] = []
        for namespace, name in sorted(_named(pods) - set(known)):
            claim = await self._claim(kube, namespace, name)
            if claim is None:
                continue
            having = claim.pods(pod for pod in pods if pod.runs)
            found += [
                OfClaim(namespace, name, one.driver, one.device, having)
                for one in claim.results
                if having and one.pool == self._node
            ]
        return tuple(found)

    async def _pods(self, kube: Kube) -> tuple[_Pod, ...]:
        from hardpoint.kube import PODS

        listed = await kube.list(PODS, fields={"spec.nodeName": self._node})
        pods = (_shaped(_Pod, item) for item in listed.items)
        return tuple(pod for pod in pods if pod.status.phase not in FINISHED)

    async def _claim(self, kube: Kube, namespace: str, name: str) -> _Claim | None:
        """Return a claim; None where there is none. Raises ``KubeError``."""
        from hardpoint.kube import Resource

        try:
            version = await self._served(kube)
            found = await kube.get(Resource(GROUP, version, PLURAL), name, namespace=namespace)
        except KubeNotFound:
            before, self._version = self._version, ""  # or it serves another version by now
            if await self._served(kube) == before:
                return None
            return await self._claim(kube, namespace, name)
        return _shaped(_Claim, found)

    async def _served(self, kube: Kube) -> str:
        if not self._version:
            served = await kube.versions(GROUP)
            self._version = next((version for version in VERSIONS if version in served), "")
        if not self._version:
            raise KubeUnreachable(f"this API server does not serve {GROUP} in a version we know")
        return self._version


def _named(pods: Iterable[_Pod]) -> set[tuple[str, str]]:
    return set(_claims_of(pods))


def _claims_of(pods: Iterable[_Pod]) -> Iterator[tuple[str, str]]:
    for pod in pods:
        for name in pod.claims if pod.runs else ():
            yield pod.metadata.namespace, name


def _shaped(kind: type[_S], found: Mapping[str, Any]) -> _S:
    """Read an object. Raises ``KubeUnreachable``: who answers so is no API server."""
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise KubeUnreachable(f"the answer is not what the API has: {error}") from error
