"""Publishing: a loop that makes the API server's ResourceSlices what the offer says they should be.

Level-triggered: whatever happened, it looks at the offer and at what the server has, and writes the
difference, which is mostly nothing. It wakes when the offer changes, when somebody else changed our
slices (the kubelet wipes them when it starts), and a minute after a write, to compare with a fresh
list that trusts nothing it believes (kubernetes pull request 140011).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import anyio
import anyio.lowlevel

from hardpoint.agent import Agent
from hardpoint.errors import KubeConflict, KubeError, KubeNotFound
from hardpoint.kube import Backoff, Kube, Listing
from hardpoint.model import Domain, Offer
from hardpoint_dra.beside import beside_allocations
from hardpoint_dra.converge import Convergence
from hardpoint_dra.published import as_published, twins
from hardpoint_dra.translate import Profile

RECHECK_SECONDS = 60.0
"""After a write, until the server's list is compared with what we believe."""
_MOST_RETRY_SECONDS = 900.0
"""Between two attempts with devices that the server refuses; the first is after a minute."""
_REPAIR_SECONDS = 0.2
"""The first delay before a repair: a kubelet's wipe takes one slice after the other."""

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What is on the server, for ``hardpoint status``."""

    driver: str
    version: str = ""
    """The API version it is written in; empty while the server has not been reached."""
    generation: int = 0
    slices: int = 0
    devices: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    """Devices that the API server refuses, and why."""
    lacks: tuple[str, ...] = ()
    """Features that the server drops: ``taints``, ``counters``, ``sharing``."""
    checked: float | None = None
    """When the server was last seen to have what it should: seconds since the epoch."""


class Signal:
    """A word to another task: look again. Several that were not heard yet are one."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    @property
    def given(self) -> bool:
        """True while it has not been heard."""
        return self._event.is_set()

    def give(self) -> None:
        """Wake who waits."""
        self._event.set()

    def clear(self) -> None:
        """Take it back."""
        if self._event.is_set():
            self._event = anyio.Event()

    async def heard(self) -> None:
        """Wait for it, and take it."""
        await self._event.wait()
        self.clear()


