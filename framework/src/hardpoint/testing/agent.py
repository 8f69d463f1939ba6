"""An agent for tests of frontends: an offer that a test changes, and calls that it can look at."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from hardpoint.agent import Paths
from hardpoint.allocation import Allocation, Assigned, Assignment, PodUser, RankRequest
from hardpoint.cdi import device_name, qualified
from hardpoint.cdi_files import CdiDirectory
from hardpoint.errors import HoldDenied, KubeUnreachable
from hardpoint.model import (
    Allotment,
    Claim,
    ClaimKey,
    Delivery,
    Device,
    Domain,
    Event,
    Health,
    Hold,
    HoldState,
    Offer,
    Offered,
    PreparedDevice,
)
from hardpoint.node import Node
from hardpoint.testing._fake_allocations import FakeAllocations, variable
from hardpoint.testing._fake_state import FakeState
from hardpoint.testing._fake_status import status_of

if TYPE_CHECKING:
    from hardpoint.kube import Kube


class FakeAgent(FakeState):
    """Keeps ``hardpoint.agent.Agent``'s promises without drivers, ledger or policies.

    A claim is held if its devices are offered and claimable; its CDI file sets one variable for
    each device, ``HARDPOINT_<NAME>=<claim UID>``, so that a container shows what it was given. An
    allocation is held if its device is healthy and nobody else has it; its file sets the variable
    to the id, and has those nodes of the device whose numbers are known.
    """

    advice: tuple[str, ...] = ()
    """What drivers answer to ``rank_devices``; no opinion at first."""

    def __init__(
        self,
        root: Path,
        *,
        node: Node | None = None,
        domains: Iterable[Domain] = (Domain.named("hardpoint.dev"),),
        instance: str = "",
        writing: bool = True,
        kube: Callable[[], Kube] | None = None,
    ) -> None:
        super().__init__()
        self.node = node or Node(name="node-1", recorded=True)
        self.paths = paths_below(root)
        self.instance = instance
        self.domains = tuple(domains)
        self.offer = Offer(generation=1)
        self.faults: dict[str, list[str]] = {}
        """Messages by source; ``clear_fault`` removes the source."""
        self.events: list[Event] = []
        self.prepared: list[ClaimKey] = []
        """Every call, in the order in which they came."""
        self.unprepared: list[ClaimKey] = []
        self.claims: dict[str, Claim] = {}
        """What is held, by UID and driver."""
        self.refuse: Exception | None = None
        """Raised by ``prepare``, ``unprepare`` and ``allocate`` while set."""
        self.gate = anyio.Event()
        """``prepare``, ``unprepare`` and ``allocate`` wait for it; open at first."""
        self.gate.set()
        self.notes: dict[str, Mapping[str, object]] = {}
        """The last of each source."""
        self._kube = kube
        self._holds: dict[str, tuple[Hold, ...]] = {}
        self._changed = anyio.Event()
        self._writing = anyio.Event()
        if writing:
            self._writing.set()
        self.paths.cdi.mkdir(parents=True, exist_ok=True)
        self._begin_allocations()

    def _begin_allocations(self) -> None:
        self.allocated: list[tuple[Assignment, ...]] = []
        """Every call of ``allocate``, in the order in which they came."""
        self.announced: dict[str, tuple[Assignment, ...]] = {}
        """The last of each resource."""
        self.users: dict[tuple[str, str], tuple[PodUser, ...]] = {}
        """Which pods a test says have a resource's id; what is left out is not known."""
        self._allocations = FakeAllocations(CdiDirectory(self.paths.cdi), self._claimed)

    # -- what a test does -------------------------------------------------------------------------

    def show(self, *devices: Device | Offered, complete: bool = True) -> None:
        """Offer these devices, in the first domain unless they say otherwise."""
        offered = tuple(
            one if isinstance(one, Offered) else Offered(device=one, domain=self.domains[0])
            for one in devices
        )
        generation = self.offer.generation + 1
        self.offer = Offer(generation=generation, devices=offered, complete=complete)
        self._wake()

    def set_health(self, name: str, health: Health) -> None:
        """Change what is known of an offered device's health."""
        self.show(
            *(
                replace(one, health=health if one.name == name else one.health)
                for one in self.offer.devices
            )
        )

    def end(self, resource: str, id_: str) -> None:
        """End an allocation, as two reads of pod-resources without it do."""
        self._allocations.end(resource, id_)
        self._wake()

    def become_writer(self) -> None:
        """The other of two agents is gone."""
        self._writing.set()

    def become_idle(self) -> None:
        """The other of two agents is the one that writes."""
        self._writing = anyio.Event()

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
        self._alter()

    # -- the protocol -----------------------------------------------------------------------------

    async def offers(self) -> AsyncIterator[Offer]:
        """Yield the offer now and after each change."""
        last = -1
        while True:
            changed = self._changed
            if self.offer.generation != last:
                last = self.offer.generation
                yield self.offer
            else:
                await changed.wait()

    async def prepare(
        self, key: ClaimKey, read: Callable[[], Awaitable[Claim]]
    ) -> tuple[PreparedDevice, ...]:
        """Hold a claim's devices and write its CDI file."""
        self.prepared.append(key)
        self._wake()
        await self.gate.wait()
        if self.refuse is not None:
            raise self.refuse
        name = _name(key)
        claim = self.claims.get(name) or await read()
        holds = tuple(self._hold(key, allotment) for allotment in claim.allotments)
        self.claims[name], self._holds[name] = claim, holds
        if claim.allotments:
            CdiDirectory(self.paths.cdi).write(
                self._vendor(key), key.uid, self._deliveries(key, claim)
            )
        return tuple(self._answer(key, allotment) for allotment in claim.allotments)

    async def unprepare(self, key: ClaimKey) -> None:
        """End a claim's holds."""
        self.unprepared.append(key)
        self._wake()
        await self.gate.wait()
        if self.refuse is not None:
            raise self.refuse
        self.claims.pop(_name(key), None)
        self._holds.pop(_name(key), None)
        CdiDirectory(self.paths.cdi).remove(self._vendor(key), key.uid)

    async def allocate(self, wanted: Sequence[Assignment]) -> tuple[Assigned, ...]:
        """Hold devices, all or none, and write a CDI file for each."""
        self.allocated.append(tuple(wanted))
        self._wake()
        await self.gate.wait()
        if self.refuse is not None:
            raise self.refuse
        return self._allocations.allocate(wanted, self.offer)

    def allocations(self) -> tuple[Allocation, ...]:
        """Every device that is held under an id."""
        return self._allocations.show(self.users)

    async def rank(self, driver: str, request: RankRequest) -> tuple[str, ...]:
        """Return what the test says."""
        return tuple(name for name in self.advice if name in request.available)

    def announce(self, resource: str, assignments: Sequence[Assignment]) -> None:
        """Keep what was announced for the test to look at."""
        self.announced[resource] = tuple(assignments)
        self._wake()

    def holds(self) -> tuple[Hold, ...]:
        """Every hold."""
        return (*self._claimed(), *self._allocations.holds())

    def writing(self) -> bool:
        """Say whether this process is the one that writes."""
        return self._writing.is_set()

    async def until_writing(self) -> None:
        """Wait until this process is the one that writes."""
        await self._writing.wait()

    def connect(self) -> Kube:
        """Return what the test gave as ``kube``."""
        if self._kube is None:
            raise KubeUnreachable("this test has no API server")
        return self._kube()

    def status(self) -> Mapping[str, Any]:
        """Return what is so here, in the words of ``hardpoint status --json``."""
        return status_of(self)

    def note(self, source: str, facts: Mapping[str, object]) -> None:
        """Keep a note for the test to look at."""
        self.notes[source] = dict(facts)
        self._wake()

    def on_fault(self, source: str, message: str) -> None:
        """Keep a fault for the test to look at."""
        self.faults.setdefault(source, []).append(message)
        self._wake()

    def clear_fault(self, source: str) -> None:
        """Forget a fault."""
        self.faults.pop(source, None)
        self._wake()

    def report(self, event: Event) -> None:
        """Keep an event for the test to look at."""
        self.events.append(event)
        self._wake()

    async def until(self, condition: Callable[[], bool], within: float = 10.0) -> None:
        """Wait until something is true of this agent. Raises ``TimeoutError``."""
        with anyio.fail_after(within):
            while not condition():
                await self._changed.wait()

    # -- holds ------------------------------------------------------------------------------------

    def _claimed(self) -> tuple[Hold, ...]:
        return tuple(hold for holds in self._holds.values() for hold in holds)

    def _hold(self, key: ClaimKey, allotment: Allotment) -> Hold:
        offered = self.offer.find(allotment.device, key.dra_driver)
        if offered is None or not offered.claimable:
            raise HoldDenied(f"device {allotment.device} is not offered", reason="not-offered")
        if offered.allocation != allotment.allocation:
            raise HoldDenied(f"device {allotment.device} is granted to another", reason="revoked")
        return Hold(
            claim=key,
            device=offered.device,
            request=allotment.request,
            share_id=allotment.share_id,
            state=HoldState.HELD,
            allocation=allotment.allocation,
        )

    def _answer(self, key: ClaimKey, allotment: Allotment) -> PreparedDevice:
        return PreparedDevice(
            request=allotment.request,
            pool=allotment.pool,
            device=allotment.published or allotment.device,
            cdi_ids=(qualified(self._vendor(key), _cdi_name(key, allotment)),),
            share_id=allotment.share_id,
        )

    def _vendor(self, key: ClaimKey) -> str:
        return next(
            domain.cdi_vendor for domain in self.domains if domain.dra_driver == key.dra_driver
        )

    def _deliveries(self, key: ClaimKey, claim: Claim) -> list[tuple[str, Delivery]]:
        names = {_cdi_name(key, one): one.device for one in claim.allotments}
        return [(name, Delivery(env={variable(device): key.uid})) for name, device in names.items()]


def paths_below(root: Path) -> Paths:
    """Return the host's directories, all below a test's own."""
    return Paths(
        state=root / "state",
        cdi=root / "cdi",
        kubelet=root / "kubelet",
        device_plugins=root / "device-plugins",
    )


def _name(key: ClaimKey) -> str:
    return f"{key.uid} {key.dra_driver}"


def _cdi_name(key: ClaimKey, allotment: Allotment) -> str:
    return device_name(key.uid, allotment.device, allotment.share_id, allotment.request)
