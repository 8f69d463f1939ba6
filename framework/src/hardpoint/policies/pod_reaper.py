"""The reaper: deletes the pod that still has a device whose grant has ended.

The agent finds such pods and says when their time is up; here is the deletion alone, and whom it
must not hit. The pod's UID is read first, then it is looked whether the pod still has the device,
then that UID is deleted and no other.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio
from pydantic import Field

from hardpoint import Event, HoldingPod, Node, Reaped, ReapResult, Release, Settings, hookimpl
from hardpoint.errors import (
    HardpointError,
    KubeBusy,
    KubeConflict,
    KubeError,
    KubeNotFound,
    KubeUnreachable,
)
from hardpoint.policies._pods import FINISHED, MIRROR, Pod, read_pod, seconds

if TYPE_CHECKING:
    from hardpoint.agent import Agent
    from hardpoint.kube import Kube

_log = logging.getLogger("hardpoint.reaper")

NOT_ADMITTED = "UnexpectedAdmissionError"
_SLACK = 60.0
"""Seconds between a kubelet's giving a pod its devices and the start it reports, at most."""
_CLEAN_EVERY = 60.0
_CLEANING = "policy/pod_reaper cleaning"


class PodReaperSettings(Settings):
    """The section ``[policy.pod_reaper]``."""

    first_after_s: float = Field(default=30, ge=1, le=86400)
    """Seconds that a pod may go on with what it must not have, from when it was first seen so."""
    again_after_s: float = Field(default=60, ge=1, le=86400)
    """Seconds from one attempt to the next. Every attempt but the first kills at once."""
    grace_s: int = Field(default=10, ge=0, le=3600)
    """Seconds that the first attempt leaves the pod's containers to end."""
    dry_run: bool = False
    """Delete nothing, and say what would be deleted."""
    pods_per_minute: int = Field(default=10, ge=1, le=1000)
    """The most pods that are deleted in a minute; of failed ones half of that."""
    clean_failed_admission: bool = False
    """Delete pods that failed with ``UnexpectedAdmissionError`` and asked for one of our resources,
    where a controller has made another in their place: kubelets leave them behind when a node or a
    plugin starts anew."""
    failed_after_s: float = Field(default=60, ge=0, le=86400)
    """Seconds that such a pod is kept, from its creation."""


