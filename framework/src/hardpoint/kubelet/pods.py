"""Which pod has what, as values: what ``pod_resources`` reads, without gRPC."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldResource:
    """Devices of a device plugin that a container has."""

    container: str
    resource: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevice:
    """A device of a ResourceClaim that a container has."""

    container: str
    claim_namespace: str
    claim_name: str
    driver: str
    pool: str
    device: str
    share_id: str = ""
    cdi_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodUse:
    """What a pod has. The kubelet does not say its UID."""

    namespace: str
    name: str
    resources: tuple[HeldResource, ...] = ()
    devices: tuple[HeldDevice, ...] = ()