class SlicePublisher:
    """Publishes one domain's devices in the node's pool, for as long as ``run`` runs.

    ``withdraw_unhealthy`` takes unhealthy devices out instead of tainting them; ``begin`` is
    awaited before the first slice of a pool that has none; ``sleep`` is what every delay goes
    through. When it is cancelled the slices stay: a restart must not be seen.
    """

    def __init__(
        self,
        agent: Agent,
        domain: Domain,
        kube: Kube,
        *,
        withdraw_unhealthy: bool = False,
        begin: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint,
        sleep: Sleep = anyio.sleep,
    ) -> None:
        self._agent, self._kube, self._sleep = agent, kube, sleep
        self._driver = domain.dra_driver
        self._pool = Convergence(
            agent,
            domain,
            kube,
            Profile(withdraw_unhealthy=withdraw_unhealthy),
            pause=self._before_a_repair,
            begin=begin,
            wrote=self._note_write,
        )
        self._offer: Offer | None = None
        self._twins = frozenset[str]()
        self._relist = False
        self._wake, self._hurry, self._written = Signal(), Signal(), Signal()
        self._refusing = Signal()
        self._settled = anyio.Event()
        self._repairs = Backoff(first=_REPAIR_SECONDS)
        self._checked: float | None = None
        self._done = -1
        """Generation of the offer that was last made true."""

    # -- what others ask --------------------------------------------------------------------------

    @property
    def published(self) -> Published:
        """What is on the server, and what it refuses."""
        pool = self._pool
        stored = pool.mirror.slices
        devices = (device for found in pool.wanted for device in found.devices)
        return Published(
            driver=self._driver,
            version=pool.resource.version if pool.mirror.ready else "",
            generation=pool.generation,
            slices=len(stored),
            devices=tuple(str(device["name"]) for device in devices),
            refused=pool.refusals.reasons,
            lacks=pool.profile.lacks,
            checked=self._checked,
        )

    async def settled(self) -> None:
        """Wait until the server has what the present offer says, as far as we know."""
        while True:
            await self._settled.wait()
            if self._done == self._agent.offer.generation:
                return
            self._unsettle()  # an offer that has not been heard of yet

    def look_again(self) -> None:
        """Compare with a fresh list now, as happens a minute after each write."""
        self._relist = True
        self._unsettle()
        self._wake.give()

    async def run(self) -> None:
        """Publish, for ever."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow_offer)
            tasks.start_soon(self._follow_server)
            tasks.start_soon(self._recheck)
            tasks.start_soon(self._try_refused_again)
            await self._converge_for_ever()

    # -- what wakes us ----------------------------------------------------------------------------

    async def _follow_offer(self) -> None:
        async for offer in self._agent.offers():
            self._say_twins(offer)
            offer = as_published(beside_allocations(offer, self._agent.holds()))
            old, self._offer = self._offer, offer
            if old and self._settled.is_set() and self._pool.alike(old, offer):
                self._done = offer.generation  # every prepare changes the offer: a claim holds now
                continue
            self._unsettle()
            self._wake.give()
            self._hurry.give()

    def _say_twins(self, offer: Offer) -> None:
        """Say which devices are left out since another one has their name under its grant."""
        found = {name for driver, name in twins(offer) if driver == self._driver}
        for name in self._twins - found:
            self._agent.clear_fault(f"name of device {name}")
        for name in found - self._twins:
            why = "two devices would be published under this name, so neither is"
            self._agent.on_fault(f"name of device {name}", why)
        self._twins = frozenset(found)

    async def _follow_server(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self._pool.discover()
                backoff.reset()
                await self._mirror()
            except KubeError as error:
                self._trouble(error)
            await self._sleep(backoff.next())

    async def _mirror(self) -> None:
        """Follow our slices; ends when the server has become another one."""
        watch = self._kube.watch(
            self._pool.resource, fields=self._pool.fields, on_trouble=self._trouble
        )
        first = True
        async with aclosing(watch) as events:
            async for event in events:
                if not isinstance(event, Listing):
                    found = self._pool.decoded(event.object)
                    self._heard(self._pool.mirror.changed(replace(event, object=found)))
                    continue
                if not first and await self._pool.discover():  # upgraded while it was away
                    return
                first = False
                items = tuple(self._pool.decoded(item) for item in event.items)
                self._heard(self._pool.mirror.listed(Listing(items, event.version)))

    def _heard(self, news: bool) -> None:
        if news:
            self._pool.disturbed = True
            self._unsettle()
            self._wake.give()

    def _trouble(self, error: KubeError | None) -> None:
        source = f"watch of slices of {self._driver}"
        if error is None:
            self._agent.clear_fault(source)
            self._hurry.give()
        else:
            self._agent.on_fault(source, str(error))

    def _note_write(self) -> None:
        self._written.give()

    async def _recheck(self) -> None:
        while True:
            await self._written.heard()
            await self._sleep(RECHECK_SECONDS)
            self.look_again()

    async def _try_refused_again(self) -> None:
        """An admin's policy that refused devices may be gone, and nobody tells."""
        wait = RECHECK_SECONDS
        while True:
            await self._refusing.heard()
            await self._sleep(wait)
            if not self._pool.refusals.reasons:
                wait = RECHECK_SECONDS
                continue
            wait = min(2 * wait, _MOST_RETRY_SECONDS)
            self._pool.refusals.try_again()
            self._unsettle()
            self._wake.give()

    def _unsettle(self) -> None:
        if self._settled.is_set():
            self._settled = anyio.Event()

    # -- the loop ---------------------------------------------------------------------------------

    async def _converge_for_ever(self) -> None:
        backoff = Backoff()
        while True:
            await self._wake.heard()
            await self._agent.until_writing()
            try:
                done = await self._converge()
            except KubeError as error:
                self._failed(error)
                await self._pause(backoff.next())
                self._wake.give()
                continue
            backoff.reset()
            if done and not self._wake.given:
                self._settle()

    async def _converge(self) -> bool:
        checking, self._relist = self._relist, False
        if checking:
            self._relist = True  # until the list is there
            await self._pool.list_afresh()
            self._relist = False
            if not self._pool.disturbed:
                self._repairs.reset()
        return await self._pool.once(lambda: self._offer)

    def _settle(self) -> None:
        self._done = self._offer.generation if self._offer else -1
        self._checked = time.time()
        self._agent.clear_fault(f"slices of {self._driver}")
        if self._pool.refusals.reasons:
            self._refusing.give()
        self._hurry.clear()
        self._settled.set()

    def _failed(self, error: KubeError) -> None:
        """Look again after a conflict, which is no fault; say what is one."""
        if isinstance(error, (KubeConflict, KubeNotFound)):
            self._relist = True
        if not isinstance(error, KubeConflict):
            self._agent.on_fault(f"slices of {self._driver}", str(error))

    async def _before_a_repair(self) -> None:
        """Let others finish what they do to our slices; longer, the more often they do it."""
        await self._pause(self._repairs.next())

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not on when there is a new offer, or the server is back."""
        async with anyio.create_task_group() as tasks:

            async def nap() -> None:
                await self._sleep(seconds)
                tasks.cancel_scope.cancel()

            tasks.start_soon(nap)
            await self._hurry.heard()
            tasks.cancel_scope.cancel()
