"""Pods as a kubelet lists them, and an agent's watch over what they have."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from broker_world import DOMAIN, World

from hardpoint._core.claims.allocations import Allocations
from hardpoint._core.claims.broker import Broker
from hardpoint._core.plugins.faults import FaultBoard
from hardpoint._core.pods.podwatch import PodWatch, Surroundings
from hardpoint.allocation import Allocation, Assigned, Assignment
from hardpoint.errors import CallFailed
from hardpoint.kubelet.pods import HeldDevice, HeldResource, PodUse
from hardpoint.kubelet.podsource import CHECKPOINT, Checkpoint, Kubelet
from hardpoint.testing.clock import ManualClock

CARD = "hardpoint.dev/card"


def assignment(device: str) -> Assignment:
    """A card, under its own name."""
    return Assignment(resource=CARD, id=device, device=device, domain=DOMAIN)


@dataclass
class Pods:
    """What the kubelet answers. ``broken`` is raised; ``reads`` counts the lists."""

    listed: dict[str, PodUse] = field(default_factory=dict)
    broken: str = ""
    served: Kubelet | None = field(default_factory=lambda: Kubelet(1, 1, 1))
    reads: int = 0
    named: dict[str, PodUse] = field(default_factory=dict)
    """Answers of ``get`` that the list lacks."""
    written: Checkpoint = field(default_factory=Checkpoint)
    unreadable: str = ""
    """Why the checkpoint cannot be read."""
    silent: bool = False
    """True for a kubelet that writes no checkpoint when a list is said again."""
    looks: int = 0

    def has(self, pod: str, *ids: str, resource: str = CARD) -> None:
        held = (HeldResource(container="main", resource=resource, ids=ids),) if ids else ()
        self.listed[pod] = PodUse(namespace="ns", name=pod, resources=held)

    def claims(self, pod: str, claim: str, device: str) -> None:
        held = HeldDevice(
            container="main",
            claim_namespace="ns",
            claim_name=claim,
            driver=DOMAIN.dra_driver,
            pool="node-1",
            device=device,
        )
        self.listed[pod] = PodUse(namespace="ns", name=pod, devices=(held,))

    def writes(self, *ids: str, at: int) -> None:
        """Write the checkpoint, at a moment of its own."""
        self.written = Checkpoint(frozenset((CARD, id_) for id_ in ids), (1, at))

    def gone(self, pod: str) -> None:
        del self.listed[pod]

    def restart(self) -> None:
        """Another kubelet serves, whose socket may have the same inode number."""
        assert self.served is not None
        self.served = replace(self.served, changed=self.served.changed + 1)

    # -- hardpoint._core.pods.podwatch.Pods -------------------------------------------------------

    def kubelet(self) -> Kubelet | None:
        return self.served

    async def list(self) -> tuple[PodUse, ...]:
        self.reads += 1
        self._check()
        return tuple(self.listed.values())

    async def get(self, namespace: str, name: str) -> PodUse | None:
        self._check()
        return self.named.get(name) or self.listed.get(name)

    def written_at(self) -> tuple[int, int]:
        """Be written anew at each look: the frontend says its list again meanwhile."""
        self.looks += not self.silent
        return 1, self.looks

    async def checkpoint(self) -> Checkpoint:
        if self.unreadable:
            raise CallFailed(CHECKPOINT, "reading", "UNAVAILABLE", self.unreadable)
        return self.written

    def _check(self) -> None:
        if self.broken:
            raise CallFailed("kubelet.sock", "PodResourcesLister.List", "UNAVAILABLE", self.broken)


@dataclass
class Watched:
    """A broker with its allocations and the watch over them; time stands still."""

    broker: Broker
    allocations: Allocations
    watch: PodWatch
    pods: Pods
    board: FaultBoard
    clock: ManualClock

    async def allocate(self, *wanted: Assignment) -> tuple[Assigned, ...]:
        return await self.allocations.allocate(wanted)

    def shown(self) -> tuple[Allocation, ...]:
        return self.allocations.shown()

    async def look(self, after: float = 10.0) -> bool:
        """Let time pass and look."""
        self.clock.advance(after)
        return await self.watch.look()

    async def settle(self) -> None:
        """Look until a kubelet is known to know its pods."""
        for _ in range(5):
            await self.look()

    def devices(self) -> list[str]:
        return [hold.device.name for hold in self.broker.holds()]


def watched(
    world: World, broker: Broker, pods: Pods, itself: tuple[str, str] | None = None
) -> Watched:
    """Put a watch beside a broker, as the agent does."""
    board, ledger = FaultBoard(), broker._ledger
    around = Surroundings(
        pods=pods,
        holder=broker,
        records=ledger,
        board=board,
        offer=world.offer,
        writing=world.writing,
        changed=lambda: None,
    )
    clock = ManualClock(1000.0)
    watch = PodWatch(around, node="node-1", itself=itself, clock=clock.now)
    allocations = Allocations(broker, ledger, watch, pool="node-1", report=world.events.append)
    broker._upkeep._listed = watch.find_again
    return Watched(broker, allocations, watch, pods, board, clock)


__all__ = ["CARD", "Pods", "Watched", "assignment", "watched"]
