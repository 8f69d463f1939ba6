"""The driver under the contract that every driver is held to, and its health."""

from __future__ import annotations

from importlib import metadata

import pytest

from hardpoint import Condition
from hardpoint.testing import DriverContract, FakeMachine
from hardpoint_usb import Usb


class TestUsbContract(DriverContract):
    plugin = Usb
    parameters = ({"usbfs": True}, {"usbfs": False})

    @pytest.fixture
    def populated(self, machine: FakeMachine) -> FakeMachine:
        machine.usb("1-1", serial="A1", product_name="Adapter").interface(
            0, driver="ftdi_sio"
        ).node("tty", "ttyUSB0", 188, 0, gid=20)
        machine.usb("1-4.2").interface(0)
        key = machine.usb("1-5")
        key.interface(0, klass="03", driver="usbhid").node("hidraw", "hidraw0", 240, 0)
        key.interface(1, klass="03", driver="usbhid").node("hidraw", "hidraw1", 240, 1)
        key.interface(2, klass="0b")
        machine.usb("1-6").interface(0, klass="e0", driver="btusb")
        machine.virtual("misc", "uinput", 10, 223)
        return machine


def test_it_is_found_by_its_entry_point() -> None:
    (point,) = metadata.entry_points(group="hardpoint.drivers", name="usb")

    assert point.load() is Usb


def test_a_device_is_healthy_while_it_is_there_and_allowed(machine: FakeMachine) -> None:
    adapter = machine.usb("1-1")
    interface = adapter.interface(0, driver="ftdi_sio").node("tty", "ttyUSB0", 188, 0)
    driver = Usb(machine.node(), Usb.Settings())
    (device,) = (d for d in driver.publish_devices() if d.origin)  # type: ignore[union-attr]

    def condition() -> Condition:
        return driver.check_device(device).condition  # type: ignore[arg-type]

    assert condition() is Condition.HEALTHY
    adapter.set(authorized=0)
    assert condition() is Condition.UNHEALTHY
    adapter.set(authorized=1)
    interface.remove()
    assert condition() is Condition.UNHEALTHY
    adapter.remove()
    assert condition() is Condition.UNHEALTHY


def test_a_device_whose_state_cannot_be_read_is_neither(machine: FakeMachine) -> None:
    adapter = machine.usb("1-1")
    adapter.interface(0)
    driver = Usb(machine.node(), Usb.Settings())
    (device,) = driver.publish_devices()
    adapter.unreadable("authorized")

    with pytest.raises(OSError, match=r"."):
        driver.check_device(device)  # type: ignore[arg-type]
