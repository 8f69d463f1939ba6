"""When drivers are asked, and what their answers do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hardpoint import Device, Unread, hookimpl
from hardpoint._core.offer import scanner as scanner_module
from hardpoint._core.offer.inventory import Listing
from hardpoint._core.offer.scanner import Scanner
from hardpoint._core.offer.uevents import Told, Wake, matters
from hardpoint._core.plugins.discovery import Plugin, Plugins
from hardpoint._core.plugins.faults import FaultBoard
from hardpoint._core.plugins.relay import Relay
from hardpoint.node import Node


class _Driver:
    def __init__(self, node: Any, settings: Any) -> None: ...


class _Watched:
    """Lets a test wait until a driver's listing is what it should be."""

    def __init__(self) -> None:
        self.scanner: Scanner
        self._changed = anyio.Event()

    def __call__(self, driver: str) -> None:
        self._changed.set()

    async def until(self, true: Callable[[], bool]) -> None:
        with anyio.fail_after(10):
            while not true():
                self._changed = anyio.Event()
                await self._changed.wait()


async def _scanner(stack: AsyncExitStack, **drivers: type) -> tuple[Scanner, _Watched]:
    plugins = Plugins()
    for name, made in drivers.items():
        plugin = Plugin("driver", name, loaded=made)
        plugins.all.append(plugin)
        plugins.start(plugin, Node(name="n"), {})
    relay = await stack.enter_async_context(Relay(plugins, FaultBoard()))
    watched = _Watched()
    scanner = Scanner(relay, watched)
    tasks = await stack.enter_async_context(anyio.create_task_group())
    stack.callback(tasks.cancel_scope.cancel)
    tasks.start_soon(scanner.run)
    return scanner, watched


async def test_a_hung_driver_delays_nobody_elses_first_listing() -> None:
    gate = threading.Event()

    class Hung(_Driver):
        @hookimpl
        def publish_devices(self) -> list[Device]:
            gate.wait(10)
            return []

    class Live(_Driver):
        @hookimpl
        def publish_devices(self) -> list[Device]:
            return [Device(name="a", kind="k")]

    async with AsyncExitStack() as stack:
        scanner, watched = await _scanner(stack, hung=Hung, live=Live)
        await watched.until(lambda: "live" in scanner.listings)

        assert [d.name for d in scanner.listings["live"].devices] == ["a"]
        assert not scanner.complete
        gate.set()
        await watched.until(lambda: scanner.complete)


async def test_a_hint_leads_to_one_more_walk_and_a_burst_to_no_more() -> None:
    walks: list[int] = []

    class Counts(_Driver):
        @hookimpl
        def publish_devices(self) -> list[Device]:
            walks.append(1)
            return [Device(name=f"walk-{len(walks)}", kind="k")]

    async with AsyncExitStack() as stack:
        scanner, watched = await _scanner(stack, counts=Counts)
        await watched.until(lambda: scanner.complete)
        for _ in range(50):
            scanner.wake.set()
        await watched.until(lambda: scanner.listings["counts"].devices[0].name == "walk-2")

    assert len(walks) == 2


@pytest.mark.field_case("A17")
async def test_what_was_away_for_a_moment_is_back_though_its_event_came_during_the_walk() -> None:
    """Unplugged and plugged in again faster than a walk ends: the last event must not be lost."""
    walking, go_on = threading.Event(), threading.Event()
    plugged = [Device(name="radio", kind="k")]

    class Radio(_Driver):
        @hookimpl
        def publish_devices(self) -> list[Device]:
            seen = list(plugged)
            walking.set()
            go_on.wait(10)
            return seen

    go_on.set()
    async with AsyncExitStack() as stack:
        scanner, watched = await _scanner(stack, radio=Radio)
        await watched.until(lambda: scanner.complete)
        away = [plugged.pop()]
        walking.clear()
        go_on.clear()
        scanner.wake.set()
        await anyio.to_thread.run_sync(walking.wait, 10)
        plugged += away
        scanner.wake.set()
        go_on.set()
        await watched.until(lambda: not scanner.listings["radio"].devices)
        await watched.until(lambda: bool(scanner.listings["radio"].devices))


async def test_a_failed_walk_is_tried_again_without_an_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scanner_module, "backoff", lambda first, last: iter([0.001] * 99))
    walks: list[int] = []

    class Late(_Driver):
        @hookimpl
        def publish_devices(self) -> list[Any]:
            walks.append(1)
            if len(walks) == 1:
                raise OSError("not yet")
            if len(walks) == 2:
                return [Unread("e", "EIO")]
            return [Device(name="a", kind="k")]

    async with AsyncExitStack() as stack:
        scanner, watched = await _scanner(stack, late=Late)
        await watched.until(lambda: scanner.complete and bool(scanner.listings["late"].devices))

    assert len(walks) == 3


