"""The work of a drain. Every look does whatever is left to do, so that it may be killed anywhere.

Recorded first, that nothing is offered (``Agent.withdraw``, durable); then the Node is cordoned,
then pods are deleted; what holds a device still is the reaper's. Back the other way: offered again,
then uncordoned.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import anyio

from hardpoint import inotify
from hardpoint.errors import KubeDenied
from hardpoint.grants import NodeCondition
from hardpoint.model import Event
from hardpoint.policies._own_node import own_node
from hardpoint.policies.drain.asking import Asking
from hardpoint.policies.drain.cordon import Cordon, cordon, uncordon
from hardpoint.policies.drain.pods import Rules, Sweep, in_words
from hardpoint.policies.drain.steps import AT_ONCE, NEVER, Steps

if TYPE_CHECKING:
    from hardpoint.agent import Agent
    from hardpoint.kube import Kube
    from hardpoint.policies.drain.settings import DrainSettings

SOURCE = "policy/drain"
RELEASED = "Released"


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between two looks: at pods that are to go, at a node that is empty or serves."""

    busy: float = 5.0
    idle: float = 30.0
    first: float = 1.0
    """The first delay after a failure, which grows."""
    clock: Callable[[], float] = time.monotonic


class Draining:
    """One agent's drain; ``kube`` is None where no API server is named."""

    def __init__(
        self,
        agent: Agent,
        settings: DrainSettings,
        kube: Kube | None,
        own: frozenset[str],
        pace: Pace,
    ) -> None:
        self._agent, self._settings, self._kube, self._pace = agent, settings, kube, pace
        self._own_pod = own
        self._touched = anyio.Event()
        self._asking = Asking(agent, settings, kube, SOURCE, self._touch)
        self._steps = Steps(agent, SOURCE, first=pace.first, clock=pace.clock)
        self._began: float | None = None
        """When this process began to drain; None while the node serves."""
        self._returned = False
        self._cordon: Cordon | None = None
        self._noted: dict[str, object] = {}
        self._left: list[str] | None = None
        """Pods that are to go; None until they could be looked at."""

    async def run(self) -> None:
        """Follow the request for ever."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(inotify.watch, self._asking.file.parent, self._touch)
            tasks.start_soon(self._listen)
            tasks.start_soon(self._asking.follow)
            while True:
                why = await self._asking.why()
                await (self._drain(why) if why else self._return())
                self._note(self._facts(why))
                with anyio.move_on_after(self._steps.wait(self._pace.idle)):
                    await self._touched.wait()
                self._touched = anyio.Event()

    async def _listen(self) -> None:
        async for _ in self._agent.changes():
            self._touch()

    def _touch(self) -> None:
        self._touched.set()

    # -- there ------------------------------------------------------------------------------------

    async def _drain(self, why: str) -> None:
        if self._began is None:
            self._began, self._returned = self._pace.clock(), False
            self._steps.again()

        async def withdraw() -> float:
            await self._agent.withdraw(self._asking.reason(why))
            self._report("node-drain-begun", f"the node is handed back: {why}")
            return AT_ONCE

        if not self._agent.withdrawn:  # else another has: to say it for us would end it for them
            await self._steps.do("withdraw", withdraw)
        if not self._agent.withdrawn:
            return  # nothing else before it is recorded
        if self._kube is not None:
            if self._settings.cordon:
                await self._steps.do("cordon", partial(self._keep_cordoned, self._kube))
            await self._steps.do("pods", partial(self._empty, self._kube))
        self._say_released()

    async def _keep_cordoned(self, kube: Kube) -> float:
        self._cordon, now = await cordon(kube, self._agent, self._settings.cordon_annotation)
        if now:
            self._report("node-cordoned", f"Node {self._agent.node.name} is cordoned")
        return self._pace.idle

    async def _empty(self, kube: Kube) -> float:
        with suppress(KubeDenied):  # who may not read it may delete its pods
            await own_node(kube, self._agent)
        began, evicts = self._began or 0.0, self._settings.evict_for_s
        rules = Rules(
            node=self._agent.node.name,
            own=self._own_pod,
            prefixes={domain.resource_prefix for domain in self._agent.domains},
            resources={one.resource for one in self._agent.allocations()},
        )
        evict = self._settings.evict and self._pace.clock() - began < evicts
        sweep = Sweep(kube, rules, most=self._settings.longest_grace_s, evict=evict)
        swept = await sweep.run()
        self._left = swept.left
        for pod in swept.deleted:
            self._report("node-drain-pod-deleted", f"pod {pod} is deleted: the node is handed back")
        if swept.error is not None:
            raise swept.error
        return self._pace.busy if swept.left else self._pace.idle

    def _say_released(self) -> None:
        raised = any(one.type == RELEASED for one in self._agent.conditions())
        if self._waits_for():
            if raised:
                self._agent.clear_condition(RELEASED)
        elif not raised:
            message = "the node is handed back: nobody can be using a device of it any more"
            released = NodeCondition(
                type=RELEASED, reason="Drained", message=message, trouble=False
            )
            self._agent.raise_condition(released)
            self._report("node-released", message)

    def _waits_for(self) -> list[str]:
        """Return what is not over yet, in words."""
        left = [f"release of {', '.join(one.names)}" for one in self._agent.releases()]
        left += [f"device {one.device.name} is held" for one in self._agent.holds()]
        if self._kube is not None and self._left is None:
            left.append("its pods could not be looked at yet")
        return left + [f"pod {name}" for name in self._left or ()]

    # -- and back ---------------------------------------------------------------------------------

    async def _return(self) -> None:
        if not self._returned:
            self._returned, self._began, self._left, self._cordon = True, None, None, None
            self._steps.again()
        if any(one.type == RELEASED for one in self._agent.conditions()):
            self._agent.clear_condition(RELEASED)

        async def resume() -> float:
            await self._agent.resume()
            self._report("node-drain-ended", "the node is not handed back any more")
            return AT_ONCE

        if self._asking.is_withdrawn:
            await self._steps.do("resume", resume)
        if self._asking.is_withdrawn:
            return
        if self._kube is not None and self._asking.is_known:
            await self._steps.do("uncordon", partial(self._uncordon, self._kube))

    async def _uncordon(self, kube: Kube) -> float:
        if await uncordon(kube, self._agent, self._settings.cordon_annotation):
            self._report("node-uncordoned", f"Node {self._agent.node.name} is uncordoned")
        return NEVER

    # -- what is said -----------------------------------------------------------------------------

    def _report(self, name: str, message: str) -> None:
        self._agent.report(Event(name=name, message=message, facts={"node": self._agent.node.name}))

    def _note(self, facts: dict[str, object]) -> None:
        if facts != self._noted:
            self._noted = facts
            self._agent.note(SOURCE, facts)

    def _facts(self, why: str) -> dict[str, object]:
        """Return what ``hardpoint drain --status`` shows."""
        waits = self._waits_for() if why else []
        waiting = bool(waits) or not self._agent.withdrawn
        state = ("draining" if waiting else "released") if why else "in-service"
        return {
            "state": "draining" if self._asking.is_withdrawn and not why else state,
            "request": self._asking.id,
            "why": why,
            "cordon": self._cordon.value if self._cordon else "",
            "waits_for": waits,
            "waits_in_short": in_words(waits),
        }
