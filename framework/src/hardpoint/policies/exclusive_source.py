"""Isolation: nothing is offered while something else on the node can hand out the same hardware.

Rivals are named, not guessed. A driver that merely describes the same card publishes the same PCI
address; that is told once, and keeps nothing back.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import anyio
from pydantic import BaseModel, ConfigDict, Field

from hardpoint import inotify
from hardpoint.agent import Agent
from hardpoint.contract import hookimpl
from hardpoint.errors import HardpointError
from hardpoint.kubelet.podsource import PodSource
from hardpoint.model import Event, Offer, Offered, Veto
from hardpoint.node import Node
from hardpoint.parameters import Settings
from hardpoint.policies._conditions import UNAVAILABLE, say
from hardpoint.policies._rivals import (
    PCI_BUS_ID,
    Known,
    Own,
    Slice,
    matches,
    other_drivers,
    other_resources,
    other_slices,
)

_T = TypeVar("_T")

_MINUTE = 60.0
"""Seconds between two reads of ResourceSlices that were answered."""
_SOON = 10.0
"""Seconds until the API server is asked again after it did not answer."""
_APART = 1.0
"""Seconds between two questions to the kubelet, which refuses more than it likes."""
_PATIENCE = 4.0
"""Seconds for one reading: the whole verdict has ten."""
_REMEDY = "remove it from this node, or take it out of [policy.exclusive_source]"


class Guard(BaseModel):
    """Kinds of devices, and who else could hand out the same hardware."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    kinds: tuple[str, ...] = Field(min_length=1)
    """Patterns of the kinds that are kept back while a rival is there."""
    resources: tuple[str, ...] = ()
    """Patterns of other device plugins' resources."""
    drivers: tuple[str, ...] = ()
    """Patterns of other DRA drivers' names; with none, the API server is not asked."""
    remedy: str = _REMEDY
    """What to do about a rival, in words; part of every reason."""


NVIDIA = Guard(
    kinds=("gpu", "gpu.*"),
    resources=("nvidia.com/*",),
    drivers=("gpu.nvidia.com",),
    remedy="switch it off on this node: devicePlugin.enabled=false of NVIDIA's GPU operator, "
    "resources.gpus.enabled=false of its DRA driver",
)


class ExclusiveSourceSettings(Settings):
    """The section ``[policy.exclusive_source]``."""

    guards: tuple[Guard, ...] = (NVIDIA,)
    """What is guarded against whom: ``kinds``, ``resources``, ``drivers`` and a ``remedy`` each. By
    default GPUs, against NVIDIA's device plugin and DRA driver."""
    every: float = Field(default=10.0, ge=1)
    """Seconds between two looks at the kubelet; one also follows each change of its device plugin
    directory."""
    return_after: float = Field(default=60.0, ge=0)
    """Seconds that a rival must have been away: one that restarts is away for a while too."""
    condition: tuple[str, str] = ("ForeignExposure", "OtherDevicePath")
    """Type and reason of the node condition while there is a rival for what is offered, or would be
    if it were granted."""
    unavailable: str = UNAVAILABLE
    """Type of the condition while the kubelet does not say what it could give out."""
    slices_unavailable: str = "ResourceSlicesUnavailable"
    """Type of the condition while the API server does not say who else publishes devices."""


