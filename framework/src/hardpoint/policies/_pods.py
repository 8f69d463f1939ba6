"""A pod in the API's own words: what policies read of it, and no more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from hardpoint.errors import KubeUnreachable

MIRROR = "kubernetes.io/config.mirror"
"""Annotation of what the API server shows of a static pod: deleting it deletes nothing."""
FINISHED = ("Succeeded", "Failed")
"""Phases of pods whose containers have ended."""


class Owner(msgspec.Struct):
    """Whose a pod is."""

    kind: str = ""
    controller: bool | None = None


class Metadata(msgspec.Struct, rename="camel"):
    """What every object has."""

    name: str
    uid: str
    namespace: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    annotations: Mapping[str, str] | None = None
    owner_references: tuple[Owner, ...] | None = None


class Resources(msgspec.Struct):
    """What a container asks for."""

    limits: Mapping[str, Any] | None = None
    requests: Mapping[str, Any] | None = None


class Container(msgspec.Struct):
    """One container."""

    resources: Resources | None = None


class PodSpec(msgspec.Struct, rename="camel"):
    """What it is to be."""

    node_name: str = ""
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    resources: Resources | None = None
    resource_claims: tuple[Any, ...] | None = None
    termination_grace_period_seconds: int | None = None

    @property
    def asked(self) -> Iterator[str]:
        """The resources that it asks for, as a whole or in its containers."""
        containers = (*(self.containers or ()), *(self.init_containers or ()))
        for one in (self.resources, *(each.resources for each in containers)):
            if one is not None:
                yield from one.limits or ()
                yield from one.requests or ()


class PodStatus(msgspec.Struct, rename="camel"):
    """What its kubelet says of it."""

    phase: str = ""
    reason: str = ""
    start_time: str | None = None
    extended_resource_claim_status: Any = None


class Pod(msgspec.Struct):
    """One pod."""

    metadata: Metadata
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    def __str__(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"


def read_pod(found: Mapping[str, Any]) -> Pod:
    """Read a pod. Raises ``KubeUnreachable`` for what is none, or has no UID to be deleted by."""
    try:
        pod = msgspec.convert(found, Pod)
    except msgspec.ValidationError as error:
        raise KubeUnreachable(f"the answer is not what the API has: {error}") from error
    if not (pod.metadata.uid and pod.metadata.namespace):
        raise KubeUnreachable(f"the API server does not say which pod {pod.metadata.name} is")
    return pod


def seconds(text: str | None) -> float | None:
    """Return a time of the API's in seconds since 1970; None for none, or what is no time."""
    try:
        found = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return found.timestamp() if found is not None and found.tzinfo is not None else None
