"""Which pods of a node are to go when it is handed back, and their deletion."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hardpoint.errors import KubeBusy, KubeConflict, KubeError
from hardpoint.kube import PODS
from hardpoint.policies._pods import FINISHED, MIRROR, Pod, read_pod

if TYPE_CHECKING:
    from hardpoint.kube import Kube

_GRACE = 30
"""Seconds that a pod gets which says nothing of it (``DefaultTerminationGracePeriodSeconds``)."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Whom a drain spares. ``own`` is the agent's pod: its UID, or its namespace and name."""

    node: str
    own: Collection[str] = ()
    prefixes: Collection[str] = ()
    """What our extended resources begin with."""
    resources: Collection[str] = ()
    """Extended resources of ours with names of their own."""

    def spared(self, pod: Pod) -> str:
        """Return why a pod is left alone; empty where it is to go."""
        if pod.spec.node_name != self.node:
            return "it is on another node"
        if pod.status.phase in FINISHED:
            return "it has ended"
        if MIRROR in (pod.metadata.annotations or {}):
            return "it is a static pod"
        if pod.metadata.uid in self.own or str(pod) in self.own:
            return "it is the agent's own"
        if _is_of_a_daemon_set(pod) and not self._asks_for_ours(pod):
            return "it is a DaemonSet's, and asks for no device"
        return ""

    def _asks_for_ours(self, pod: Pod) -> bool:
        asked = any(
            name in self.resources or name.partition("/")[0] in self.prefixes
            for name in pod.spec.asked
        )
        claims = pod.spec.resource_claims or pod.status.extended_resource_claim_status
        return asked or bool(claims)


def _is_of_a_daemon_set(pod: Pod) -> bool:
    owners = pod.metadata.owner_references or ()
    return any(owner.controller and owner.kind == "DaemonSet" for owner in owners)


@dataclass(slots=True)
class Swept:
    """What one sweep found and did."""

    left: list[str] = field(default_factory=list)
    """Pods that are to go and are there still."""
    deleted: list[str] = field(default_factory=list)
    error: KubeError | None = None
    """The first that kept a pod from being deleted."""


class Sweep:
    """Deletes what is to go from a node, pod by pod; one that fails costs no other."""

    def __init__(self, kube: Kube, rules: Rules, *, most: int, evict: bool) -> None:
        self._kube, self._rules, self._most, self._evict = kube, rules, most, evict

    async def run(self) -> Swept:
        """Look at every pod of the node once. Raises ``KubeError`` where they cannot be listed."""
        listing = await self._kube.list(PODS, fields={"spec.nodeName": self._rules.node})
        swept = Swept()
        for pod in map(read_pod, listing.items):
            if not self._rules.spared(pod):
                swept.left.append(str(pod))
                await self._end(pod, swept)
        return swept

    async def _end(self, pod: Pod, swept: Swept) -> None:
        grace = self._grace(pod)
        if grace is None:
            return
        try:
            await self._delete(pod, grace)
            swept.deleted.append(str(pod))
        except (KubeBusy, KubeConflict):
            return  # a disruption budget, or a namesake: the next sweep looks again
        except KubeError as error:
            swept.error = swept.error or error

    def _grace(self, pod: Pod) -> int | None:
        """Return the pod's own grace, cut; None for one that ends within that already.

        Never none at all: the API server would forget a pod whose containers still run.
        """
        own = pod.spec.termination_grace_period_seconds
        grace = max(1, min(_GRACE if own is None else own, self._most))
        going = pod.metadata.deletion_grace_period_seconds
        if pod.metadata.deletion_timestamp and (going is None or going <= grace):
            return None
        return grace

    async def _delete(self, pod: Pod, grace: int) -> None:
        about = pod.metadata
        if self._evict and not about.deletion_timestamp:
            await self._kube.evict(
                about.name, namespace=about.namespace, uid=about.uid, grace=grace
            )
        else:
            await self._kube.delete(
                PODS, about.name, namespace=about.namespace, uid=about.uid, grace=grace
            )


def in_words(pods: Sequence[str]) -> str:
    """Name a few of many."""
    few = ", ".join(pods[:5])
    return f"{few} and {len(pods) - 5} more" if len(pods) > 5 else few
