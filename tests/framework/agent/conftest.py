from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from hardpoint import Device, Health, Hold, hookimpl
from hardpoint._core.agent import HardpointAgent
from hardpoint._core.plugins.discovery import Plugin, Plugins
from hardpoint._core.pods.absence import Pace
from hardpoint.model import Allotment, Claim, ClaimKey, Condition, Offer
from hardpoint.node import Node
from hardpoint.settings import AgentSettings, PathSettings
from hardpoint.testing.sysfs import FakeMachine


class Radios:
    """A driver of radios that hang from a platform bus; counts what is done to them."""

    done: list[str]
    broken: set[str]
    checked: list[str]

    def __init__(self, node: Node, settings: None) -> None:
        self.node = node

    @hookimpl
    def publish_devices(self) -> Iterator[Device]:
        for radio in self.node.each("class/radio"):
            yield Device(name=radio.name, kind="radio", nodes=radio.nodes(), parts=radio.whole())

    @hookimpl
    def check_device(self, device: Device) -> Health:
        self.checked.append(device.name)
        ill = device.name in self.broken
        return Health(Condition.UNHEALTHY if ill else Condition.HEALTHY)

    @hookimpl
    def prepare_device(self, device: Device, hold: Hold) -> None:
        hold.remember(was="quiet")
        self.done.append(f"prepare {device.name}")

    @hookimpl
    def unprepare_device(self, hold: Hold) -> None:
        self.done.append(f"unprepare {hold.device.name} {hold.remembered.get('was')}")


class World:
    """One node's machine and directories; starts agents on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.machine = FakeMachine(root / "machine")
        self.paths = PathSettings(state=root / "state", cdi=root / "cdi", kubelet=root / "kubelet")
        self.driver: type[Radios] = type(
            "Radios", (Radios,), {"done": [], "broken": set(), "checked": []}
        )

    def radio(self, name: str, minor: int) -> None:
        self.machine.platform(f"acme-{name}").node("radio", name, 240, minor)

    def settings(self, **values: Any) -> AgentSettings:
        return AgentSettings(paths=self.paths, node_name="node-1", **values)

    @asynccontextmanager
    async def agent(
        self, *more: Plugin, pace: Pace | None = None, **values: Any
    ) -> AsyncIterator[HardpointAgent]:
        node = self.machine.node()
        plugins = Plugins([Plugin("driver", "radios", loaded=self.driver), *more])
        for plugin in plugins.all:
            if plugin.state == "installed":
                plugins.start(plugin, node, {})
        agent = HardpointAgent(
            self.settings(**values), node, instance="", plugins=plugins, pace=pace
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run)
            with anyio.fail_after(10):
                await agent.started.wait()
            yield agent
            tasks.cancel_scope.cancel()


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.radio("radio0", 0)
    made.radio("radio1", 1)
    return made


def claim(*devices: str, uid: str = "", admin: bool = False) -> Claim:
    key = ClaimKey(uid or str(uuid.uuid4()), "ns", "claim", "hardpoint.dev")
    allotments = tuple(
        Allotment(request=f"r{i}", device=device, pool="node-1", admin_access=admin)
        for i, device in enumerate(devices)
    )
    return Claim(key=key, allotments=allotments)


def reading(what: Claim) -> Callable[[], Awaitable[Claim]]:
    async def read() -> Claim:
        return what

    return read


async def until(agent: HardpointAgent, true: Callable[[Offer], bool]) -> Offer:
    with anyio.fail_after(10):
        async for offer in agent.offers():
            if true(offer):
                return offer
    raise AssertionError
