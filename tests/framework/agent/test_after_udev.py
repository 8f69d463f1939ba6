"""What udev adds to a device comes after the kernel's event, and is looked at too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from hardpoint._core.agent import HardpointAgent
from hardpoint._core.offer.afterudev import AfterUdev
from hardpoint._core.plugins.discovery import Plugin, Plugins


class Wakes:
    """Counts, and can be waited for."""

    def __init__(self) -> None:
        self.count = 0
        self._more = anyio.Event()

    def __call__(self) -> None:
        self.count += 1
        more, self._more = self._more, anyio.Event()
        more.set()

    async def until(self, count: int) -> None:
        with anyio.fail_after(10):
            while self.count < count:
                await self._more.wait()


@asynccontextmanager
async def after_udev(run: Path, wakes: Wakes) -> AsyncIterator[AfterUdev]:
    after = AfterUdev(run, wakes, quiet=0.02)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(after.run)
        yield after
        tasks.cancel_scope.cancel()


async def test_an_event_wakes_at_once_and_once_more_also_without_udev(tmp_path: Path) -> None:
    wakes = Wakes()
    async with after_udev(tmp_path, wakes) as after:
        after.heard()
        assert wakes.count == 1
        await wakes.until(2)


async def test_while_udev_has_events_left_the_second_look_waits(tmp_path: Path) -> None:
    (tmp_path / "udev").mkdir()
    queue = tmp_path / "udev/queue"
    queue.touch()
    wakes = Wakes()
    async with after_udev(tmp_path, wakes) as after:
        after.heard()
        with anyio.move_on_after(0.2):
            await wakes.until(2)
        assert wakes.count == 1
        queue.unlink()
        await wakes.until(2)


async def test_a_burst_has_one_second_look(tmp_path: Path) -> None:
    (tmp_path / "udev").mkdir()
    wakes = Wakes()
    async with after_udev(tmp_path, wakes) as after:
        for _ in range(100):
            after.heard()
        await wakes.until(101)
        with anyio.move_on_after(0.2):
            await wakes.until(102)
        assert wakes.count == 101


async def test_the_group_that_udev_gives_a_node_is_noticed(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel: list[Callable[[], None]] = []

    async def listen(wake: Callable[[], None], board: object) -> None:
        kernel.append(wake)

    monkeypatch.setattr("hardpoint._core.agent.listen", listen)
    (world.machine.run / "udev").mkdir(parents=True, exist_ok=True)
    world.radio("radio0", 0)
    async with running(world) as agent:
        (tell,) = kernel
        tell()
        with anyio.fail_after(10):
            while agent._scanner.scans < 2:  # noqa: ASYNC110 - what the event asked for
                await anyio.sleep(0.01)
        world.machine.platform("acme-radio0").node("radio", "radio0", 240, 0, gid=20)

        with anyio.fail_after(10):
            async for offer in agent.offers():
                if offer.devices[0].device.nodes[0].gid == 20:
                    break


@asynccontextmanager
async def running(world: Any) -> AsyncIterator[HardpointAgent]:
    """Run an agent that listens to the kernel."""
    node = world.machine.node(writable=True)
    plugins = Plugins([Plugin("driver", "radios", loaded=world.driver)])
    plugins.start(plugins.all[0], node, {})
    agent = HardpointAgent(world.settings(), node, instance="", plugins=plugins)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent.run)
        with anyio.fail_after(10):
            await agent.started.wait()
        yield agent
        tasks.cancel_scope.cancel()
