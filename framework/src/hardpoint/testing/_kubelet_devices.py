"""The fake kubelet's device manager: which container has which ids, allocated once and remembered.

An allocation is made when a pod is admitted and then replayed: a container that restarts, and a pod
that a restarted kubelet finds running, get what was answered the first time, without a call.
"""

from __future__ import annotations

import base64
import json
import random
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardpoint.errors import CallFailed
from hardpoint.kubelet import deviceplugin_v1beta1_pb2 as pb
from hardpoint.testing._kubelet_claims import Container, Pod, PodFailed
from hardpoint.testing._kubelet_plugins import (
    CHECKPOINT,
    DevicePlugins,
    PluginInstance,
    Resource,
)
from hardpoint.testing.cdi import CdiRegistry, Injected

if TYPE_CHECKING:
    from hardpoint.testing.kubelet import Behaviour

_PRE_START = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """What a container has of a resource; in the checkpoint until its pod is over."""

    pod: str
    """The pod's UID."""
    container: str
    resource: str
    ids: tuple[str, ...]
    response: pb.ContainerAllocateResponse

    @property
    def cdi_ids(self) -> tuple[str, ...]:
        """The CDI names that the plugin answered."""
        return tuple(one.name for one in self.response.cdi_devices)


@dataclass(slots=True)
class _Choice:
    """Ids that are chosen for one container, step by step."""

    needed: int
    chosen: set[str] = field(default_factory=set)

    def take(self, ids: Iterable[str]) -> bool:
        """Take from some in no order; say whether there are enough."""
        rest = sorted(set(ids) - self.chosen)
        missing = self.needed - len(self.chosen)
        self.chosen |= set(random.sample(rest, min(missing, len(rest))))
        return len(self.chosen) == self.needed