async def test_what_was_listed_before_a_restart_stands_until_the_driver_answers() -> None:
    gate = threading.Event()

    class Slow(_Driver):
        @hookimpl
        def publish_devices(self) -> list[Device]:
            gate.wait(10)
            return [Device(name="new", kind="k")]

    async with AsyncExitStack() as stack:
        plugins = Plugins([Plugin("driver", "slow", loaded=Slow)])
        plugins.start(plugins.all[0], Node(name="n"), {})
        relay = await stack.enter_async_context(Relay(plugins, FaultBoard()))
        watched = _Watched()
        scanner = Scanner(relay, watched)
        old = Listing("slow", (Device(name="old", kind="k", driver="slow"),))
        scanner.restore({"slow": old})
        assert list(scanner.listings["slow"].stale) == ["old"]
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(scanner.run)
        gate.set()
        await watched.until(lambda: scanner.listings["slow"].devices[0].name == "new")

        assert not scanner.listings["slow"].stale


@pytest.mark.parametrize("changes", [True, False])
async def test_what_only_the_backstop_finds_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, changes: bool
) -> None:
    monkeypatch.setattr("hardpoint._core.offer.scanner.backstop", lambda: 0.05)
    monkeypatch.setattr("hardpoint._core.offer.scanner.BACKSTOP_TAKES", 0.2)
    walks: list[int] = []

    class Quiet(_Driver):
        @hookimpl
        def publish_devices(self) -> list[Device]:
            walks.append(1)
            serial = f"{len(walks)}" if changes else "1"
            return [
                Device(name="same", kind="k"),
                Device(name="other", kind="k", attributes={"serial": serial}),
            ]

    async with AsyncExitStack() as stack:
        scanner, watched = await _scanner(stack, quiet=Quiet)
        await watched.until(lambda: len(walks) > 3)

        assert bool(scanner.missed_events) is changes
        assert ("no event announced what=other" in caplog.text) is changes


@pytest.mark.field_case("G20")
async def test_settling_waits_for_quiet_but_not_longer_than_its_ceiling() -> None:
    wake = Wake()
    wake.set()

    with anyio.fail_after(5):
        await wake.settled(quiet=0.0)
        assert not wake.waiting()
        async with anyio.create_task_group() as tasks:

            async def never_quiet() -> None:
                while True:
                    wake.set()
                    await anyio.lowlevel.checkpoint()

            tasks.start_soon(never_quiet)
            await wake.settled(quiet=3600, ceiling=0.01)
            tasks.cancel_scope.cancel()


class _Event:
    def __init__(self, action: str, path: str, subsystem: str | None = None) -> None:
        self.action: str | None = action
        self.device_path, self.subsystem = path, subsystem


@pytest.mark.parametrize(
    ("event", "wakes"),
    [
        (_Event("add", "/devices/pci0000:00/0000:00:14.0/usb1/1-2", "usb"), True),
        (_Event("bind", "/devices/pci0000:00/0000:00:02.0", "pci"), True),
        (_Event("remove", "/devices/pci0000:00/0000:00:02.0", "pci"), True),
        (_Event("add", "/devices/virtual/misc/uhid", "misc"), True),
        (_Event("add", "/devices/virtual/bluetooth/hci0", "bluetooth"), True),
        (_Event("change", "/devices/pci0000:00/0000:00:02.0/drm/card0", "drm"), True),
        (_Event("change", "/devices/pci0000:00/0000:00:1f.2/ata1/block/sr0", "block"), False),
        (_Event("add", "/devices/virtual/net/veth12ab", "net"), False),
        (_Event("add", "/devices/virtual/net/veth12ab/queues/rx-0", "queues"), False),
        (_Event("add", "/devices/virtual/block/loop0", "block"), False),
        (_Event("add", "/module/usb_storage", "module"), False),
        (_Event("add", "/kernel/slab/x", "slab"), False),
        (_Event("online", "/devices/system/cpu/cpu1", "cpu"), False),
        (_Event("add", "/devices/virtual", None), False),
    ],
)
@pytest.mark.field_case("B20")
def test_only_events_of_hardware_wake_the_drivers(event: _Event, wakes: bool) -> None:
    assert matters(event) is wakes


def test_a_virtual_device_that_is_added_again_and_again_is_news_once() -> None:
    told = Told()
    autofs, adapter = "/devices/virtual/misc/autofs", "/devices/pci0000:00/0000:00:14.0/usb1/1-2"

    first = told.news(_Event("add", autofs, "misc"))
    again = told.news(_Event("add", autofs, "misc"))
    gone = told.news(_Event("remove", autofs, "misc"))
    back = told.news(_Event("add", autofs, "misc"))
    real = [told.news(_Event("add", adapter, "usb")) for _ in range(2)]

    assert (first, again, gone, back) == (True, False, True, True)
    assert real == [True, True]