class ExclusiveSource:
    """Vetoes what is guarded while a rival is there, or while that cannot be found out at first."""

    Settings = ExclusiveSourceSettings

    def __init__(self, node: Node, settings: ExclusiveSourceSettings) -> None:
        self.node, self.settings = node, settings
        self.clock = time.monotonic
        self._plugins = Known(settings.return_after)
        self._drivers = Known(settings.return_after)
        self._slices: tuple[Slice, ...] = ()
        self._names: set[str] = set()
        self._told: set[tuple[str, str]] = set()
        self._agent: Agent | None = None
        """Whom to ask; None while the node has nothing that is guarded."""
        self._needed = False
        """Whether something that is guarded is offered: then it matters who does not answer."""
        self._reading = anyio.Lock()
        self._wake = anyio.Event()

    # -- the verdict ------------------------------------------------------------------------------

    @hookimpl
    async def veto_devices(self, offer: Offer, agent: Agent) -> tuple[Veto, ...]:
        """Name every guarded device, with who else could hand it out.

        Answers from what is known; it waits only where nothing is known yet. A rival is a condition
        of the node also while none of the devices is granted: who is about to grant them wants to
        know.
        """
        offered = [one for one in offer.devices if self._guards(one.device.kind)]
        waiting = [one for one in agent.governed() if self._guards(one.kind)]
        self._names |= {one.name for one in offer.devices} | {one.name for one in waiting}
        self._agent = agent if offered or waiting else None
        self._needed = bool(offered)
        if self._is_unasked() and offered:
            await self._read(agent)
        elif self._is_unasked():
            self._awaken()
        self._tell(agent)
        self._tell_exposed(agent, {one.device.kind for one in offered} | {w.kind for w in waiting})
        self._tell_twins(offered, agent)
        return tuple(veto for one in offered for veto in self._vetoes(one))

    def _is_unasked(self) -> bool:
        """Say whether a source was never asked, or not for long: then it is waited for."""
        if self._patterns("drivers") and self._drivers.read_at is None:
            return True
        old = self._plugins.is_due(self.clock(), 3 * self.settings.every)
        return old and bool(self._patterns("resources"))

    def _guards(self, kind: str) -> list[Guard]:
        return [guard for guard in self.settings.guards if matches(kind, guard.kinds)]

    def _vetoes(self, offered: Offered) -> Iterator[Veto]:
        guards = self._guards(offered.device.kind)
        rivals = self._rivals({offered.device.kind})
        unknown = [why for guard in guards for why in self._unknown_of(guard)]
        if rivals or unknown:
            yield Veto(device=offered.name, reason=rivals or "; ".join(dict.fromkeys(unknown)))

    def _rivals(self, kinds: Iterable[str]) -> str:
        """Return who else could hand out devices of some kinds; empty where nobody could."""
        guards = [guard for kind in sorted(kinds) for guard in self._guards(kind)]
        return "; ".join(dict.fromkeys(why for one in guards for why in self._rivals_of(one)))

    def _rivals_of(self, guard: Guard) -> Iterator[str]:
        for known, patterns in self._sources(guard):
            for name, what in known.rivals.items():
                if matches(name, patterns):
                    yield f"{what}: {guard.remedy}"

    def _unknown_of(self, guard: Guard) -> Iterator[str]:
        for known, patterns in self._sources(guard):
            if patterns and not known.answered:
                why = known.failure or "it was not asked yet"
                yield f"whether {' or '.join(patterns)} can hand it out too is not known: {why}"

    def _sources(self, guard: Guard) -> tuple[tuple[Known, tuple[str, ...]], ...]:
        return (self._plugins, guard.resources), (self._drivers, guard.drivers)

    # -- looking ----------------------------------------------------------------------------------

    @hookimpl
    async def watch_devices(self, hint: Callable[[], None]) -> None:
        """Look for rivals, and hint when the verdict is another one."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(inotify.watch, self.node.device_plugins, self._awaken)
            while True:
                with anyio.move_on_after(self.settings.every):
                    await self._wake.wait()
                await anyio.sleep(_APART)
                self._wake = anyio.Event()  # before it looks: what changes meanwhile is looked at
                if self._agent is not None and await self._is_changed(self._agent):
                    hint()

    def _awaken(self) -> None:
        self._wake.set()

    async def _is_changed(self, agent: Agent) -> bool:
        before = self._state()
        await self._read(agent)
        return before != self._state()

    def _state(self) -> object:
        """Return what verdicts are made of."""
        return [
            (dict(known.rivals), known.answered or known.failure)
            for known in (self._plugins, self._drivers)
        ] + [self._slices]

    async def _read(self, agent: Agent) -> None:
        """Ask whoever is due."""
        async with self._reading, anyio.create_task_group() as tasks:
            if self._patterns("resources"):
                tasks.start_soon(self._read_plugins, agent)
            wait = _SOON if self._drivers.failure else _MINUTE
            if self._patterns("drivers") and self._drivers.is_due(self.clock(), wait):
                tasks.start_soon(self._read_drivers, agent)
        self._tell(agent)

    def _patterns(self, of: str) -> tuple[str, ...]:
        return tuple(pattern for guard in self.settings.guards for pattern in getattr(guard, of))

    async def _read_plugins(self, agent: Agent) -> None:
        source = PodSource(agent.paths.kubelet, agent.paths.device_plugins)
        own = Own(
            prefixes={domain.resource_prefix for domain in agent.domains},
            resources={one.resource for one in agent.allocations()},
            devices=self._names.union(*(one.names for one in agent.releases())),
        )
        reading = other_resources(source, self._patterns("resources"), own)
        found = await _answer(reading, self._plugins, self.clock)
        if found is not None:
            self._plugins.heard(found, self.clock())

    async def _read_drivers(self, agent: Agent) -> None:
        own = {domain.dra_driver for domain in agent.domains}
        reading = other_slices(agent.connect, self.node.name, own)
        found = await _answer(reading, self._drivers, self.clock)
        if found is not None:
            self._slices = found
            self._drivers.heard(other_drivers(found, self._patterns("drivers")), self.clock())

    # -- telling ----------------------------------------------------------------------------------

    def _tell(self, agent: Agent) -> None:
        """Raise a condition for whoever does not answer; what was said last stands meanwhile."""
        conditions: Mapping[str, tuple[Known, str, str]] = {
            self.settings.unavailable: (self._plugins, "AllocatableUnknown", "the kubelet"),
            self.settings.slices_unavailable: (self._drivers, "SlicesUnknown", "the API server"),
        }
        for type_, (known, reason, who) in conditions.items():
            why = known.failure if self._needed else ""
            message = f"{who} does not say who else hands out hardware: {why}" if why else ""
            say(agent, type_, reason, message)

    def _tell_exposed(self, agent: Agent, kinds: Iterable[str]) -> None:
        """Raise a condition while there is a rival for what the node has, granted or not."""
        type_, reason = self.settings.condition
        say(agent, type_, reason, self._rivals(kinds))

    def _tell_twins(self, guarded: Iterable[Offered], agent: Agent) -> None:
        """Report, once, whose devices have the PCI address of one of ours."""
        ours = {str(address): one for one in guarded if (address := _address(one))}
        for other in self._slices:
            for address in other.addresses:
                twin = other.driver, address
                if address not in ours or twin in self._told:
                    continue
                self._told.add(twin)
                device = ours[address].name
                message = (
                    f"DRA driver {other.driver} publishes the PCI device of {device} too. If it "
                    "hands it out, name it in [policy.exclusive_source]; if it only describes it, "
                    "all is well"
                )
                facts = {"device": device, "driver": other.driver}
                agent.report(
                    Event(name="published-twice", message=message, facts=facts, warning=True)
                )


def _address(offered: Offered) -> object:
    return offered.device.attributes.get(PCI_BUS_ID)


async def _answer(reading: Awaitable[_T], known: Known, clock: Callable[[], float]) -> _T | None:
    """Wait for an answer, but not for long; None where there is none, and it is known why."""
    try:
        with anyio.fail_after(_PATIENCE):
            return await reading
    except TimeoutError:
        known.failed(f"no answer within {_PATIENCE:g} s", clock())
    except HardpointError as error:
        known.failed(str(error), clock())
    return None
