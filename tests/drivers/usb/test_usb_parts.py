"""One device is never handed out twice, through whichever of its nodes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
from recorded_machines import NAMES
from usb_seen import Seen

from hardpoint import Device, Node, Part, Refuse, TryAgain, exclusive, shared
from hardpoint.model import parts_of
from hardpoint.testing import FakeMachine
from hardpoint_usb import Usb
from hardpoint_usb.settings import UsbParameters

Look = Callable[..., Seen]


def _deliver(device: Device, usbfs: bool | None = None) -> list[str]:
    """Deliver without a machine: what a holder receives is in the device."""
    driver = Usb(Node(sys="/nowhere"), Usb.Settings())
    delivery = driver.deliver_device(device, UsbParameters(usbfs=usbfs))
    return [node.path for node in delivery.nodes]


def _parts(device: Device, usbfs: bool | None = None) -> tuple[Part, ...]:
    driver = Usb(Node(sys="/nowhere"), Usb.Settings())
    return parts_of(device, driver.deliver_device(device, UsbParameters(usbfs=usbfs)).nodes)


def _contend(one: tuple[Part, ...], other: tuple[Part, ...]) -> bool:
    return any(a.contends(b) for a in one for b in other)


def _serial(machine: FakeMachine, port: str, interfaces: int = 1) -> None:
    device = machine.usb(port)
    first = 10 * len(list((machine.sys / "class/tty").glob("*")))
    for number in range(interfaces):
        line = first + number
        device.interface(number, driver="ftdi_sio").node("tty", f"ttyUSB{line}", 188, line)


def test_an_interface_is_taken_alone_and_what_it_hangs_from_beside_others(
    machine: FakeMachine, look: Look
) -> None:
    _serial(machine, "1-4.2")

    assert look().devices["usb-1-4-2-1-0"].parts == (
        exclusive("usb:1-4.2:1.0"),
        shared("usb:1-4.2"),
        shared("usb:1-4"),
        shared("usb:usb1"),
        shared("pci:0000:00:14.0"),
    )


@pytest.mark.parametrize("name", NAMES)
def test_parts_are_those_that_the_framework_finds_by_walking_up(
    recorded: Callable[[str], Node], name: str
) -> None:
    node = recorded(name)
    listed = [d for d in Usb(node, Usb.Settings()).publish_devices() if isinstance(d, Device)]
    single = [d for d in listed if d.kind == "usb"]

    for device in single:
        assert device.parts == node.usb(str(device.attributes["address"])).whole()


def test_the_usbfs_node_takes_the_whole_device(machine: FakeMachine, look: Look) -> None:
    _serial(machine, "1-1")
    machine.usb("1-2").interface(0)

    devices = look().devices

    for device in devices.values():
        port = device.attributes["portPath"]
        assert exclusive(f"usb:{port}") in device.all_parts
        assert device.nodes[-1].takes == (exclusive(f"usb:{port}"),)


def test_the_only_device_of_a_port_has_usbfs_unless_its_claim_does_without(
    machine: FakeMachine, look: Look
) -> None:
    _serial(machine, "1-1")
    device = look().devices["usb-1-1-1-0"]

    assert _deliver(device) == ["/dev/ttyUSB0", "/dev/bus/usb/001/002"]
    assert _deliver(device, usbfs=True) == ["/dev/ttyUSB0", "/dev/bus/usb/001/002"]
    assert _deliver(device, usbfs=False) == ["/dev/ttyUSB0"]


def test_of_several_devices_of_a_port_none_has_usbfs_unless_its_claim_asks(
    machine: FakeMachine, look: Look
) -> None:
    _serial(machine, "1-1", interfaces=2)
    one, two = look().devices.values()

    assert _deliver(one) == ["/dev/ttyUSB0"]
    assert _deliver(one, usbfs=False) == ["/dev/ttyUSB0"]
    assert _deliver(one, usbfs=True) == ["/dev/ttyUSB0", "/dev/bus/usb/001/002"]
    assert "usbfsNode" not in one.attributes
    assert not _contend(_parts(one), _parts(two)), "two lines may have two owners"
    assert _contend(_parts(one, usbfs=True), _parts(two))
    assert _contend(_parts(one, usbfs=True), _parts(two, usbfs=True))


def test_usbfs_on_request_is_the_same_node_as_unasked(machine: FakeMachine, look: Look) -> None:
    machine.usb("1-1").interface(0, driver="acme").node("acme", "acme0", 240, 0)
    machine.dev_node("/dev/bus/usb/001/002", _info(machine, gid=46))
    alone = look().devices["usb-1-1-1-0"]
    machine.usb("1-1", devnum=2).interface(1, driver="acme").node("acme", "acme1", 240, 1)
    machine.dev_node("/dev/bus/usb/001/002", _info(machine, gid=46))
    beside = look().devices["usb-1-1-1-0"]

    driver = Usb(Node(sys="/nowhere"), Usb.Settings())
    asked = driver.deliver_device(beside, UsbParameters(usbfs=True)).nodes[-1]
    assert asked == alone.nodes[-1]
    assert asked.gid == 46


def _info(machine: FakeMachine, gid: int) -> Any:
    found = machine.node().info("/dev/bus/usb/001/002")
    assert found is not None
    return type(found)(found.type, found.major, found.minor, found.mode, gid)


def test_a_device_that_is_its_usbfs_node_cannot_be_had_without(
    machine: FakeMachine, look: Look
) -> None:
    machine.usb("1-2").interface(0)
    device = look().devices["usb-1-2"]

    assert _deliver(device) == _deliver(device, usbfs=True) == ["/dev/bus/usb/001/002"]
    with pytest.raises(Refuse, match="driven through usbfs"):
        _deliver(device, usbfs=False)


def test_usbfs_is_never_a_way_around_to_a_disk(machine: FakeMachine, look: Look) -> None:
    """A block device is offered where a rule allows it; usbfs of its neighbour must not be one."""
    board = machine.usb("3-1")
    board.interface(0, klass="02", driver="cdc_acm").node("tty", "ttyACM0", 166, 0)
    board.interface(3, klass="08", driver="usb-storage").disk("sda", 8, 0)
    line, disk = look().devices.values()

    assert _deliver(line) == ["/dev/ttyACM0"]
    with pytest.raises(Refuse, match="disk at another interface") as refusal:
        _deliver(line, usbfs=True)
    assert refusal.value.reason == "no-usbfs"
    assert _deliver(disk, usbfs=True) == ["/dev/sda", "/dev/bus/usb/003/002"]


def test_usbfs_is_never_a_way_around_to_the_nodes_network(machine: FakeMachine, look: Look) -> None:
    """A modem's serial port must not be a way to reset the network card that it also is."""
    modem = machine.usb("3-1")
    modem.interface(0, driver="option").node("tty", "ttyUSB0", 188, 0)
    modem.interface(1, driver="qmi_wwan").child("net/wwan0", klass="net")
    device = look().devices["usb-3-1-1-0"]

    assert _deliver(device) == ["/dev/ttyUSB0"]
    with pytest.raises(Refuse, match="network interface"):
        _deliver(device, usbfs=True)


