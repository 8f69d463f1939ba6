"""Sources of grants and of evidence that a test plays, for agents that really run."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from hardpoint import (
    Evidence,
    Grant,
    GrantedDevice,
    GrantOutcome,
    Hold,
    Release,
    hookimpl,
)
from hardpoint._core.agent import HardpointAgent
from hardpoint._core.plugins.discovery import Plugin
from hardpoint.model import Allotment, Claim

from .conftest import World, claim


def grant(allocation: str, *devices: str, **more: Any) -> Grant:
    named = tuple(GrantedDevice(name=name) for name in devices)
    return Grant(allocation=allocation, devices=named, **more)


class Played:
    """What a test says that sources say, and what they were told."""

    def __init__(self) -> None:
        self.grants: list[Grant] = []
        self.unreadable = False
        self.users: list[str] = []
        self.unknown = ""
        self.deaf = False
        """The source does not take reports."""
        self.told: list[tuple[str, str]] = []
        """Allocation and outcome, or ``released``."""
        self.asked: list[tuple[Release, tuple[Hold, ...]]] = []
        self.hint: Callable[[], None] = lambda: None

    def state(self) -> tuple[Grant, ...]:
        if self.unreadable:
            raise OSError("the directory is not there")
        return tuple(self.grants)

    def hear(self, allocation: str, what: str) -> None:
        if self.deaf:
            raise OSError("nobody listens")
        self.told.append((allocation, what))


def source(played: Played, *kinds: str) -> type:
    class Source:
        def __init__(self, node: object, settings: object) -> None:
            self.kinds = kinds or ("radio",)

        @hookimpl
        def grant_devices(self) -> tuple[Grant, ...]:
            return played.state()

        @hookimpl
        async def watch_devices(self, hint: Callable[[], None]) -> None:
            played.hint = hint
            await anyio.sleep_forever()

        @hookimpl
        def report_grant(self, grant: Grant, outcome: GrantOutcome) -> None:
            played.hear(grant.allocation, outcome.outcome.value)

        @hookimpl
        def report_release(self, grant: Grant, release: Release) -> None:
            played.hear(grant.allocation, "released")

    return Source


def evidence(played: Played) -> type:
    class Evident:
        def __init__(self, node: object, settings: object) -> None: ...

        @hookimpl
        def find_users(self, release: Release, holds: tuple[Hold, ...]) -> Evidence:
            began = time.monotonic()
            played.asked.append((release, holds))
            if played.unknown:
                return Evidence.unknown(played.unknown)
            return Evidence.used_by(began, *played.users) if played.users else Evidence.none(began)

    return Evident


@asynccontextmanager
async def granting(
    world: World, played: Played, *more: Plugin, evident: bool = True, **values: Any
) -> AsyncIterator[HardpointAgent]:
    plugins = [Plugin("policy", "source", loaded=source(played)), *more]
    if evident:
        plugins.append(Plugin("policy", "evident", loaded=evidence(played)))
    async with world.agent(*plugins, **values) as agent:
        yield agent


class Agents:
    """Agents on one node in tasks of their own: two of them overlap, and either may end first."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._ends: dict[HardpointAgent, tuple[anyio.Event, anyio.Event]] = {}

    async def start(self, life: AbstractAsyncContextManager[HardpointAgent]) -> HardpointAgent:
        agent: HardpointAgent = await self._tasks.start(self._live, life)
        return agent

    async def end(self, agent: HardpointAgent) -> None:
        asked, ended = self._ends.pop(agent)
        asked.set()
        await ended.wait()

    async def _live(
        self,
        life: AbstractAsyncContextManager[HardpointAgent],
        *,
        task_status: TaskStatus[HardpointAgent],
    ) -> None:
        asked, ended = anyio.Event(), anyio.Event()
        async with life as agent:
            self._ends[agent] = asked, ended
            task_status.started(agent)
            await asked.wait()
        ended.set()


@asynccontextmanager
async def agents() -> AsyncIterator[Agents]:
    async with anyio.create_task_group() as tasks:
        made = Agents(tasks)
        yield made
        for agent in tuple(made._ends):
            await made.end(agent)


def under(allocation: str, *devices: str, uid: str = "") -> Claim:
    made = claim(*devices, uid=uid)
    allotments = tuple(replace(one, allocation=allocation) for one in made.allotments)
    return replace(made, allotments=allotments)


def why(agent: HardpointAgent, device: str) -> str:
    return " ".join(one.reason for one in agent.offer.withheld if one.subject == device)


async def until_so(agent: HardpointAgent, true: Callable[[], bool], within: float = 15) -> None:
    """Wait for something that follows from offers, releases, or reports."""
    with anyio.fail_after(within):
        while not true():  # noqa: ASYNC110 - what a source was told sets no Event
            await anyio.sleep(0.01)


__all__ = [
    "Agents",
    "Allotment",
    "Played",
    "agents",
    "grant",
    "granting",
    "under",
    "until_so",
    "why",
]
