"""What the pods of this node are called, for who knows a pod by its UID alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import anyio

from hardpoint.agent import Agent
from hardpoint.errors import KubeError
from hardpoint.kube import PODS
from hardpoint.policies._pods import Metadata, read_pod

_PATIENCE = 5.0
"""Seconds: names are for people, and the answer does not wait for them."""
_STATIC = "kubernetes.io/config.hash"
"""Annotation of a static pod's mirror: the UID by which the kubelet itself knows the pod."""


@dataclass(frozen=True, slots=True)
class PodName:
    """What a pod is called."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.name}"


async def pods_by_uid(agent: Agent) -> Mapping[str, PodName]:
    """Return the pods of the agent's node by UID; none where the API server does not say."""
    found: dict[str, PodName] = {}
    with anyio.move_on_after(_PATIENCE):
        try:
            async with agent.connect() as kube:
                listing = await kube.list(PODS, fields={"spec.nodeName": agent.node.name})
                pods = [read_pod(pod) for pod in listing.items]
        except KubeError:
            return {}
        for pod in pods:
            name = PodName(pod.metadata.namespace, pod.metadata.name)
            found |= dict.fromkeys(_uids(pod.metadata), name)
    return found


def _uids(metadata: Metadata) -> tuple[str, ...]:
    static = (metadata.annotations or {}).get(_STATIC)
    return (metadata.uid, static) if static else (metadata.uid,)
