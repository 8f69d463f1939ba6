"""Who holds what, and a reaper that looks: pods as a kubelet lists them, an API server, a clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pod_world import Pods

from hardpoint._core.ledger.grantrows import Meant
from hardpoint._core.ledger.records import Record
from hardpoint._core.plugins.discovery import Plugin, Plugins
from hardpoint._core.plugins.faults import FaultBoard
from hardpoint._core.plugins.relay import Relay
from hardpoint._core.pods.holding import Known
from hardpoint._core.pods.reaper import Reaper, Surroundings, timings_of
from hardpoint._core.pods.revoked import Granted
from hardpoint.allocation import Assignment, allocation_key
from hardpoint.contract import hookimpl
from hardpoint.errors import CallFailed, HardpointError, KubeUnreachable
from hardpoint.grants import HoldingPod, Reaped, ReapResult, Release, published_name
from hardpoint.kube import Kube
from hardpoint.model import Allotment, ClaimKey, Device, Domain, Event, HoldState
from hardpoint.node import Node
from hardpoint.testing.api_server import FakeApiServer
from hardpoint.testing.clock import ManualClock

NODE = "node-1"
DOMAIN = Domain.named("hardpoint.dev")
GPU = "hardpoint.dev/gpu"
WALL = 1_750_000_000.0
"""When every story begins, in seconds since 1970."""
HOUR = 3600.0


def gpu(name: str, kind: str = "gpu") -> Device:
    return Device(name=name, kind=kind, driver="gpus")


def stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Asked:
    """A policy that reaps nothing and remembers whom it was asked about."""

    def __init__(self, node: Node, settings: Any = None) -> None:
        self.calls: list[tuple[str, str, int]] = []
        """Pod, allocation of the release, attempt."""
        self.pods: list[HoldingPod] = []
        self.releases: list[Release] = []
        self.answer = ReapResult(Reaped.DELETED, "so a test says")
        self.looks_again = False
        """Whether it asks if the pod still holds on; what it was told is in ``held``."""
        self.held: list[bool | str] = []

    @hookimpl
    async def reap_pod(self, pod: HoldingPod, release: Release, attempt: int) -> ReapResult | None:
        self.calls.append((pod.name, release.allocation, attempt))
        self.pods.append(pod)
        self.releases.append(release)
        if self.looks_again:
            try:
                self.held.append(await pod.still_holds())
            except HardpointError as error:
                self.held.append(str(error))
        return self.answer


def record(device: Device, claim: ClaimKey, allocation: str = "", **changes: Any) -> Record:
    """What the ledger says of a hold."""
    allotment = Allotment(
        request="",
        device=device.name,
        pool=NODE,
        allocation=allocation,
        published=published_name(device.name, allocation) if allocation else "",
    )
    facts: dict[str, Any] = {"state": HoldState.HELD, "allotment": allotment, **changes}
    return Record(id=1, claim=claim, device=device, cdi_vendor="v", cdi_name="n", **facts)


@dataclass
class ReaperWorld:
    """One node. ``gpu`` and ``gpu.mig`` are governed."""

    server: FakeApiServer
    clock: ManualClock = field(default_factory=lambda: ManualClock(1000.0))
    pods: Pods = field(default_factory=Pods)
    granted: set[Granted] = field(default_factory=set)
    releases: list[Release] = field(default_factory=list)
    governed: set[str] = field(default_factory=lambda: {"gpu", "gpu.mig"})
    devices: list[Device] = field(default_factory=lambda: [gpu("gpu0"), gpu("gpu1")])
    domains: tuple[Domain, ...] = (DOMAIN,)
    announced: dict[tuple[str, str], Assignment] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    board: FaultBoard = field(default_factory=FaultBoard)
    events: list[Event] = field(default_factory=list)
    readable: bool = True
    """Whether every source of grants can be read."""
    writes: bool = True
    active: bool = True
    left: int = 0
    silent: str = ""
    """Why the kubelet is said not to answer."""
    connects: int = 0
    kube_down: bool = False
    unreadable_ledger: bool = False
    on_ask: Callable[[], None] = lambda: None
    jump: float = 0.0
    """What the node's wall clock is off by."""

    # -- time and grants --------------------------------------------------------------------------

    def wall(self) -> float:
        return WALL + self.clock.now() - 1000.0 + self.jump

    def grant(self, device: str, allocation: str) -> None:
        self.granted.add(Granted(DOMAIN.dra_driver, device, allocation))

    def revoke(self, device: str, allocation: str, source: str = "policy/cdi_grants") -> Release:
        """End a grant; its release begins."""
        self.granted.discard(Granted(DOMAIN.dra_driver, device, allocation))
        release = Release(
            id=f"release-{device}-{allocation}",
            allocation=allocation,
            source=source,
            devices=(gpu(device),),
            since=self.wall(),
            left=self.clock.now(),
            dra_drivers=(DOMAIN.dra_driver,),
        )
        self.releases.append(release)
        return release

    # -- pods -------------------------------------------------------------------------------------

    def pod(
        self, name: str, *ids: str, born: float | None = None, resource: str = GPU, **body: Any
    ) -> str:
        """Run a pod, an hour old unless said, with these ids; return its UID."""
        self.pods.has(name, *ids, resource=resource)
        return self.api_pod(name, born=born, **body)

    def api_pod(
        self,
        name: str,
        *,
        born: float | None = None,
        started: float | None = None,
        node: str = NODE,
        namespace: str = "ns",
        metadata: dict[str, Any] | None = None,
        spec: dict[str, Any] | None = None,
        status: dict[str, Any] | None = None,
    ) -> str:
        """Create what the API server knows of a pod; return its UID."""
        at = self.wall() - HOUR if born is None else born
        made = self.server.add(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": namespace, **(metadata or {})},
                "spec": {
                    "nodeName": node,
                    "containers": [{"name": "main", "image": "i"}],
                    **(spec or {}),
                },
                "status": {
                    "phase": "Running",
                    "startTime": stamp(at if started is None else started),
                    "containerStatuses": [
                        {
                            "name": "main",
                            "image": "i",
                            "imageID": "i",
                            "ready": True,
                            "restartCount": 0,
                            "state": {"running": {"startedAt": stamp(at)}},
                        }
                    ],
                    **(status or {}),
                },
            }
        )
        self.server.edit("pods", name, namespace).change(
            lambda pod: pod["metadata"].update(creationTimestamp=stamp(at))
        )
        return str(made["metadata"]["uid"])

    def gone(self, name: str) -> None:
        """End a pod, everywhere."""
        self.pods.listed.pop(name, None)
        if name in self.pods_there():
            self.server.remove("pods", name, "ns")

    def pods_there(self) -> dict[str, dict[str, Any]]:
        """What the API server has, by name."""
        return {one["metadata"]["name"]: one for one in self.server.items("pods")}

    def claim(
        self,
        name: str,
        device: str,
        allocation: str = "",
        *,
        pods: Iterable[tuple[str, str]] = (),
        written: bool = True,
        driver: str = DOMAIN.dra_driver,
        pool: str = NODE,
        groups: Iterable[str] = (),
    ) -> ClaimKey:
        """Allocate a claim a device, for pods (name and UID), and write the hold down."""
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "ns"},
            "spec": {
                "devices": {
                    "requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}],
                }
            },
        }
        made = self.server.add(body)
        published = published_name(device, allocation)
        reserved = [{"resource": "pods", "name": pod, "uid": uid} for pod, uid in pods]
        gang = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "uid": "g"}
        reserved += [{**gang, "name": group} for group in groups]
        result = {"request": "r", "driver": driver, "pool": pool, "device": published}
        self.server.allocate("ns", name, [result], reserved_for=reserved)
        key = ClaimKey(made["metadata"]["uid"], "ns", name, driver)
        if written:
            self.records.append(record(gpu(device), key, allocation))
        return key

    def hold(self, id_: str, device: Device, allocation: str = "", resource: str = GPU) -> None:
        """Write down what the kubelet was given under an id."""
        key = allocation_key(resource, id_, DOMAIN.dra_driver)
        self.records.append(record(device, key, allocation))

    # -- what the reaper is told ------------------------------------------------------------------

    def known(self) -> Known:
        return Known(
            pods=self.pods,
            records=self,
            kube=self._connect,
            granted=lambda: set(self.granted),
            releases=lambda: tuple(self.releases),
            governed=lambda kind: kind in self.governed,
            known=lambda: self.readable,
            devices=lambda: [Meant(DOMAIN.dra_driver, one) for one in self.devices],
            domains=lambda: self.domains,
            announced=lambda: self.announced,
        )

    async def read(self) -> tuple[Record, ...]:
        if self.unreadable_ledger:
            raise CallFailed("ledger", "reading", "UNAVAILABLE")
        return tuple(self.records)

    def _connect(self) -> Kube:
        self.connects += 1
        if self.kube_down:
            raise KubeUnreachable("the API server is away")
        return Kube.at(self.server.url)

    connect = _connect

    async def _ask(self) -> bool:
        self.on_ask()
        return self.readable

    def told(self, name: str) -> list[str]:
        return [event.facts["pod"] for event in self.events if event.name == name]


