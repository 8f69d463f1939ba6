"""What a claim holds stays what it is, whatever its holder or the world does to it."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from usb_seen import Seen

from hardpoint import Device
from hardpoint.testing import FakeMachine
from hardpoint.testing.fake_hardware import FakeInterface

Look = Callable[..., Seen]


def _ups(machine: FakeMachine) -> FakeInterface:
    ups = machine.usb("3-4", vendor="051d", product="0002", serial="UPS-1")
    return ups.interface(0, klass="03", driver="usbhid").node("hidraw", "hidraw0", 240, 0)


def _detach(interface: FakeInterface, driver: str = "") -> None:
    """Do what libusb does: the driver goes, its nodes with it, and usbfs may come."""
    interface.bind(driver)
    for kind in ("hidraw", "tty"):
        shutil.rmtree(interface.path / kind, ignore_errors=True)


def _paths(device: Device) -> list[str]:
    return [node.path for node in device.nodes]


def test_a_program_that_detached_the_driver_keeps_its_device_and_usbfs(
    machine: FakeMachine, look: Look
) -> None:
    interface = _ups(machine)
    held = look().devices

    for driver in ("usbfs", ""):
        _detach(interface, driver)
        seen = look(held=held)

        assert seen.names == ["usb-3-4-1-0"], "and not the whole device beside it"
        assert _paths(seen.devices["usb-3-4-1-0"]) == ["/dev/bus/usb/003/002"]
        assert seen.devices["usb-3-4-1-0"].taints == ()


def test_without_a_claim_the_same_device_is_driven_by_programs(
    machine: FakeMachine, look: Look
) -> None:
    _detach(_ups(machine))

    assert look().names == ["usb-3-4"]


def test_a_held_whole_device_stays_whole_when_a_driver_binds(
    machine: FakeMachine, look: Look
) -> None:
    radio = machine.usb("1-2", vendor="0bda", product="2838")
    interface = radio.interface(0)
    held = look().devices
    interface.bind("dvb_usb_rtl28xxu").node("dvb", "dvb/adapter0/demux0", 212, 0)

    assert look(held=held).names == ["usb-1-2"]
    assert look().names == ["usb-1-2-1-0"]


def test_a_program_in_a_claims_container_does_not_taint_its_own_device(
    machine: FakeMachine, look: Look
) -> None:
    interface = machine.usb("1-2").interface(0)
    held = look().devices
    interface.bind("usbfs")

    assert look(held=held).devices["usb-1-2"].taints == ()
    assert look().devices["usb-1-2"].taints != ()


def test_usbfs_is_not_taken_from_a_claim_when_a_second_driver_binds(
    machine: FakeMachine, look: Look
) -> None:
    board = machine.usb("1-1", vendor="2341", product="8036")
    board.interface(0, driver="cdc_acm").node("tty", "ttyACM0", 166, 0)
    late = board.interface(2, klass="03")
    held = look().devices
    late.bind("usbhid").node("hidraw", "hidraw0", 240, 0)
    seen = look(held=held)

    assert _paths(seen.devices["usb-1-1-1-0"]) == ["/dev/ttyACM0", "/dev/bus/usb/001/002"]
    assert _paths(seen.devices["usb-1-1-1-2"]) == ["/dev/hidraw0"]
    assert any(
        a.contends(b)
        for a in seen.devices["usb-1-1-1-0"].all_parts
        for b in seen.devices["usb-1-1-1-2"].all_parts
    ), "the second is a rival while the first is held"


def test_a_held_device_that_is_unplugged_is_gone(machine: FakeMachine, look: Look) -> None:
    interface = _ups(machine)
    held = look().devices
    interface.remove()
    (device,) = (machine.sys / "bus/usb/devices").glob("3-4")
    shutil.rmtree(device.resolve())
    device.unlink()

    assert look(held=held).names == []


def test_another_model_in_the_port_of_a_held_device_is_nobodys(
    machine: FakeMachine, look: Look
) -> None:
    _ups(machine)
    held = look().devices
    machine.usb("3-4", vendor="10c4", product="ea60", devnum=9)
    seen = look(held=held)

    assert seen.names == []
    assert seen.rules() == {"3-4": "other-model"}
    assert "usb-3-4-1-0" in seen.withheld["3-4"].reason


def test_an_equal_unit_takes_the_place_of_a_held_one(machine: FakeMachine, look: Look) -> None:
    _ups(machine)
    held = look().devices
    machine.usb("3-4", vendor="051d", product="0002", serial="UPS-2", devnum=9)

    assert _paths(look(held=held).devices["usb-3-4-1-0"])[-1] == "/dev/bus/usb/003/009"


def test_a_device_that_the_admin_renamed_is_known_by_its_port(
    machine: FakeMachine, look: Look
) -> None:
    interface = _ups(machine)
    (device,) = look().devices.values()
    _detach(interface, "usbfs")

    assert look(held={"the-ups": device}).names == ["usb-3-4-1-0"]


def test_a_disk_that_its_holder_gave_a_signature_stays_its_holders(
    machine: FakeMachine, look: Look
) -> None:
    machine.mount("0:5", "/")
    stick = machine.usb("1-1", vendor="0951", product="1666", serial="STICK-1")
    stick.interface(0, klass="08", driver="usb-storage").disk("sdb", 8, 16)
    held = look().devices
    record = machine.run / "udev/data/b8:16"
    record.parent.mkdir(parents=True)
    record.write_text("E:ID_FS_TYPE=ceph_bluestore\nE:ID_FS_USAGE=other\n")

    assert look().names == ["usb-1-1-1-0"]  # the framework keeps it, or a rule names it
    assert _paths(look(held=held).devices["usb-1-1-1-0"]) == [
        "/dev/sdb",
        "/dev/bus/usb/001/002",
    ]
    stick.attribute("serial", "STICK-2")
    assert look(held=held).rules() == {"1-1:1.0": "in-use"}


def test_a_disk_in_use_that_took_the_place_of_a_held_one_is_not_its_holders(
    machine: FakeMachine, look: Look
) -> None:
    stick = machine.usb("1-1", vendor="0951", product="1666", serial="STICK-1")
    stick.interface(0, klass="08", driver="usb-storage").disk("sdb", 8, 16)
    machine.mount("0:5", "/")
    held = look().devices
    stick.attribute("serial", "STICK-2")
    machine.mount("8:16", "/media")

    assert look(held=held).rules() == {"1-1:1.0": "in-use"}


# -- successors ------------------------------------------------------------------------------------

_SUCCESSORS = [{"first": "1a6e:089a", "then": "18d1:9302"}]


def test_a_successor_keeps_the_ids_of_the_first_and_says_its_own(
    machine: FakeMachine, look: Look
) -> None:
    machine.usb("1-2", vendor="18d1", product="9302").interface(0)

    attributes = look(successors=_SUCCESSORS).devices["usb-1-2"].attributes

    assert (attributes["vendor"], attributes["product"]) == ("1a6e", "089a")
    assert (attributes["presentVendor"], attributes["presentProduct"]) == ("18d1", "9302")


def test_the_first_identity_says_nothing_of_a_successor(machine: FakeMachine, look: Look) -> None:
    machine.usb("1-2", vendor="1a6e", product="089a").interface(0)

    attributes = look(successors=_SUCCESSORS).devices["usb-1-2"].attributes

    assert (attributes["vendor"], attributes["product"]) == ("1a6e", "089a")
    assert "presentVendor" not in attributes


def test_a_claim_keeps_its_device_through_a_change_of_ids(machine: FakeMachine, look: Look) -> None:
    machine.usb("1-2", vendor="1a6e", product="089a", devnum=4).interface(0)
    held = look(successors=_SUCCESSORS).devices
    machine.usb("1-2", vendor="18d1", product="9302", devnum=5)
    known = look(held=held, successors=_SUCCESSORS)

    assert _paths(known.devices["usb-1-2"]) == ["/dev/bus/usb/001/005"]
    assert look(held=held).rules() == {"1-2": "other-model"}, "without the setting it is another"
