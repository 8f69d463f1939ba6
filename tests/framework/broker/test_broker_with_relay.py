"""The broker with the relay it really has: late calls, threads, and a loop that never blocks."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from blockbuster import BlockBuster, BlockingError
from broker_world import World, claim, prepare

from hardpoint import contract, hookimpl
from hardpoint._core.claims.broker import Broker
from hardpoint._core.plugins import relay as relay_module
from hardpoint._core.plugins.discovery import Plugin, Plugins
from hardpoint._core.plugins.faults import FaultBoard
from hardpoint._core.plugins.relay import Relay
from hardpoint.contract import Spec
from hardpoint.errors import HoldBusy
from hardpoint.model import Device, Hold, HoldState
from hardpoint.node import Node


class Slow:
    """A driver whose card takes until ``go`` to be prepared."""

    go: threading.Event
    calls: list[str]

    def __init__(self, node: Node, settings: None) -> None:
        self.node = node

    @hookimpl
    def prepare_device(self, device: Device, hold: Hold) -> None:
        self.calls.append("prepare")
        self.go.wait(10)
        hold.remember(done=True)

    @hookimpl
    def unprepare_device(self, hold: Hold) -> None:
        self.calls.append(f"unprepare {hold.remembered.get('done')}")


@pytest.fixture
def slow() -> Iterator[type[Slow]]:
    made: type[Slow] = type("Slow", (Slow,), {"go": threading.Event(), "calls": []})
    yield made
    made.go.set()


@asynccontextmanager
async def brokered(root: Path, driver: type[Slow]) -> AsyncIterator[tuple[World, Broker]]:
    world = World(root)
    plugin = Plugin("driver", "slow", loaded=driver)
    plugins = Plugins([plugin])
    plugins.start(plugin, world.node, {})
    world.add(Device(name="slow-0", kind="x", driver="slow"))
    async with Relay(plugins, FaultBoard()) as relay:
        world.hooks = relay  # type: ignore[assignment]
        async with world.broker() as broker:
            yield world, broker


@pytest.fixture
def short_budgets(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Give drivers 50 ms for their effects, until it is undone."""

    def spec_of(function: Callable[..., Any]) -> Spec:
        spec = contract.spec_of(function)
        effects = ("prepare_device", "unprepare_device")
        return replace(spec, budget=0.05) if function.__name__ in effects else spec

    monkeypatch.setattr(relay_module, "spec_of", spec_of)
    return monkeypatch


async def test_a_prepare_that_is_late_is_joined_and_never_started_twice(
    tmp_path: Path, slow: type[Slow], short_budgets: pytest.MonkeyPatch
) -> None:
    async with brokered(tmp_path, slow) as (_, broker):
        for _ in range(3):
            with pytest.raises(HoldBusy):
                await prepare(broker, claim("u1", "slow-0"))
        assert slow.calls == ["prepare"]
        short_budgets.undo()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(prepare, broker, claim("u1", "slow-0"))
            await anyio.wait_all_tasks_blocked()
            slow.go.set()
        assert [hold.state for hold in broker.holds()] == [HoldState.HELD]


async def test_an_unprepare_waits_for_the_prepare_that_still_runs(
    tmp_path: Path, slow: type[Slow], short_budgets: pytest.MonkeyPatch
) -> None:
    async with brokered(tmp_path, slow) as (_, broker):
        for call in (prepare(broker, claim("u1", "slow-0")), broker.unprepare(claim("u1").key)):
            with pytest.raises(HoldBusy):
                await call
        assert slow.calls == ["prepare"]
        short_budgets.undo()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(broker.unprepare, claim("u1").key)
            await anyio.wait_all_tasks_blocked()
            slow.go.set()
        assert slow.calls == ["prepare", "unprepare True"]
        assert broker.holds() == ()


@pytest.mark.field_case("K05")
async def test_the_loop_is_never_blocked(tmp_path: Path, slow: type[Slow]) -> None:
    slow.go.set()
    guard = BlockBuster("hardpoint._core")
    async with brokered(tmp_path, slow) as (world, broker):
        guard.activate()
        try:
            with pytest.raises(BlockingError):  # the guard sees what it has to see
                broker._ledger._reader.read()
            await broker.restore()
            await prepare(broker, claim("u1", "slow-0"))
            await prepare(broker, claim("u1", "slow-0"))
            await broker.refresh(world.offer())
            broker.holds()
            broker.quarantined()
            await broker.unprepare(claim("u1").key)
            await broker.attend()
        finally:
            guard.deactivate()
        assert broker.holds() == ()
