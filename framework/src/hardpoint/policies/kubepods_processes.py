"""Evidence from the machine itself: a process of a pod has a released device open.

It knows what no list of the kubelet's has: a pod that was force-deleted and has not ended, a static
pod, a container that was given the node by other means.
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Iterable, Iterator, Mapping

import anyio.to_thread

from hardpoint.agent import Agent
from hardpoint.contract import hookimpl
from hardpoint.grants import Evidence, Release
from hardpoint.node import Node
from hardpoint.parameters import Settings
from hardpoint.policies._pod_names import PodName, PodNames
from hardpoint.policies._processes import Found, Processes, Wanted

_NOT_HOST = (
    "the processes of other pods are not seen here: the agent's pod wants hostPID, or paths.proc "
    "the host's /proc"
)


class KubepodsProcessesSettings(Settings):
    """The section ``[policy.kubepods_processes]``."""

    trusted_namespaces: tuple[str, ...] = ()
    """Patterns of namespaces whose pods may have released devices open, since they watch all of
    them (``dcgm-exporter``). Which pod is in which namespace is asked of the API server; while it
    does not say, such a pod counts like any other."""


class KubepodsProcesses:
    """Looks for processes in the cgroups of pods that have a node of a release open or mapped."""

    Settings = KubepodsProcessesSettings

    def __init__(self, node: Node, settings: KubepodsProcessesSettings) -> None:
        self.node, self.settings = node, settings
        self._processes, self._names = Processes(node.proc), PodNames()
        self.not_applicable = "" if self._processes.sees_pods() else _NOT_HOST

    @hookimpl
    async def find_users(self, release: Release, agent: Agent) -> Evidence:
        """Look at every process of every pod; only at nodes that no live grant shares."""
        began = time.monotonic()
        if self.not_applicable:
            return Evidence.unknown(self.not_applicable)
        if not release.nodes:
            return Evidence.none(began)
        found = await anyio.to_thread.run_sync(self._look, release, abandon_on_cancel=True)
        if not found:
            return Evidence.none(began)
        pods = await self._names.of(agent, (one.pod for one in found))
        counted = [one for one in found if not self._is_trusted(pods.get(one.pod))]
        users = tuple(dict.fromkeys(_users(counted, pods)))
        return Evidence.used_by(began, *users) if users else Evidence.none(began)

    def _look(self, release: Release) -> tuple[Found, ...]:
        return self._processes.look(Wanted.of(release.nodes, self.node))

    def _is_trusted(self, pod: PodName | None) -> bool:
        patterns = self.settings.trusted_namespaces
        return pod is not None and any(fnmatch.fnmatchcase(pod.namespace, p) for p in patterns)


def _users(found: Iterable[Found], pods: Mapping[str, PodName]) -> Iterator[str]:
    for one in found:
        pod = str(pods.get(one.pod) or f"pod {one.pod or 'of unknown UID'}")
        if one.why:
            yield f"{pod}: what process {one.pid} has open cannot be read ({one.why})"
        else:
            yield f"{pod} (process {one.pid} has it open)"
