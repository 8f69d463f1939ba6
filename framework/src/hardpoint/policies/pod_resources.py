"""Evidence from the kubelet: which pods have a device of a release, by id or by claim.

Three things are read, since none says all: the list of pods, the device manager's checkpoint, which
has the ids of init containers too, and what the agent itself holds, since kubelets before 1.36 may
list no claims' devices (``KubeletPodResourcesDynamicResources``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import anyio
import anyio.to_thread
from pydantic import Field

from hardpoint.agent import Agent
from hardpoint.contract import hookimpl
from hardpoint.errors import HardpointError
from hardpoint.grants import Evidence, Release
from hardpoint.kubelet.pods import PodUse
from hardpoint.kubelet.podsource import Checkpoint, PodSource
from hardpoint.kubelet.settling import Settling, own_pod
from hardpoint.model import Hold
from hardpoint.node import Node
from hardpoint.parameters import Settings
from hardpoint.policies._conditions import UNAVAILABLE, say
from hardpoint.policies._uses import Uses, holder
from hardpoint.policies._worker import WORKER_FILES, Worker

_NEVER = "this machine never was a worker: there is nothing of a kubelet's on it"
_EVERY = 5.0
"""Seconds between looks at whether the kubelet is another one, and whether it answers."""


class PodResourcesSettings(Settings):
    """The section ``[policy.pod_resources]``."""

    settle: float = Field(default=30.0, ge=0)
    """Seconds for which a kubelet must have known its pods before anything follows from what it
    does not list: one that has just started lists few."""
    worker_files: tuple[Path, ...] = WORKER_FILES
    """Files that say that this machine is or was a worker, beside those of the kubelet's own
    directories. Where none exists the kubelet is not asked."""
    condition: str = UNAVAILABLE
    """Type of the node condition while the kubelet cannot be asked and something is granted."""


class PodResourcesUsers:
    """Asks the kubelet. While it does not answer, everything that is released is in use."""

    Settings = PodResourcesSettings

    def __init__(self, node: Node, settings: PodResourcesSettings) -> None:
        self.node, self.settings = node, settings
        itself = own_pod(os.environ)
        self._settling = Settling(node.name, itself, settle=settings.settle)
        self._worker = Worker(node, settings.worker_files, os.environ)

    @property
    def not_applicable(self) -> str:
        """Why the kubelet is not asked: looked at anew each time, since a machine may join."""
        return "" if self._worker.is_or_was() else _NEVER

    @hookimpl
    async def find_users(self, release: Release, holds: tuple[Hold, ...], agent: Agent) -> Evidence:
        """Ask for every pod, and say which have one of the devices."""
        began = time.monotonic()
        if self.not_applicable:
            return Evidence.none(began)
        source = _source(agent)
        try:
            written = await source.checkpoint()
            pods = await self._list(source, began)
        except HardpointError as error:
            return Evidence.unknown(f"the kubelet cannot be asked who has them: {error}")
        alive = await anyio.to_thread.run_sync(_pod_directories, agent.paths.kubelet)
        uses = Uses.of(release, holds, agent)
        known = self._settling.believes(written, began)
        users = [*_listed(uses, pods), *_written_down(uses, pods, written, alive, known)]
        users += [holder(hold) for hold in uses.holds]
        if users:
            return Evidence.used_by(began, *dict.fromkeys(users))
        if not self._settling.settled(began):
            return Evidence.unknown(self._settling.doubt or self._why_not_yet())
        return Evidence.none(began)

    @hookimpl
    async def serve_policy(self, agent: Agent) -> None:
        """Get to know each kubelet as it starts, and say while one that is needed is silent."""
        while True:
            if not self.not_applicable:
                await self._look(agent)
            await anyio.sleep(_EVERY)

    async def _look(self, agent: Agent) -> None:
        source, needed = _source(agent), bool(agent.grants() or agent.releases())
        if not needed and self._settling.knows(source.kubelet()):
            say(agent, self.settings.condition, "KubeletSilent", "")
            return
        try:
            await self._list(source, time.monotonic())
            why = ""
        except HardpointError as error:
            why = f"which pods have which devices is not known, so none is released: {error}"
        say(agent, self.settings.condition, "KubeletSilent", why if needed else "")

    async def _list(self, source: PodSource, began: float) -> tuple[PodUse, ...]:
        kubelet = source.kubelet()
        pods = await source.list()
        self._settling.heard({(pod.namespace, pod.name) for pod in pods}, kubelet, began)
        return pods

    def _why_not_yet(self) -> str:
        return (
            f"the kubelet has not listed its pods for {self.settings.settle:g} s yet; one that has "
            "just started lists few"
        )


def _source(agent: Agent) -> PodSource:
    return PodSource(agent.paths.kubelet, agent.paths.device_plugins)


def _listed(uses: Uses, pods: Iterable[PodUse]) -> Iterator[str]:
    for pod in pods:
        if uses.by_pod(pod):
            yield f"pod {pod.namespace}/{pod.name}"


def _written_down(
    uses: Uses,
    pods: Iterable[PodUse],
    written: Checkpoint,
    alive: frozenset[str] | None,
    believed: bool,
) -> Iterator[str]:
    """Say who has an id that the checkpoint names and no listed pod has.

    It keeps what ended pods had until it is written anew, at each list of a plugin's. A pod whose
    directory is gone has ended; where no directory can be seen, ``believed`` decides.
    """
    listed = {(held.resource, id_) for pod in pods for held in pod.resources for id_ in held.ids}
    for resource, id_, pod in sorted(written.pods):
        if (resource, id_) in listed or not uses.by_id(id_):
            continue
        if believed if alive is None or not pod else pod in alive:
            yield f"pod {pod or 'of unknown UID'}, by the kubelet's checkpoint ({resource} {id_})"


def _pod_directories(kubelet: Path) -> frozenset[str] | None:
    """Return the UIDs of the pods that the kubelet keeps a directory for; None if unknown."""
    try:
        return frozenset(os.listdir(kubelet / "pods"))
    except OSError:
        return None