class Devices:
    """Allocates what containers ask of extended resources."""

    def __init__(self, behaviour: Behaviour, plugins: DevicePlugins, runtime: CdiRegistry) -> None:
        self.allocated: list[Allocated] = []
        self.calls: list[tuple[str, str, tuple[str, ...]]] = []
        """Every call: the method, the resource, and the ids it was about."""
        self._behaviour, self._plugins, self._runtime = behaviour, plugins, runtime
        plugins.on_list = self.save

    # -- admission --------------------------------------------------------------------------------

    async def admit(self, pod: Pod, active: Collection[str], numa: Collection[int] | None) -> None:
        """Allocate for every container of a pod, init containers first. Raises ``PodFailed``.

        ``active`` are the UIDs of pods that are not over: what others had is free again. ``numa``
        are nodes that the topology manager wants.
        """
        self.keep(active)
        reusable: dict[str, set[str]] = {}
        for container in (*_init(pod), *_app(pod)):
            for resource, count in container.resources.items():
                if not self._is_known(resource):
                    continue
                try:
                    await self._allocate(pod, container.name, resource, count, reusable, numa)
                except PodFailed as error:
                    raise PodFailed(
                        "UnexpectedAdmissionError: Allocate failed due to "
                        f"{error}, which is unexpected"
                    ) from error
            self._settle_reusable(pod, container, reusable)
        _check_known(pod, self._plugins)

    def _is_known(self, resource: str) -> bool:
        """Say whether a plugin's: one that is registered, or that some container has ids of."""
        allocated = {one.resource for one in self.allocated}
        return resource in self._plugins.resources or resource in allocated

    def _settle_reusable(
        self, pod: Pod, container: Container, reusable: dict[str, set[str]]
    ) -> None:
        """Let later containers have an init container's ids; a sidecar keeps its own."""
        for one in self.of(pod, container.name):
            ids = reusable.setdefault(one.resource, set())
            if container.init and not container.restartable:
                ids.update(one.ids)
            else:
                ids.difference_update(one.ids)

    async def _allocate(
        self,
        pod: Pod,
        container: str,
        resource: str,
        count: int,
        reusable: Mapping[str, set[str]],
        numa: Collection[int] | None,
    ) -> None:
        if not count:
            return
        before = next((a for a in self.of(pod, container) if a.resource == resource), None)
        self._check_healthy(resource, before, count)
        if before is not None:
            return
        choice = _Choice(count)
        if not choice.take(reusable.get(resource, ())):
            await self._choose(resource, choice, numa)
        ids = tuple(sorted(choice.chosen))
        response = await self._call_allocate(resource, ids)
        self.allocated.append(
            Allocated(
                pod=pod.identity, container=container, resource=resource, ids=ids, response=response
            )
        )
        self.save()

    def _check_healthy(self, resource: str, before: Allocated | None, count: int) -> None:
        if resource not in self._plugins.resources:
            raise PodFailed(f"cannot allocate unregistered device {resource}")
        healthy = self._plugins.resources[resource].healthy
        if before is not None and len(before.ids) != count:
            raise PodFailed(f"request for {resource} changed from {len(before.ids)} to {count}")
        if not healthy:
            raise PodFailed(
                f"no healthy devices present; cannot allocate unhealthy devices {resource}"
            )
        if before is not None and not healthy.issuperset(before.ids):
            raise PodFailed(
                "previously allocated devices are no longer healthy; cannot allocate unhealthy "
                f"devices {resource}"
            )

    # -- choosing ---------------------------------------------------------------------------------

    async def _choose(self, resource: str, choice: _Choice, numa: Collection[int] | None) -> None:
        """Choose as the kubelet does: what is aligned first, by the plugin's preference in it."""
        available = self._plugins.resources[resource].healthy - self._in_use(resource)
        missing = choice.needed - len(choice.chosen)
        if len(available - choice.chosen) < missing:
            raise PodFailed(
                f"requested number of devices unavailable for {resource}. Requested: {missing}, "
                f"Available: {len(available - choice.chosen)}"
            )
        aligned = self._aligned(resource, available, numa)
        if missing < len(aligned):
            preferred = await self._preferred(resource, aligned, choice)
            if not choice.take(preferred & aligned):
                choice.take(aligned)
            return
        if choice.take(aligned):
            return
        preferred = await self._preferred(resource, available, choice)
        if not choice.take(preferred & available):
            choice.take(available)

    def _aligned(
        self, resource: str, available: set[str], numa: Collection[int] | None
    ) -> set[str]:
        if numa is None:
            return set()
        known = self._plugins.resources[resource].devices
        return {id_ for id_ in available if set(known[id_].numa) & set(numa)}

    def _in_use(self, resource: str) -> set[str]:
        return {id_ for one in self.allocated if one.resource == resource for id_ in one.ids}

    async def _preferred(self, resource: str, available: set[str], choice: _Choice) -> set[str]:
        """Ask the plugin, if it offers to be asked; what it answers is advice."""
        instance = self._plugins.newest(resource)
        if instance is None or not instance.preferred:
            return set()
        request = pb.PreferredAllocationRequest(
            container_requests=[
                pb.ContainerPreferredAllocationRequest(
                    available_deviceIDs=sorted(available | choice.chosen),
                    must_include_deviceIDs=sorted(choice.chosen),
                    allocation_size=choice.needed,
                )
            ]
        )
        ids = tuple(sorted(available))
        answer = await self._call(instance, "GetPreferredAllocation", ids, request, None)
        if not answer.container_responses:
            return set()
        return set(answer.container_responses[0].deviceIDs)

    # -- calls ------------------------------------------------------------------------------------

    async def _call_allocate(
        self, resource: str, ids: tuple[str, ...]
    ) -> pb.ContainerAllocateResponse:
        instance = self._plugins.newest(resource)
        if instance is None:
            raise PodFailed(f"endpoint of {resource} is stopped")
        request = pb.AllocateRequest(
            container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)]
        )
        answer = await self._call(instance, "Allocate", ids, request, None)
        if not answer.container_responses:
            raise PodFailed(f"no containers return in allocation response of {resource}")
        response: pb.ContainerAllocateResponse = answer.container_responses[0]
        return response

    async def _call(
        self,
        instance: PluginInstance,
        method: str,
        ids: tuple[str, ...],
        request: Any,
        timeout_s: float | None,
    ) -> Any:
        self.calls.append((method, instance.resource, ids))
        within = self._behaviour.allocate_timeout if timeout_s is None else timeout_s
        try:
            return await instance.call(method, request, within)
        except CallFailed as error:
            raise PodFailed(f"rpc error: code = {error.code} desc = {error.details}") from error

    # -- containers -------------------------------------------------------------------------------

    async def start(self, pod: Pod, container: str) -> Injected:
        """Start a container, or start it again: nothing is allocated, what was answered is used.

        Raises ``PodFailed`` where the plugin wanted to be asked first and refuses, and
        ``hardpoint.testing.cdi.CdiError`` where the runtime would not create the container.
        """
        owned = self.of(pod, container)
        for one in owned:
            instance = self._plugins.newest(one.resource)
            if instance is not None and instance.pre_start:
                request = pb.PreStartContainerRequest(devices_ids=one.ids)
                await self._call(instance, "PreStartContainer", one.ids, request, _PRE_START)
        names = dict.fromkeys(name for one in owned for name in one.cdi_ids)
        return _with_specs(self._runtime.inject(tuple(names)), [one.response for one in owned])

    # -- state ------------------------------------------------------------------------------------

    def of(self, pod: Pod, container: str) -> list[Allocated]:
        """Return what a container has."""
        return [a for a in self.allocated if (a.pod, a.container) == (pod.identity, container)]

    def resources(self) -> Mapping[str, Resource]:
        """Return every resource that a plugin has registered, by name."""
        self._plugins.expire()
        return self._plugins.resources

    def keep(self, active: Collection[str]) -> None:
        """Free what pods had that are over; the checkpoint says so at the next list."""
        self.allocated = [one for one in self.allocated if one.pod in active]

    @property
    def checkpoint(self) -> Path:
        """The file that survives the kubelet."""
        return self._plugins.directory / CHECKPOINT

    def save(self) -> None:
        """Write the checkpoint."""
        data = {
            "PodDeviceEntries": [_entry(one) for one in self.allocated],
            "RegisteredDevices": {
                name: sorted(resource.healthy) for name, resource in self._plugins.resources.items()
            },
        }
        checksum = zlib.crc32(json.dumps(data, sort_keys=True).encode())
        text = json.dumps({"Data": data, "Checksum": checksum})
        temporary = self.checkpoint.with_name(f".{CHECKPOINT}")
        temporary.write_text(text)
        temporary.replace(self.checkpoint)

    def load(self) -> set[str]:
        """Read the checkpoint; return the resources that it names."""
        self.allocated = []
        if not self.checkpoint.exists():
            return set()
        data = json.loads(self.checkpoint.read_text())["Data"]
        self.allocated = [_allocated(entry) for entry in data["PodDeviceEntries"]]
        return set(data["RegisteredDevices"])

    def forget(self) -> None:
        """Lose the checkpoint."""
        self.checkpoint.unlink(missing_ok=True)


