"""What the pods of this node are called, for who knows a pod by its UID alone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import anyio

from hardpoint.agent import Agent
from hardpoint.errors import KubeError
from hardpoint.kube import PODS
from hardpoint.policies._pods import Metadata, read_pod

_PATIENCE = 5.0
"""Seconds: names are for people, and the answer does not wait for them."""
_AGAIN = 30.0
"""Seconds from one question to the next, where some are not known."""
_STATIC = "kubernetes.io/config.hash"
"""Annotation of a static pod's mirror: the UID by which the kubelet itself knows the pod."""


@dataclass(frozen=True, slots=True)
class PodName:
    """What a pod is called."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.name}"


class PodNames:
    """Names of pods by UID. One is never another's, so each is asked for once.

    A release that is stuck for hours is looked at each five seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._asked = clock, -math.inf
        self._known: Mapping[str, PodName] = {}

    async def of(self, agent: Agent, uids: Iterable[str]) -> Mapping[str, PodName]:
        """Return the names of pods as far as they are known; asks for those that are not."""
        unknown = set(uids) - self._known.keys() - {""}
        if unknown and self._clock() - self._asked >= _AGAIN:
            self._asked = self._clock()
            self._known = await pods_by_uid(agent) or self._known
        return self._known


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
