"""A driver that a claim's program detached is bound again, and nothing else is touched."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from usb_seen import Seen

from hardpoint import Device, Hold, Node
from hardpoint.errors import LedgerUnwritable
from hardpoint.model import ClaimKey
from hardpoint.testing import FakeMachine
from hardpoint.testing.fake_hardware import FakeInterface
from hardpoint_usb import Usb
from hardpoint_usb.settings import UsbParameters

Look = Callable[..., Seen]

CLAIM = ClaimKey("uid-1", "home", "ups", "hardpoint.dev")


def _ups(machine: FakeMachine) -> FakeInterface:
    ups = machine.usb("3-4", vendor="051d", product="0002", serial="UPS-1")
    return ups.interface(0, klass="03", driver="usbhid").node("hidraw", "hidraw0", 240, 0)


def _bind_file(machine: FakeMachine, driver: str = "usbhid") -> Path:
    file = machine.sys / f"bus/usb/drivers/{driver}/bind"
    file.write_text("")
    return file


def _driver(machine: FakeMachine) -> tuple[Usb, Node]:
    node = machine.node(writable=True)
    return Usb(node, Usb.Settings()), node


def _prepared(
    machine: FakeMachine, device: Device, usbfs: bool | None = None, hold: Hold | None = None
) -> Hold:
    hold = hold or Hold(claim=CLAIM, device=device, request="r")
    _driver(machine)[0].prepare_device(device, UsbParameters(usbfs=usbfs), hold)
    return hold


@pytest.mark.field_case("H06")
def test_the_driver_is_bound_again_when_the_claim_ends(machine: FakeMachine, look: Look) -> None:
    interface, bind = _ups(machine), _bind_file(machine)
    hold = _prepared(machine, look().devices["usb-3-4-1-0"])
    interface.unbind()
    _driver(machine)[0].unprepare_device(hold)

    assert bind.read_text() == "3-4:1.0"
    assert hold.remembered["drivers"] == {"3-4:1.0": "usbhid"}


def test_what_is_remembered_survives_a_second_prepare(machine: FakeMachine, look: Look) -> None:
    interface = _ups(machine)
    device = look().devices["usb-3-4-1-0"]
    hold = _prepared(machine, device)
    interface.unbind()
    _prepared(machine, device, hold=hold)

    assert hold.remembered["drivers"] == {"3-4:1.0": "usbhid"}


def test_nothing_is_prepared_when_it_cannot_be_remembered(machine: FakeMachine, look: Look) -> None:
    _ups(machine)
    device = look().devices["usb-3-4-1-0"]

    def full(_: object) -> None:
        raise LedgerUnwritable("ledger", "no space")

    with pytest.raises(LedgerUnwritable):
        _prepared(machine, device, hold=Hold(claim=CLAIM, device=device, request="r", store=full))


def test_every_interface_that_usbfs_reaches_is_given_back(machine: FakeMachine, look: Look) -> None:
    board = machine.usb("1-1")
    lines = [
        board.interface(n, driver="ftdi_sio").node("tty", f"ttyUSB{n}", 188, n) for n in range(2)
    ]
    bind = _bind_file(machine, "ftdi_sio")
    hold = _prepared(machine, look().devices["usb-1-1-1-0"], usbfs=True)
    lines[1].unbind()
    _driver(machine)[0].unprepare_device(hold)

    assert bind.read_text() == "1-1:1.1"


def test_a_holder_without_usbfs_detached_nothing(machine: FakeMachine, look: Look) -> None:
    interface, bind = _ups(machine), _bind_file(machine)
    hold = _prepared(machine, look().devices["usb-3-4-1-0"], usbfs=False)
    interface.unbind()
    _driver(machine)[0].unprepare_device(hold)

    assert bind.read_text() == ""


def test_what_was_unbound_before_the_claim_stays_unbound(machine: FakeMachine, look: Look) -> None:
    machine.usb("3-4").interface(0, klass="03")
    (machine.sys / "bus/usb/drivers/usbhid").mkdir(parents=True)
    bind = _bind_file(machine)
    hold = _prepared(machine, look().devices["usb-3-4"])
    _driver(machine)[0].unprepare_device(hold)

    assert bind.read_text() == ""
    assert hold.remembered["drivers"] == {}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda m, i: i.bind("usbhid"),
        lambda m, i: i.bind("usbfs"),
        lambda m, i: i.bind("hid-other"),
        lambda m, i: i.unbind().set(authorized=0),
        lambda m, i: (i.unbind(), m.usb("3-4", vendor="051d", product="0002", authorized=0)),
        lambda m, i: i.unbind().set(driver_override="vfio"),
        lambda m, i: (i.unbind(), m.usb("3-4", vendor="051d", product="0002", serial="UPS-2")),
        lambda m, i: i.remove(),
    ],
    ids=[
        "still bound",
        "held by a program",
        "bound to another driver",
        "interface not authorised",
        "device not authorised",
        "driver override",
        "another unit",
        "unplugged",
    ],
)
def test_nothing_is_written_where_somebody_else_decided(
    machine: FakeMachine, look: Look, spoil: Callable[[FakeMachine, FakeInterface], object]
) -> None:
    interface, bind = _ups(machine), _bind_file(machine)
    hold = _prepared(machine, look().devices["usb-3-4-1-0"])
    spoil(machine, interface)
    _driver(machine)[0].unprepare_device(hold)

    assert bind.read_text() == ""


@pytest.mark.parametrize("override", ["usbhid", "(null)"])
def test_an_override_for_the_same_driver_is_no_objection(
    machine: FakeMachine, look: Look, override: str
) -> None:
    interface, bind = _ups(machine), _bind_file(machine)
    hold = _prepared(machine, look().devices["usb-3-4-1-0"])
    interface.unbind().set(driver_override=override)
    _driver(machine)[0].unprepare_device(hold)

    assert bind.read_text() == "3-4:1.0"


def test_a_failed_bind_is_a_line_in_the_log_and_no_failed_call(
    machine: FakeMachine, look: Look, caplog: pytest.LogCaptureFixture
) -> None:
    interface = _ups(machine)
    hold = _prepared(machine, look().devices["usb-3-4-1-0"])
    interface.unbind()
    with caplog.at_level(logging.WARNING):
        _driver(machine)[0].unprepare_device(hold)

    assert "interface=3-4:1.0 driver=usbhid" in caplog.text


def test_a_recorded_machine_is_never_written(machine: FakeMachine, look: Look) -> None:
    interface, bind = _ups(machine), _bind_file(machine)
    hold = _prepared(machine, look().devices["usb-3-4-1-0"])
    interface.unbind()
    Usb(machine.node(), Usb.Settings()).unprepare_device(hold)

    assert bind.read_text() == ""


def test_a_hold_that_was_never_prepared_is_undone_in_silence(
    machine: FakeMachine, look: Look
) -> None:
    _ups(machine)
    hold = Hold(claim=CLAIM, device=look().devices["usb-3-4-1-0"], request="r")
    _driver(machine)[0].unprepare_device(hold)

    assert dict(hold.remembered) == {}