@dataclass
class Watching:
    """A reaper in its world, with the policies that were given."""

    world: ReaperWorld
    reaper: Reaper
    relay: Relay

    @property
    def policy(self) -> Any:
        """The first policy's object."""
        return self.relay.plugins.all[0].instance

    async def look(self, after: float = 0.0) -> None:
        self.world.clock.advance(after)
        await self.reaper.sweep()


@asynccontextmanager
async def reaping(world: ReaperWorld, *policies: type, **settings: Any) -> AsyncIterator[Watching]:
    """Run a reaper with these policies, called as the agent calls them."""
    plugins = Plugins()
    for number, policy in enumerate(policies):
        plugin = Plugin("policy", f"p{number}-{policy.__name__.lower()}", loaded=policy)
        plugins.all.append(plugin)
        plugins.start(plugin, Node(name=NODE), settings if hasattr(policy, "Settings") else {})
        assert plugin.state == "running", plugin.reason

    def left() -> None:
        world.left += 1

    async with Relay(plugins, world.board) as relay:
        around = Surroundings(
            known=world.known(),
            hooks=relay,
            board=world.board,
            agent=world,
            active=lambda: world.active,
            ask=world._ask,
            writing=lambda: world.writes,
            report=world.events.append,
            left=left,
            silent=lambda why: setattr(world, "silent", why),
            timings=lambda: timings_of(plugin.instance for plugin in plugins.all),
        )
        reaper = Reaper(around, node=NODE, clock=world.clock.now, wall=world.wall)
        yield Watching(world, reaper, relay)


__all__ = [
    "DOMAIN",
    "GPU",
    "HOUR",
    "NODE",
    "WALL",
    "Asked",
    "ReaperWorld",
    "Watching",
    "gpu",
    "reaping",
    "record",
    "stamp",
]
