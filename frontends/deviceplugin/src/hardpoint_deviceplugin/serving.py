"""Every resource of the node, each served and registered for itself, following the offer.

Only the agent that writes does any of this: of two agents in a rolling update the kubelet knows
one, and the other takes over when that has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from hardpoint.agent import Agent
from hardpoint.kubelet.work import Workshop
from hardpoint_deviceplugin.kept import KeptNames
from hardpoint_deviceplugin.names import remove_dead
from hardpoint_deviceplugin.registration import Registration, State
from hardpoint_deviceplugin.resources import Arranger, Resource
from hardpoint_deviceplugin.service import ResourceService
from hardpoint_deviceplugin.settings import DevicePluginSettings
from hardpoint_deviceplugin.translate import numa_nodes
from hardpoint_deviceplugin.watching import Directory

NOTE = "frontend/deviceplugin"
LINGER = 30.0
"""Seconds that a resource without any device stays registered before its name is let go."""
_IN_WORDS = {"cdi": "CDI names", "specs": "device nodes, mounts and variables, without CDI"}


@dataclass(slots=True, eq=False)
class _Served:
    service: ResourceService
    registration: Registration
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    emptied: float | None = None
    """Since when it has no device; None while it has some."""


class Serving:
    """Serves an agent's resources, from ``run`` until that is cancelled."""

    def __init__(
        self,
        agent: Agent,
        settings: DevicePluginSettings,
        ready: Callable[[], None],
        *,
        linger: float = LINGER,
        listens_within: float = 2.0,
    ) -> None:
        self._agent, self._settings, self._ready = agent, settings, ready
        self._linger, self._listens_within = linger, listens_within
        self._arranger = Arranger(settings)
        self._directory = Directory(agent.paths.device_plugins)
        self._kept = KeptNames(agent.paths.state)
        self._served: dict[str, _Served] = {}
        self._problems: dict[str, str] = {}
        self._known: frozenset[str] = frozenset()
        """The names in the file."""
        self._complete = False
        self._tasks: TaskGroup
        self._workshop: Workshop

    async def run(self) -> None:
        """Serve for ever."""
        if not self._agent.writing():
            self._ready()  # an update waits for the new pod before it ends the old one
            self._agent.note(NOTE, {"state": "another agent of this node is registered"})
            await self._agent.until_writing()
        remove_dead(self._directory.path)
        self._known = await anyio.to_thread.run_sync(self._kept.load)
        self._workshop = Workshop()
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._workshop.run)
            self._tasks.start_soon(self._directory.run)
            self._tasks.start_soon(self._let_go)
            async for offer in self._agent.offers():
                arranged = self._arranger.arrange(offer, self._agent.holds())
                self._say(arranged.problems)
                self._show(arranged.resources)
                self._complete = True
                self._changed()
                await self._keep()

    # -- following the offer ----------------------------------------------------------------------

    def _show(self, resources: Mapping[str, Resource]) -> None:
        """Give each resource what it has now; one that has nothing any more is empty, and stays.

        So is one that an earlier run of the agent served, and the settings no longer know.
        """
        nodes = numa_nodes(self._agent.node)
        gone = (self._served.keys() | self._known) - resources.keys()
        for name in sorted({*resources, *gone}):
            resource = resources.get(name, Resource(name=name))
            served = self._served.get(name) or self._serve(name)
            served.service.show(resource, nodes)
            if resource.entries:
                served.emptied = None
            elif served.emptied is None:
                served.emptied = anyio.current_time()

    def _serve(self, name: str) -> _Served:
        service = ResourceService(
            self._agent,
            name,
            self._workshop,
            cdi=self._settings.devices == "cdi",
            changed=lambda: registration.wake(),
        )
        registration = Registration(
            self._agent,
            service,
            self._directory,
            changed=self._changed,
            silence=self._settings.registration_silence,
            listens_within=self._listens_within,
        )
        served = self._served[name] = _Served(service, registration)
        self._tasks.start_soon(self._run, served)
        return served

    async def _run(self, served: _Served) -> None:
        with served.scope:
            await served.registration.run()

    async def _let_go(self) -> None:
        """End resources that have been empty for a while, and that the kubelet has seen so."""
        while True:
            await anyio.sleep(self._linger / 10)
            before = anyio.current_time() - self._linger
            over = [
                name
                for name, one in self._served.items()
                if one.emptied is not None
                and one.emptied <= before
                and one.registration.state is State.LISTED
                and name not in self._in_use()
            ]
            for name in over:
                self._served.pop(name).scope.cancel()
            if over:
                self._changed()
                await self._keep()

    def _in_use(self) -> frozenset[str]:
        """Return the resources under which something is held.

        Each list has the kubelet write down who is over; without one, that is not known.
        """
        return frozenset(one.resource for one in self._agent.allocations())

    async def _keep(self) -> None:
        """Remember which names the kubelet has heard from us."""
        names = frozenset(self._served)
        if names != self._known:
            self._known = names
            await anyio.to_thread.run_sync(self._kept.save, names)

    # -- telling ----------------------------------------------------------------------------------

    def _changed(self) -> None:
        """Note what is so now, and say once that all of it is registered."""
        states = {name: one.registration.state for name, one in self._served.items()}
        if self._complete and all(state is State.LISTED for state in states.values()):
            self._ready()
        self._agent.note(
            NOTE,
            {"devices": f"passed as {_IN_WORDS[self._settings.devices]}"}
            | {name: _in_words(one) for name, one in sorted(self._served.items())},
        )

    def _say(self, problems: Mapping[str, str]) -> None:
        """Put on the board what of the settings did not come out, and take off what did."""
        for name in self._problems.keys() - problems.keys():
            self._agent.clear_fault(_source(name))
        for name, problem in problems.items():
            if self._problems.get(name) != problem:
                self._agent.on_fault(_source(name), problem)
        self._problems = dict(problems)


def _source(resource: str) -> str:
    return f"settings of resource {resource}"


def _in_words(served: _Served) -> str:
    registration, entries = served.registration, served.service.resource.entries
    free = sum(not entry.refusal for entry in entries)
    return (
        f"{len(entries)} offered, {free} usable; {registration.state}, "
        f"socket {registration.path.name}"
    )


__all__ = ["LINGER", "NOTE", "Serving"]
