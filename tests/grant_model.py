"""A node under grants, for a model of who may use which device: what is true, and who finds it out.

The truth is a table: which grants the source states, which pods run, and whose processes have which
device. The agent is real; the kubelet, the source and the evidence answer by the table, or fail.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from pod_world import Pods

import hardpoint._core.agent as agent_module
from hardpoint import (
    Device,
    DeviceNode,
    Evidence,
    Grant,
    GrantedDevice,
    GrantOutcome,
    Release,
    exclusive,
    hookimpl,
)
from hardpoint._core.agent import HardpointAgent
from hardpoint._core.plugins.discovery import Plugin, Plugins
from hardpoint._core.pods.reaper import Reaper
from hardpoint.agent import Agent
from hardpoint.errors import HoldError
from hardpoint.grants import published_name
from hardpoint.kube import Kube
from hardpoint.kubelet.pods import PodUse
from hardpoint.model import Allotment, Claim, ClaimKey
from hardpoint.policies import pod_resources
from hardpoint.policies.pod_reaper import PodReaper
from hardpoint.policies.pod_resources import PodResourcesUsers
from hardpoint.settings import AgentSettings, PathSettings
from hardpoint.testing.api_server import FakeApiServer
from hardpoint.testing.clock import ManualClock
from hardpoint.testing.sysfs import FakeMachine

DEVICES = ("d0", "d1", "d2")
ALLOCATIONS = ("a", "b", "c")
DRIVER = "hardpoint.dev"
NODE = "node-1"
_SECTIONS = {
    "pod_reaper": {"pods_per_minute": 1000, "first_after_s": 1, "again_after_s": 1},
    "pod_resources": {"settle": 0},
}
"""So that few steps lead to a deletion or a release; what the seconds are is tested elsewhere."""


@dataclass
class Pod:
    """A pod with a claim of its own on one device."""

    name: str
    uid: str
    device: str
    allocation: str
    key: ClaimKey
    alive: bool = True
    """A process of it runs, that may have the device open."""
    listed: bool = True
    """The kubelet knows of it."""


@dataclass
class Truth:
    """What is so, and who cannot say."""

    grants: dict[str, frozenset[str]] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    """By UID; those that are over too, while a process of theirs runs."""
    source_fails: bool = False
    kubelet_fails: bool = False
    evidence_fails: bool = False
    api_fails: bool = False
    wrong: list[str] = field(default_factory=list)
    """What must never be."""
    released: list[str] = field(default_factory=list)
    reaped: int = 0
    seen: dict[str, frozenset[str]] = field(default_factory=dict)
    """The grants when they were last read well."""

    def is_in_force(self, allocation: str, devices: frozenset[str], agent: Agent) -> bool:
        """Say whether a grant of devices is stated, was seen, and is offered by the agent."""
        wanted = self.grants.get(allocation, frozenset())
        if not wanted & devices or wanted != self.seen.get(allocation):
            return False
        offered = {one.name for one in agent.offer.devices if one.allocation == allocation}
        return bool(offered & devices)

    def users(self, devices: frozenset[str], allocation: str) -> list[str]:
        """Return the pods whose processes have a device of an allocation."""
        return [
            pod.uid
            for pod in self.pods.values()
            if pod.alive and pod.device in devices and pod.allocation == allocation
        ]


class _Driver:
    def __init__(self, node: object, settings: object) -> None: ...

    @hookimpl
    def publish_devices(self) -> list[Device]:
        return [
            Device(
                name=name,
                kind="thing",
                nodes=(DeviceNode(path=f"/dev/{name}", major=240, minor=number),),
                parts=(exclusive(f"slot:{name}"),),
            )
            for number, name in enumerate(DEVICES)
        ]


def _source(truth: Truth) -> type:
    class Source:
        kinds = ("thing",)

        def __init__(self, node: object, settings: object) -> None: ...

        @hookimpl
        def grant_devices(self) -> list[Grant]:
            if truth.source_fails:
                raise OSError("not to be read")
            return [
                Grant(
                    allocation=allocation,
                    devices=tuple(GrantedDevice(name=name) for name in sorted(devices)),
                )
                for allocation, devices in sorted(truth.grants.items())
            ]

        @hookimpl
        def report_grant(self, grant: Grant, outcome: GrantOutcome) -> None: ...

        @hookimpl
        def report_release(self, grant: Grant, release: Release, agent: Agent) -> None:
            users = truth.users(frozenset(release.names), grant.allocation)
            if users:
                truth.wrong.append(f"{release} is reported while {users} have its devices")
            if truth.is_in_force(grant.allocation, frozenset(release.names), agent):
                truth.wrong.append(f"{release} is reported, and its grant is in force again")
            truth.released.append(grant.allocation)

    return Source


def _processes(truth: Truth) -> type:
    class Processes:
        """What kubepods_processes finds."""

        def __init__(self, node: object, settings: object) -> None: ...

        @hookimpl
        def find_users(self, release: Release) -> Evidence:
            began = time.monotonic()
            if truth.evidence_fails:
                raise OSError("/proc is not to be read")
            users = [
                pod.uid for pod in truth.pods.values() if pod.alive and pod.device in release.names
            ]
            return Evidence.used_by(began, *users) if users else Evidence.none(began)

    return Processes


class Kubelet(Pods):
    """What the kubelet answers; one that has just started lists nobody until it knows its pods."""

    is_new = False

    async def list(self) -> tuple[PodUse, ...]:
        listed = await super().list()
        return () if self.is_new else listed

    async def get(self, namespace: str, name: str) -> PodUse | None:
        found = await super().get(namespace, name)
        return None if self.is_new else found

    def start_anew(self) -> None:
        """Another one serves, which the API server has told of no pod yet."""
        self.restart()
        self.is_new = True


class GrantNode:
    """The node and the agent on it; every step waits until what it leads to is done."""

    def __init__(self, root: Path, server: FakeApiServer) -> None:
        self.root, self.server = root, server
        self.truth, self.pods, self.clock = Truth(), Kubelet(), ManualClock(1000.0)
        self.pods.has("bystander")
        self.machine = FakeMachine(root / "machine")
        for number, name in enumerate(DEVICES):
            self.machine.platform(f"acme-{name}").node("things", name, 240, number)
        self.paths = PathSettings(state=root / "state", cdi=root / "cdi", kubelet=root / "kubelet")
        self.agent: HardpointAgent
        self._fresh = itertools.count(1)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run an agent until the block ends; time stands still for what it would do by itself."""
        plugins = Plugins(
            [
                Plugin("driver", "things", loaded=_Driver),
                Plugin("policy", "source", loaded=_source(self.truth)),
                Plugin("policy", "processes", loaded=_processes(self.truth)),
                Plugin("policy", "pod_resources", loaded=PodResourcesUsers),
                Plugin("policy", "pod_reaper", loaded=PodReaper),
            ]
        )
        node = self.machine.node()
        node.name = NODE
        for plugin in plugins.all:
            plugins.start(plugin, node, _SECTIONS.get(plugin.name, {}))
            assert plugin.state == "running", plugin.reason
        settings = AgentSettings(paths=self.paths, node_name=NODE)
        with pytest.MonkeyPatch.context() as patch:
            for module in (agent_module, pod_resources):
                patch.setattr(module, "PodSource", lambda *_: self.pods)
            patch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")  # the machine is a worker
            patch.setattr(Reaper, "run", lambda _: anyio.sleep_forever())  # it looks when told to
            agent = HardpointAgent(settings, node, instance="", plugins=plugins, events=False)
            agent.connect = lambda: self._connect()  # type: ignore[method-assign]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(agent.run)
                with anyio.fail_after(10):
                    await agent.started.wait()
                self.agent = agent
                agent.policies.reaper._clock = self.clock.now
                agent.policies.granting._sources.ticks = self.clock.now
                yield
                tasks.cancel_scope.cancel()

    def _connect(self) -> Kube:
        return Kube.at("http://127.0.0.1:9" if self.truth.api_fails else self.server.url)

    # -- pods -------------------------------------------------------------------------------------

    async def start_pod(self, name: str, device: str) -> bool:
        """Let a pod be placed with the device that the offer shows now; say whether it runs."""
        await self._offered()
        offered = self.agent.offer.find(device)
        if offered is None or name in {pod.name for pod in self._listed()}:
            return False
        if name in {one["metadata"]["name"] for one in self.server.items("pods")}:
            return False
        pod = self._place(name, device, offered.allocation)
        try:
            await self.agent.prepare(pod.key, self._reading(pod))
        except HoldError:
            self._forget(pod)
            return False
        granted = self.truth.grants.get(pod.allocation, frozenset())
        if device not in granted and not self.truth.source_fails:
            self.truth.wrong.append(f"{name} got {device} of {pod.allocation}: {granted}")
        self.truth.pods[pod.uid] = pod
        self.pods.is_new = False  # whoever starts a pod has heard of all
        self.pods.claims(name, pod.key.name, published_name(device, pod.allocation))
        return True

    def _place(self, name: str, device: str, allocation: str) -> Pod:
        number = next(self._fresh)
        claim = f"claim-{number}"
        published = published_name(device, allocation)
        made = self.server.add(_pod(name))
        uid, at = str(made["metadata"]["uid"]), made["status"]["startTime"]
        self.server.edit("pods", name, "ns").change(
            lambda pod: pod["metadata"].update(creationTimestamp=at)
        )
        body = self.server.add(_claim(claim))
        key = ClaimKey(str(body["metadata"]["uid"]), "ns", claim, DRIVER)
        result = {"request": "r", "driver": DRIVER, "pool": NODE, "device": published}
        pods = [{"resource": "pods", "name": name, "uid": uid}]
        self.server.allocate("ns", claim, [result], reserved_for=pods)
        return Pod(name, uid, device, allocation, key)

    def _reading(self, pod: Pod) -> Callable[[], Awaitable[Claim]]:
        async def read() -> Claim:
            one = Allotment(
                request="r",
                device=pod.device,
                pool=NODE,
                allocation=pod.allocation,
                published=published_name(pod.device, pod.allocation),
            )
            return Claim(key=pod.key, allotments=(one,))

        return read

    def _listed(self) -> list[Pod]:
        return [pod for pod in self.truth.pods.values() if pod.listed]

    async def end_pod(self, pod: Pod, *, process_stays: bool = False) -> None:
        """Let the kubelet end a pod; with a process that stays, as after a forced deletion."""
        pod.alive = process_stays
        pod.listed = False
        self.pods.listed.pop(pod.name, None)
        await self.agent.unprepare(pod.key)
        self._forget(pod)
        if not process_stays:
            del self.truth.pods[pod.uid]

    def _forget(self, pod: Pod) -> None:
        there = {one["metadata"]["uid"]: one for one in self.server.items("pods")}
        if pod.uid in there:
            self.server.remove("pods", pod.name, "ns")
        self.server.remove("resourceclaims", pod.key.name, "ns")

    # -- time and looks ---------------------------------------------------------------------------

    async def settle(self) -> None:
        """Let the agent look at the grants and at releases, and wait for what follows."""
        self.pods.broken = "away" if self.truth.kubelet_fails else ""
        if await self.agent.policies.granting.settle():
            self.truth.seen = dict(self.truth.grants)
        await self.agent.policies.releases.look()
        await self._offered()
        await self.agent.policies.releases.look()
        await self._offered()

    async def _offered(self) -> None:
        """Wait until what is offered follows from all that is so: the pass after the next."""
        for _ in range(3):
            made = self.agent.policies.granting._made
            self.agent._offering.touch()
            with anyio.fail_after(10):
                await made.wait()

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and the reaper look; kubelets end what it deleted."""
        for _ in range(2):
            self.clock.advance(seconds)
            await self.settle()
            before = self._there()
            await self.agent.policies.reaper.sweep()
            for uid in before - self._there():
                await self._reaped(uid)

    def _there(self) -> set[str]:
        """Return the UIDs of pods that nobody has deleted."""
        return {
            str(one["metadata"]["uid"])
            for one in self.server.items("pods")
            if not one["metadata"].get("deletionTimestamp")
        }

    async def _reaped(self, uid: str) -> None:
        self.truth.reaped += 1
        pod = self.truth.pods.get(uid)
        if pod is None:
            self.truth.wrong.append(f"a pod was deleted that has no device: {uid}")
            return
        if pod.device in self.truth.grants.get(pod.allocation, frozenset()):
            self.truth.wrong.append(f"{pod.name} was deleted, and {pod.allocation} is in force")
        await self.end_pod(pod)


def _pod(name: str) -> dict[str, Any]:
    at = datetime.fromtimestamp(time.time() - 3600, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "i"}]},
        "status": {"phase": "Running", "startTime": at},
    }


def _claim(name: str) -> dict[str, Any]:
    request = {"name": "r", "exactly": {"deviceClassName": "thing"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {"devices": {"requests": [request]}},
    }