class PodReaper:
    """Deletes pods that have what they must not have any more."""

    Settings = PodReaperSettings

    def __init__(self, node: Node, settings: PodReaperSettings) -> None:
        self.node, self.settings = node, settings
        self.first_after_s, self.again_after_s = settings.first_after_s, settings.again_after_s
        self._rate = Rate(settings.pods_per_minute)
        self._told: set[str] = set()
        """UIDs of failed pods that a dry run has named."""

    @hookimpl
    async def reap_pod(
        self, pod: HoldingPod, release: Release, attempt: int, agent: Agent
    ) -> ReapResult:
        """Delete the pod, if it is the one that is meant and still has the device."""
        try:
            async with agent.connect() as kube:
                return await self._reap(kube, pod, release, attempt)
        except HardpointError as error:  # also of ``still_holds``: what is not known is no reason
            return ReapResult(Reaped.LATER, str(error))

    async def _reap(
        self, kube: Kube, pod: HoldingPod, release: Release, attempt: int
    ) -> ReapResult:
        found = await _read(kube, pod)
        if found is None:
            return ReapResult(Reaped.GONE, "there is no such pod")
        kept = self._spared(found, pod, release)
        if kept is not None:
            return kept
        if not await pod.still_holds():
            return ReapResult(Reaped.GONE, "it does not have the device any more")
        if found.metadata.deletion_timestamp and attempt == 1:
            return ReapResult(Reaped.DELETED, "somebody has deleted it already")
        grace = self.settings.grace_s if attempt == 1 else 0
        if self.settings.dry_run:
            return ReapResult(Reaped.WOULD_DELETE, f"with a grace of {grace} s; this is a dry run")
        if not self._rate.take():
            most = self.settings.pods_per_minute
            return ReapResult(Reaped.LATER, f"{most} pods have been deleted in a minute")
        return await self._delete(kube, found, pod, release, grace)

    def _spared(self, found: Pod, pod: HoldingPod, release: Release) -> ReapResult | None:
        """Return why a pod is not deleted; None if it may be."""
        if found.status.phase in FINISHED:
            return ReapResult(Reaped.GONE, "it has ended")
        if found.spec.node_name != self.node.name:
            return ReapResult(Reaped.SPARED, "it is on another node")
        if MIRROR in (found.metadata.annotations or {}):
            why = "it is a static pod, which only its file on the node ends: remove that"
            return ReapResult(Reaped.SPARED, why)
        if pod.uids and found.metadata.uid not in pod.uids:
            return ReapResult(Reaped.SPARED, "another pod has its name by now")
        return _too_young(found, release.since, known=bool(pod.uids))

    async def _delete(
        self, kube: Kube, found: Pod, pod: HoldingPod, release: Release, grace: int
    ) -> ReapResult:
        from hardpoint.kube import PODS

        uid = found.metadata.uid
        try:
            there = await kube.delete(PODS, pod.name, namespace=pod.namespace, uid=uid, grace=grace)
        except KubeConflict:
            self._rate.give_back()
            return ReapResult(Reaped.SPARED, "another pod has its name by now")
        except KubeError as error:
            if isinstance(error, KubeBusy) or not isinstance(error, KubeUnreachable):
                self._rate.give_back()  # else it may be done: the answer was lost
            raise
        if not there:
            self._rate.give_back()
            return ReapResult(Reaped.GONE, "there is no such pod")
        under = f" of allocation {release.allocation}" if release.allocation else ""
        why = f"it has {', '.join(pod.devices)}{under}, which it must not have any more"
        await _tell(kube, found, self.node.name, f"deleted: {why}")
        return ReapResult(Reaped.DELETED, f"with a grace of {grace} s")

    # -- pods that were never admitted ------------------------------------------------------------

    @hookimpl
    async def serve_policy(self, agent: Agent) -> None:
        """Delete pods that a kubelet has refused for want of one of our devices, if that is set."""
        if not self.settings.clean_failed_admission:
            await anyio.sleep_forever()
        from hardpoint.kube import Backoff

        await agent.until_writing()
        backoff = Backoff(1.0, _CLEAN_EVERY)
        while True:
            try:
                await self.clean(agent)
            except HardpointError as error:
                agent.on_fault(_CLEANING, f"failed pods are not cleaned up: {error}")
                await anyio.sleep(backoff.next())
            else:
                agent.clear_fault(_CLEANING)
                backoff.reset()
                await anyio.sleep(_CLEAN_EVERY)

    async def clean(self, agent: Agent) -> None:
        """Look once for pods that failed to be admitted. Raises ``KubeError``."""
        from hardpoint.kube import PODS

        prefixes = {domain.resource_prefix for domain in agent.domains}
        names = frozenset(one.resource for one in agent.allocations())
        async with agent.connect() as kube:
            fields = {"spec.nodeName": self.node.name, "status.phase": "Failed"}
            listed = await kube.list(PODS, fields=fields)
            for found in (read_pod(item) for item in listed.items):
                if self._is_left_behind(found, prefixes, names):
                    await self._clean(kube, found, agent)

    def _is_left_behind(self, found: Pod, prefixes: set[str], names: frozenset[str]) -> bool:
        created = seconds(found.metadata.creation_timestamp)
        return (
            found.status.reason == NOT_ADMITTED
            and any(owner.controller for owner in found.metadata.owner_references or ())
            and not found.metadata.deletion_timestamp
            and created is not None
            and time.time() - created >= self.settings.failed_after_s
            and any(r in names or r.partition("/")[0] in prefixes for r in found.spec.asked)
        )

    async def _clean(self, kube: Kube, found: Pod, agent: Agent) -> None:
        from hardpoint.kube import PODS

        about = found.metadata
        name, verb = f"{about.namespace}/{about.name}", "deleted"
        if self.settings.dry_run:
            if about.uid in self._told:
                return
            self._told.add(about.uid)
            verb = "would be deleted"
        elif not self._rate.take(leaving=self.settings.pods_per_minute // 2):
            return  # the next look is for the rest; thousands of them must keep nobody from reaping
        else:
            try:
                if not await kube.delete(
                    PODS, about.name, namespace=about.namespace, uid=about.uid
                ):
                    return
            except KubeConflict:
                return
        message = f"pod {name} {verb}: it failed with {NOT_ADMITTED}, and has a controller"
        agent.report(Event(name="failed-pod-cleaned", message=message, facts={"pod": name}))


@dataclass(slots=True)
class Rate:
    """How many pods may be deleted in a minute."""

    most: int
    clock: Callable[[], float] = time.monotonic
    _times: deque[float] = field(default_factory=deque)

    def take(self, *, leaving: int = 0) -> bool:
        """Count one more, if there may be one more and so many are left then for what matters."""
        now = self.clock()
        while self._times and now - self._times[0] >= 60:
            self._times.popleft()
        if len(self._times) >= self.most - leaving:
            return False
        self._times.append(now)
        return True

    def give_back(self) -> None:
        """Count one less: it was refused, and must not keep others from their end."""
        if self._times:
            self._times.pop()


async def _read(kube: Kube, pod: HoldingPod) -> Pod | None:
    """Return a pod; None if there is none of that name. Raises ``KubeError``."""
    from hardpoint.kube import PODS

    try:
        return read_pod(await kube.get(PODS, pod.name, namespace=pod.namespace))
    except KubeNotFound:
        return None


def _too_young(found: Pod, since: float, *, known: bool) -> ReapResult | None:
    """Spare what cannot have had the device: a namesake, created after the release began.

    The API server's clock says when a pod was created, the node's when it started and when the
    release began. So of a pod that had started by then, it is not believed that it was created
    later; and one that starts long after it was given nothing, unless its claim names it.
    """
    created, started = (
        seconds(found.metadata.creation_timestamp),
        seconds(found.status.start_time),
    )
    if started is not None and started <= since:
        return None
    if created is None or created > since:
        return ReapResult(Reaped.SPARED, "it was created after the release began")
    if known:
        return None
    if started is None and found.status.phase != "Running":
        return ReapResult(Reaped.LATER, "its kubelet does not say that it has started")
    if started is not None and started > since + _SLACK:
        return ReapResult(Reaped.SPARED, "it started after the release began")
    return None


async def _tell(kube: Kube, found: Pod, node: str, message: str) -> None:
    """Say on the pod why it ends. That it cannot be said is no matter."""
    from hardpoint.kube import EVENTS

    about, now = found.metadata, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{about.name}.", "namespace": about.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": about.namespace,
            "name": about.name,
            "uid": about.uid,
        },
        "reason": "DeviceRevoked",
        "message": message,
        "type": "Warning",
        "source": {"component": "hardpoint", "host": node},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    try:
        await kube.create(EVENTS, body, namespace=about.namespace)
    except KubeError as error:
        _log.debug("no event written pod=%s/%s why=%r", about.namespace, about.name, str(error))