def test_usbfs_is_never_a_way_around_to_what_the_machine_uses(
    machine: FakeMachine, look: Look
) -> None:
    _serial(machine, "1-1", interfaces=2)
    machine.consoles("ttyUSB0")
    line = look().devices["usb-1-1-1-1"]

    assert _deliver(line) == ["/dev/ttyUSB1"]
    with pytest.raises(Refuse, match="console"):
        _deliver(line, usbfs=True)


def test_a_device_with_nothing_to_hand_over_is_asked_for_again(
    machine: FakeMachine, look: Look
) -> None:
    device = machine.usb("1-1")
    lines = [
        device.interface(n, driver="ftdi_sio").node("tty", f"ttyUSB{n}", 188, n) for n in range(2)
    ]
    held = look().devices
    lines[0].unbind()
    shutil.rmtree(lines[0].path / "tty")
    detached = look(held=held).devices["usb-1-1-1-0"]

    with pytest.raises(TryAgain, match="driver is detached"):
        _deliver(detached)


@pytest.mark.parametrize("name", NAMES)
def test_no_two_devices_of_a_recorded_machine_are_one_thing_unless_their_parts_say_so(
    recorded: Callable[[str], Node], name: str
) -> None:
    listed = Usb(recorded(name), Usb.Settings()).publish_devices()
    devices = [item for item in listed if isinstance(item, Device)]

    for one, other in combinations(devices, 2):
        common = {n.path for n in one.nodes} & {n.path for n in other.nodes if not n.shared}
        if common:
            assert _contend(one.all_parts, other.all_parts), (one.name, other.name, common)
