"""A node whose hardware is a table, and agents on it, for a model of who may use which device."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from broker_world import MAJOR, FakeNode

from hardpoint import Device, Hold, hookimpl
from hardpoint._core.agent import HardpointAgent
from hardpoint._core.plugins.discovery import Plugin, Plugins
from hardpoint.model import (
    DeviceNode,
    NodeType,
    Part,
    Unread,
    exclusive,
    shared,
)
from hardpoint.node import Node, NodeInfo
from hardpoint.settings import AgentSettings, PathSettings

PARTS: dict[str, tuple[Part, ...]] = {
    "a": (exclusive("slot:a"),),
    "b": (exclusive("slot:b"),),
    "half-1": (shared("slot:p"), exclusive("slot:p/1")),
    "half-2": (shared("slot:p"), exclusive("slot:p/2")),
    "whole": (exclusive("slot:p"),),
    "open": (shared("slot:o"),),
}
"""Every device there may be, and what it takes: a whole with its halves, and one that is shared."""


@dataclass
class Hardware:
    """What is plugged in, under which minor number, and how well it can be read."""

    minors: dict[str, int] = field(
        default_factory=lambda: {name: number for number, name in enumerate(PARTS)}
    )
    gone: set[str] = field(default_factory=set)
    deaf: bool = False
    """Every read of the bus fails."""
    unread: set[str] = field(default_factory=set)
    """Entries that cannot be read, one by one."""
    prepared: dict[str, set[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    """What a driver saw that must never be."""
    boot: int = 1

    @property
    def readable(self) -> bool:
        return not self.deaf and not self.unread

    def reboot(self) -> None:
        self.boot += 1
        self.prepared.clear()


class Driver:
    """Publishes the table; knows for whom each device is set up."""

    hardware: Hardware

    def __init__(self, node: Node, settings: None) -> None:
        self.node = node

    @hookimpl
    def publish_devices(self) -> Iterator[Device | Unread]:
        if self.hardware.deaf:
            raise OSError("the bus does not answer")
        for name, minor in list(self.hardware.minors.items()):
            if name in self.hardware.unread:
                yield Unread(f"/sys/{name}", "EIO")
            elif name not in self.hardware.gone:
                yield Device(
                    name=name,
                    kind="thing",
                    nodes=(DeviceNode(path=f"/dev/{name}", major=MAJOR, minor=minor),),
                    parts=PARTS[name],
                    shareable=name == "open",
                    entry=f"/sys/{name}",
                )

    @hookimpl
    def prepare_device(self, device: Device, hold: Hold) -> None:
        hold.remember(was="quiet")
        users = self.hardware.prepared.setdefault(device.name, set())
        if users - {hold.claim.uid} and not device.shareable:
            self.hardware.wrong.append(f"{device.name} for {hold.claim.uid} beside {users}")
        users.add(hold.claim.uid)

    @hookimpl
    def unprepare_device(self, hold: Hold) -> None:
        self.hardware.prepared.get(hold.device.name, set()).discard(hold.claim.uid)


class TableNode(FakeNode):
    """A machine whose nodes are those of the table, at every moment."""

    hardware: Hardware

    @property
    def boot_id(self) -> str:
        return f"boot-{self.hardware.boot}"

    def info(self, path: str) -> NodeInfo | None:
        name = path.rpartition("/")[2]
        if name in self.hardware.gone or name not in self.hardware.minors:
            return None
        return NodeInfo(NodeType.CHAR, MAJOR, self.hardware.minors[name], 0o660, 44)


class ModelNode:
    """The node: hardware, directories, and the agents that run on it now, at most two."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "machine").mkdir()
        self.hardware = Hardware()
        self.paths = PathSettings(state=root / "state", cdi=root / "cdi", kubelet=root / "kubelet")

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[HardpointAgent]:
        node = TableNode(self.root / "machine")
        node.hardware = self.hardware
        driver = type("Driver", (Driver,), {"hardware": self.hardware})
        plugins = Plugins([Plugin("driver", "things", loaded=driver)])
        for plugin in plugins.all:
            plugins.start(plugin, node, {})
        settings = AgentSettings(paths=self.paths, node_name="node-1")
        agent = HardpointAgent(settings, node, instance="", plugins=plugins, events=False)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run)
            with anyio.fail_after(10):
                await agent.started.wait()
            yield agent
            tasks.cancel_scope.cancel()

    # -- looking ----------------------------------------------------------------------------------

    def delivered(self) -> dict[str, dict[str, int]]:
        """Return what each claim's CDI file delivers: device to minor, none for a sentinel."""
        found: dict[str, dict[str, int]] = {}
        for path in (self.root / "cdi").glob("*.json"):
            uid = path.stem.removeprefix("hardpoint.dev-")
            nodes = [
                node
                for device in json.loads(path.read_text())["devices"]
                for node in device["containerEdits"].get("deviceNodes", ())
            ]
            found[uid] = {
                node["path"].removeprefix("/dev/"): node["minor"]
                for node in nodes
                if "minor" in node
            }
        return found

    def usable(self, device: str) -> bool:
        """Say whether a device is there, and was read when it was last looked for."""
        return device not in self.hardware.gone

    async def scan(self, agents: Iterable[HardpointAgent]) -> None:
        """Let agents look, and wait until they know what there is to be known."""
        for agent in agents:
            agent._scanner._wake_all()
        if self.hardware.readable:
            for agent in agents:
                await eventually(lambda agent=agent: self._knows(agent), self.hardware)  # type: ignore[misc]

    def _knows(self, agent: HardpointAgent) -> bool:
        for name in PARTS:
            found = agent.offer.find(name, "hardpoint.dev")
            there = found is not None and not {"absent", "stale"} & {t.key for t in found.taints}
            if there is (name in self.hardware.gone):
                return False
            if there and found is not None:
                minor = found.device.nodes[0].minor
                if minor != self.hardware.minors[name]:
                    return False
        return True


async def eventually(true: Callable[[], bool], what: object = "") -> None:
    """Wait until something is true."""
    with anyio.move_on_after(8) as scope:
        while not true():  # noqa: ASYNC110 - a table sets no Event
            await anyio.sleep(0.002)
    assert not scope.cancelled_caught, f"it never came true: {what}"


def contend(one: Iterable[str], other: Iterable[str]) -> bool:
    """Say whether two claims on these devices exclude each other."""
    pairs: list[Any] = [(p, q) for a in one for b in other for p in PARTS[a] for q in PARTS[b]]
    return any(p.contends(q) for p, q in pairs)
