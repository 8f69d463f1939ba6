"""The agent: everything that runs on a node, under one task group.

This is the composition root. What each part does is in its own module; here they are made, wired
and started in the one order that is safe: ledger, drivers, held claims made true, frontends.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from hardpoint._core.claims.allocations import Allocations
from hardpoint._core.claims.broker import Broker
from hardpoint._core.cluster import connect
from hardpoint._core.grants.lost import WRITER, open_ledger
from hardpoint._core.grants.policyside import PolicyFace, PolicySide
from hardpoint._core.ledger.ledger import Ledger
from hardpoint._core.ledger.locks import ClaimLocks, WriterLock
from hardpoint._core.offer.afterudev import AfterUdev
from hardpoint._core.offer.inventory import Facts, Listing, difference
from hardpoint._core.offer.moments import say_disputes, standing_of, what_is_held
from hardpoint._core.offer.offering import Offering
from hardpoint._core.offer.scanner import Scanner
from hardpoint._core.offer.shares import FrontendView, Shares
from hardpoint._core.offer.uevents import listen
from hardpoint._core.offline import idle_sections, shares, start_plugins
from hardpoint._core.plugins.discovery import Plugins
from hardpoint._core.plugins.faults import FaultBoard
from hardpoint._core.plugins.loopwatch import LoopWatch
from hardpoint._core.plugins.observing import Observers
from hardpoint._core.plugins.ranking import Ranking
from hardpoint._core.plugins.relay import Relay
from hardpoint._core.pods.absence import Pace
from hardpoint._core.pods.holding import Known
from hardpoint._core.pods.podwatch import SOURCE, PodWatch, Surroundings
from hardpoint._core.reporting import Reporter
from hardpoint._core.signals import Signal
from hardpoint._core.state import make_private, mark_running
from hardpoint.agent import Paths
from hardpoint.allocation import Allocation, Assigned, Assignment, RankRequest, is_allocation
from hardpoint.cdi_files import CdiDirectory
from hardpoint.errors import HardpointError, HoldFailed, LedgerLost
from hardpoint.kubelet.podsource import PodSource
from hardpoint.kubelet.settling import own_pod
from hardpoint.model import (
    Claim,
    ClaimKey,
    Device,
    Domain,
    Event,
    Hold,
    HoldState,
    Offer,
    PreparedDevice,
)
from hardpoint.node import Node
from hardpoint.platform import Platform
from hardpoint.settings import AgentSettings

if TYPE_CHECKING:
    from hardpoint.kube import Kube

_log = logging.getLogger("hardpoint.agent")

_AGAIN = 5.0
_UNWRITABLE = {"ledger": "state directory", "cdi": "CDI directory", "unknown": "holds"}
"""Sources on the fault board, by the reason of a claim that failed."""


class HardpointAgent(PolicyFace):
    """The agent of one node; ``hardpoint.agent.Agent`` for its frontends. ``run`` is its life."""

    def __init__(
        self,
        settings: AgentSettings,
        node: Node,
        *,
        instance: str | None = None,
        plugins: Plugins | None = None,
        events: bool = True,
        pace: Pace | None = None,
    ) -> None:
        self.settings, self.node = settings, node
        self.paths: Paths = settings.agent_paths()
        self.instance = os.environ.get("POD_UID", "") if instance is None else instance
        self.board = FaultBoard()
        self.plugins = plugins
        self._events = events and not node.recorded
        self._pace = pace
        self._ready: set[str] = set()
        self._last_held: frozenset[object] = frozenset()
        self.started = anyio.Event()
        """Set once held claims are true again and frontends are started."""
        self._ledger: Ledger
        self._relay: Relay
        self._scanner: Scanner
        self._offering: Offering
        self._broker: Broker
        self.pods: PodWatch
        """Which pod has what."""
        self._allocations: Allocations
        self._writer: WriterLock
        self._reporter: Reporter
        self._observers: Observers
        self._ranking: Ranking
        self._shares: Shares
        self._stale_files = anyio.Event()

    # -- its life ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until cancelled. Raises ``LedgerError`` where the state cannot be used."""
        await anyio.to_thread.run_sync(make_private, self.paths.state)
        running = mark_running(self.paths.state)
        self._ledger = await anyio.to_thread.run_sync(open_ledger, self.paths.state)
        if self._ledger.damage:
            what = f"{self._ledger.damage}; kept aside as {self._ledger.aside}"
            self.board.record("ledger", what, cost="holds are found again in the CDI files")
        self._writer = WriterLock(self.paths.state / WRITER)
        locks = ClaimLocks(self.paths.state / "claims.lock")
        plugins = self.plugins or start_plugins(self.settings, self.node)
        self.plugins = plugins
        self._shares = shares(self.settings, plugins)
        self._shares.check()
        try:
            async with Relay(plugins, self.board) as self._relay:
                self._wire(locks)
                await self._serve()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._ledger.close)
            self._writer.close()
            locks.close()
            os.close(running)

    def _wire(self, locks: ClaimLocks) -> None:
        self._scanner = Scanner(self._relay, self._on_listing)
        self.policies = PolicySide(
            self._relay,
            self._ledger,
            agent=self,
            writing=self.writing,
            touch=lambda: self._offering.touch(),
            report=self.report,
            changed=lambda: self._reporter.touch(),
            known=self._known_holders,
        )
        self._offering = Offering(
            self._relay,
            self._scanner,
            self._facts,
            self._missing,
            shares=self._shares,
            grants=self.policies.granting.apply,
            vetoes=self.policies.on_vetoes,
            agent=self,
        )
        self._wire_broker(locks)
        self._wire_pods()
        self.node.held = self._held
        for sentence in idle_sections(self.settings, self._relay.plugins):
            self.board.record(f"settings: {sentence.partition(' ')[0]}", sentence, "it is ignored")
        self._ranking = Ranking(self._relay)
        self._observers = Observers(self._relay)
        self._reporter = Reporter(self)
        self.board.on_change(self._reporter.touch)

    def _wire_broker(self, locks: ClaimLocks) -> None:
        self._broker = Broker(
            node=self.node,
            hooks=self._relay,
            ledger=self._ledger,
            files=CdiDirectory(self.paths.cdi, self.settings.cdi_version),
            locks=locks,
            offer=lambda: self._offering.offer,
            domains=lambda: self.domains,
            report=self.report,
            listed=lambda: self.pods.find_again(),
            writing=self.writing,
            granted=self.policies.granting,
        )

    def _known_holders(self, policies: PolicySide) -> Known:
        """Return what the reaper goes by."""
        return Known(
            pods=PodSource(self.paths.kubelet, self.paths.device_plugins),
            records=self._ledger,
            kube=self.connect,
            granted=policies.granted,
            releases=policies.releases.pending,
            governed=policies.granting.governs,
            known=lambda: policies.granting.known and not policies.granting.book.unreadable,
            devices=lambda: self._offering.known(),
            domains=lambda: self.domains,
            announced=lambda: self.pods.announced,
        )

    def _wire_pods(self) -> None:
        around = Surroundings(
            pods=PodSource(self.paths.kubelet, self.paths.device_plugins),
            holder=self._broker,
            records=self._ledger,
            board=self.board,
            offer=lambda: self.offer,
            writing=self.writing,
            changed=self._on_pods,
        )
        itself = own_pod(os.environ)
        self.pods = PodWatch(around, node=self.node.name, itself=itself, pace=self._pace)
        self._allocations = Allocations(
            self._broker, self._ledger, self.pods, pool=self.node.name, report=self.report
        )

    def _on_pods(self) -> None:
        self._reporter.note(SOURCE, self.pods.note())
        self.policies.releases.wake()

    def _held(self) -> dict[str, Device]:
        """Return what claims hold, for drivers that keep listing what a holder changed."""
        in_use = (HoldState.PREPARING, HoldState.HELD)
        holds = [h for h in self._broker.holds() if h.state in in_use]
        return {f"{h.claim.dra_driver}/{h.device.name}": h.device for h in holds}

    async def _serve(self) -> None:
        watch = LoopWatch(self.board)
        watch.start()
        try:
            await self._serve_all()
        finally:
            watch.stop()

    async def _serve_all(self) -> None:
        async with anyio.create_task_group() as tasks:
            self._ledger.on_change(Signal(self._on_ledger))
            lost = anyio.Event()
            self._ledger.on_lost(Signal(lost.set))
            tasks.start_soon(self._end_without, lost)
            await self.policies.begin()
            await self._restore_listings()
            if self._events:
                udev = AfterUdev(self.node.run, self._scanner.wake.set)
                tasks.start_soon(listen, udev.heard, self.board)
                tasks.start_soon(udev.run)
            tasks.start_soon(self._scanner.run)
            tasks.start_soon(self._offering.run, self._on_offer, self.policies.on_offer)
            self.policies.start(tasks)
            tasks.start_soon(self._reporter.run)
            tasks.start_soon(self._observers.run)
            hint = Signal(self._scanner.wake.set)
            self._relay.supervise("watch_devices", lambda _: {"hint": hint}, role="driver")
            await self._offering.completed()
            await self._broker.restore()
            tasks.start_soon(self._broker.tend)
            tasks.start_soon(self._take_over)
            tasks.start_soon(self.pods.run)
            tasks.start_soon(self._refresh_files)
            self.policies.serve(tasks)
            self._relay.supervise("serve_frontend", self._for_frontend)
            _log.info("serving node=%s devices=%d", self.node.name, len(self.offer.devices))
            self.started.set()
            await anyio.sleep_forever()

    def _on_ledger(self) -> None:
        """Make the offer again where other devices are held. The ledger could be written, too."""
        self.board.clear(_UNWRITABLE["ledger"])
        held = what_is_held(self._ledger.latest)
        if held != self._last_held:
            self._last_held = held
            self._offering.touch()

    @contextmanager
    def _saying_what_is_unwritable(self) -> Iterator[None]:
        """Put on the board that no claim begins or ends while the disk is full."""
        try:
            yield
        except HoldFailed as error:
            source = _UNWRITABLE.get(error.reason)
            if source is not None:
                self.board.record(source, str(error), cost="claims neither begin nor end")
            raise
        self.board.clear(_UNWRITABLE["cdi"])
        if not self._broker.unknown:
            self.board.clear(_UNWRITABLE["unknown"])

    async def _end_without(self, lost: anyio.Event) -> None:
        """End when the ledger is gone: a second agent would go by another one."""
        await lost.wait()
        raise LedgerLost(str(self._ledger.path))

    def _for_frontend(self, plugin: str) -> dict[str, Any]:
        self._ready.discard(plugin)

        def ready() -> None:
            self._ready.add(plugin)
            self.board.clear(f"{plugin} serve_frontend")
            self._reporter.touch()

        view = FrontendView(self, plugin.removeprefix("frontend/"), self._shares)
        return {"agent": view, "ready": ready}

    async def _take_over(self) -> None:
        """Once this agent is the one that writes, let the CDI files follow what it knows."""
        await self._writer.until_writing()
        _log.info("this agent writes node=%s", self.node.name)
        self._reporter.touch()
        self._stale_files.set()
        self._offering.touch()

    async def _refresh_files(self) -> None:
        """Let CDI files follow the offer, beside it: a driver that hangs must not hold that up."""
        while True:
            await self._stale_files.wait()
            self._stale_files = anyio.Event()
            try:
                await self._broker.refresh(self.offer)
            except HardpointError as error:
                _log.warning("CDI files not refreshed why=%s", error)
                self._relay.later(_AGAIN, lambda: self._stale_files.set())

    # -- what changes -----------------------------------------------------------------------------

    async def _restore_listings(self) -> None:
        kept = await self._ledger.listings()
        drivers = set(self._scanner.drivers)
        self._scanner.restore(
            {
                name: Listing(name, old.devices, old.withheld)
                for name, old in kept.items()
                if name in drivers
            }
        )

    def _on_listing(self, driver: str) -> None:
        self._offering.listed()
        listing = self._scanner.listings[driver]
        if not listing.stale:
            self._relay.soon(functools.partial(self._keep_listing, driver, listing))

    async def _keep_listing(self, driver: str, listing: Listing) -> None:
        try:
            await self._ledger.keep_listing(driver, listing.devices, listing.withheld)
            self.board.clear("ledger listings")
        except Exception as error:  # noqa: BLE001 - a full disk must not end the scan
            cost = "after a restart the driver's last list is not known"
            self.board.record("ledger listings", str(error), cost=cost)

    async def _on_offer(self, old: Offer, new: Offer) -> None:
        if old.complete:
            for what, name in difference(old, new):
                self.report(Event(name=f"device-{what}", message=name, facts={"device": name}))
        say_disputes(self.board, old, new)
        self._reporter.touch()
        if self.started.is_set() and self.writing() and standing_of(old) != standing_of(new):
            self._stale_files.set()

    async def _facts(self) -> Facts:
        return Facts(
            domain_of=self.settings.domain_of,
            node_reason=Platform.of(self.node).reason,
            rules=self.settings.rules,
            holds=self._broker.holds(),
            quarantined=self._broker.quarantined(),
        )

    def _missing(self) -> list[tuple[str, str]]:
        return self.plugins.failed("policy") if self.plugins else []

    # -- what frontends see -----------------------------------------------------------------------

    @property
    def domains(self) -> tuple[Domain, ...]:
        """Every domain that a running driver publishes under, or that a claim is held under.

        The kubelet ends a claim through the driver name that prepared it, whatever the settings
        or the installed drivers have become since: a name that nobody serves keeps its pods in
        Terminating.
        """
        drivers = self.plugins.running("driver") if self.plugins else ()
        found = dict.fromkeys(self.settings.domain_of(p.name) for p in drivers)
        served = {domain.dra_driver for domain in found}
        for record in self._ledger.latest:
            name = record.claim.dra_driver
            if name not in served and not record.retired and not is_allocation(record.claim):
                served.add(name)
                found[Domain(name, name, record.cdi_vendor)] = None
        return tuple(found)

    @property
    def offer(self) -> Offer:
        """What may be offered now."""
        return self._offering.offer

    def offers(self) -> AsyncIterator[Offer]:
        """Yield the offer now and after each change; a slow reader sees only the latest."""
        return self._offering.offers()

    async def prepare(
        self, key: ClaimKey, read: Callable[[], Awaitable[Claim]]
    ) -> tuple[PreparedDevice, ...]:
        """Hold a claim's devices and write its CDI file."""
        await self._offering.completed()
        with self._saying_what_is_unwritable():
            return await self._broker.prepare(key, read)

    async def unprepare(self, key: ClaimKey) -> None:
        """End a claim's holds."""
        with self._saying_what_is_unwritable():
            await self._broker.unprepare(key)
        self.board.clear_about(key.uid)

    async def rank(self, driver: str, request: RankRequest) -> tuple[str, ...]:
        """Ask a driver which of its devices go well together."""
        return await self._ranking.rank(driver, request, self.offer)

    async def allocate(self, wanted: Sequence[Assignment]) -> tuple[Assigned, ...]:
        """Hold devices under the ids that the kubelet chose, all or none."""
        await self._offering.completed()
        with self._saying_what_is_unwritable():
            return await self._allocations.allocate(wanted)

    def allocations(self) -> tuple[Allocation, ...]:
        """Every device held under a resource and an id, and which pods have it."""
        return self._allocations.shown()

    def announce(self, resource: str, assignments: Sequence[Assignment]) -> None:
        """Say which ids a resource has."""
        self.pods.announce(resource, assignments)

    def holds(self) -> tuple[Hold, ...]:
        """Every hold in the ledger."""
        return self._broker.holds()

    def writing(self) -> bool:
        """Say whether this process is the one of two that writes."""
        return self._writer.writing()

    async def until_writing(self) -> None:
        """Wait until this process is the one that writes."""
        await self._writer.until_writing()

    def connect(self) -> Kube:
        """Return a connection to the API server as the settings name it."""
        return connect(self.settings.kube)

    def status(self) -> Mapping[str, Any]:
        """What is so now, as JSON values."""
        return self._reporter.status()

    def note(self, source: str, facts: Mapping[str, object]) -> None:
        """Say what is so now, for ``hardpoint status``."""
        self._reporter.note(source, facts)

    def on_fault(self, source: str, message: str) -> None:
        """Put a failure of a frontend's surroundings on the fault board."""
        self.board.record(source, message, cost="what follows from it may be out of date")

    def clear_fault(self, source: str) -> None:
        """Take a failure off the board."""
        self.board.clear(source)

    def report(self, event: Event) -> None:
        """Tell observers, the log and the metrics of something that changed."""
        level = logging.WARNING if event.warning else logging.INFO
        facts = " ".join(f"{key}={value}" for key, value in event.facts.items())
        _log.log(level, "%s %s what=%r", event.name, facts, event.message)
        self._observers.tell(event)

    @property
    def ready(self) -> bool:
        """True while every frontend serves and nothing of theirs is on the fault board.

        An API server that is away does not count: held claims are served without it.
        """
        frontends = self.plugins.running("frontend") if self.plugins else ()
        names = {plugin.id for plugin in frontends}
        broken = any(e.source.startswith("frontend/") for e in self.board.entries)
        return bool(names) and names <= self._ready and not broken

    def quarantined(self) -> dict[tuple[str, str], str]:
        """Devices that nobody may have now, by DRA driver and name, and why."""
        return self._broker.quarantined()
