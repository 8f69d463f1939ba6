"""The driver asks for another look once a device that was just plugged in has had its time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from hardpoint.testing import FakeMachine
from hardpoint_usb import Usb
from hardpoint_usb.scan import Scan
from hardpoint_usb.settling import Settling


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Hints:
    """Counts hints and wakes who waits for one."""

    def __init__(self) -> None:
        self.count = 0
        self.came = anyio.Event()

    def __call__(self) -> None:
        self.count += 1
        self.came.set()


async def test_a_time_that_has_come_gives_one_hint() -> None:
    settling, hints = Settling(), Hints()
    settling.look_again_in(0.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(settling.watch, hints)
        with anyio.fail_after(10):
            await hints.came.wait()
        tasks.cancel_scope.cancel()

    assert hints.count == 1


async def test_a_time_set_while_it_sleeps_is_heard_from_any_thread() -> None:
    settling, hints = Settling(), Hints()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(settling.watch, hints)
        await anyio.wait_all_tasks_blocked()
        await anyio.to_thread.run_sync(settling.look_again_in, 0.0)
        with anyio.fail_after(10):
            await hints.came.wait()
        tasks.cancel_scope.cancel()

    assert hints.count == 1


async def test_a_time_that_is_taken_back_gives_no_hint() -> None:
    clock, hints = Clock(), Hints()
    settling = Settling(clock)
    settling.look_again_in(50.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(settling.watch, hints)
        await anyio.wait_all_tasks_blocked()
        clock.now += 51
        settling.look_again_in(None)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()

    assert hints.count == 0


async def test_a_time_that_has_passed_meanwhile_is_noticed_at_the_next_look() -> None:
    clock, hints = Clock(), Hints()
    settling = Settling(clock)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(settling.watch, hints)
        await anyio.wait_all_tasks_blocked()
        settling.look_again_in(50.0)
        await anyio.wait_all_tasks_blocked()
        assert hints.count == 0
        settling.look_again_in(-1.0)
        with anyio.fail_after(10):
            await hints.came.wait()
        tasks.cancel_scope.cancel()

    assert hints.count == 1


async def test_a_look_now_is_not_lost_to_a_scan_that_ends_after_it() -> None:
    settling, hints = Settling(), Hints()
    settling.look_now()
    settling.look_again_in(None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(settling.watch, hints)
        with anyio.fail_after(10):
            await hints.came.wait()
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()

    assert hints.count == 1


async def test_watching_again_after_a_crash_forgets_nothing() -> None:
    settling, hints = Settling(), Hints()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await settling.watch(hints)
    settling.look_again_in(0.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(settling.watch, hints)
        with anyio.fail_after(10):
            await hints.came.wait()
        tasks.cancel_scope.cancel()

    assert hints.count == 1


def test_no_descriptor_is_left_open() -> None:
    before = set(Path("/proc/self/fd").iterdir())

    async def once() -> None:
        with anyio.move_on_after(0):
            await Settling().watch(lambda: None)

    anyio.run(once)

    assert len(set(Path("/proc/self/fd").iterdir())) <= len(before)


@pytest.mark.parametrize(("age", "waits"), [(4900, True), (60_000, False)])
async def test_a_scan_sets_the_time_for_a_device_that_is_waited_for(
    machine: FakeMachine, age: int, waits: bool
) -> None:
    machine.usb("1-2").attribute("power/connected_duration", age).interface(0)
    driver, hints = Usb(machine.node(), Usb.Settings()), Hints()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(driver.watch_devices, hints)
        await anyio.to_thread.run_sync(_scan(driver))
        if waits:
            with anyio.fail_after(10):
                await hints.came.wait()
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()

    assert hints.count == int(waits)


@pytest.mark.parametrize("there", [True, False])
async def test_a_scan_before_udev_looked_is_followed_by_another(
    machine: FakeMachine, there: bool
) -> None:
    machine.usb("1-2").attribute("power/connected_duration", 80).interface(
        0, driver="ftdi_sio"
    ).node("tty", "ttyUSB0", 188, 0)
    (machine.run / "udev/data").mkdir(parents=True)
    if there:
        (machine.run / "udev/data/c188:0").write_text("I:1\n")
    driver, hints = Usb(machine.node(), Usb.Settings()), Hints()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(driver.watch_devices, hints)
        await anyio.to_thread.run_sync(_scan(driver))
        if not there:
            with anyio.fail_after(10):
                await hints.came.wait()
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()

    assert hints.count == int(not there)


@pytest.mark.field_case("G03")
def test_without_udev_nothing_is_waited_for(machine: FakeMachine) -> None:
    machine.usb("1-2").attribute("power/connected_duration", 80).interface(
        0, driver="ftdi_sio"
    ).node("tty", "ttyUSB0", 188, 0)
    scan = Scan(machine.node(), Usb.Settings(), lambda node: None)

    assert len(list(scan.listed())) == 1
    assert scan.look_again_in is None


def _scan(driver: Usb) -> Callable[[], object]:
    return lambda: list(driver.publish_devices())