def _init(pod: Pod) -> Iterator[Container]:
    return (one for one in pod.containers if one.init)


def _app(pod: Pod) -> Iterator[Container]:
    return (one for one in pod.containers if not one.init)


def _check_known(pod: Pod, plugins: DevicePlugins) -> None:
    """Refuse what no plugin has ever registered here: the scheduler would not have sent the pod."""
    for container in pod.containers:
        for resource in container.resources:
            if resource not in plugins.resources:
                raise PodFailed(f"OutOf{resource}: node didn't have enough resource: {resource}")


def _entry(one: Allocated) -> dict[str, Any]:
    return {
        "PodUID": one.pod,
        "ContainerName": one.container,
        "ResourceName": one.resource,
        "DeviceIDs": {"-1": list(one.ids)},
        "AllocResp": base64.b64encode(one.response.SerializeToString()).decode(),
    }


def _allocated(entry: Mapping[str, Any]) -> Allocated:
    ids = [id_ for per_node in entry["DeviceIDs"].values() for id_ in per_node]
    response = pb.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
    return Allocated(
        pod=entry["PodUID"],
        container=entry["ContainerName"],
        resource=entry["ResourceName"],
        ids=tuple(ids),
        response=response,
    )


def _with_specs(injected: Injected, responses: Iterable[pb.ContainerAllocateResponse]) -> Injected:
    """Add what plugins answered beside CDI names; of two for one path the first is taken."""
    env: dict[str, str] = {}
    nodes: dict[str, Mapping[str, Any]] = {}
    mounts: dict[str, Mapping[str, Any]] = {}
    for response in responses:
        env.update(response.envs)
        for node in response.devices:
            nodes.setdefault(
                node.container_path,
                {
                    "path": node.container_path,
                    "hostPath": node.host_path,
                    "permissions": node.permissions,
                },
            )
        for mount in response.mounts:
            mounts.setdefault(
                mount.container_path,
                {
                    "containerPath": mount.container_path,
                    "hostPath": mount.host_path,
                    "options": ["ro"] if mount.read_only else ["rw"],
                },
            )
    return Injected(
        env=(*(f"{key}={value}" for key, value in env.items()), *injected.env),
        nodes=(*nodes.values(), *injected.nodes),
        mounts=(*mounts.values(), *injected.mounts),
        hooks=injected.hooks,
        gids=injected.gids,
    )
