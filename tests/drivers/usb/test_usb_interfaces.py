"""What kernel drivers made nodes of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from usb_seen import Seen

from hardpoint import DeviceNode, Topology, Version
from hardpoint.testing import FakeMachine

Look = Callable[..., Seen]


def _paths(nodes: tuple[DeviceNode, ...]) -> list[str]:
    return [node.path for node in nodes]


@pytest.mark.field_case("G03")
def test_a_serial_adapter_is_published_with_all_that_is_known(
    machine: FakeMachine, look: Look
) -> None:
    machine.numa(0, 1)
    machine.pci("0000:00:14.0", klass="0c0330", driver="xhci_hcd", numa_node=1)
    adapter = machine.usb(
        "3-2",
        vendor="0403",
        product="6001",
        serial="S-77",
        manufacturer="Acme ",
        product_name="Bridge",
        speed="12",
        version=" 2.00",
        bcd="0600",
        devnum=7,
    )
    adapter.interface(
        0, klass="FF", subclass="ff", protocol="ff", driver="ftdi_sio", interface="A"
    ).node("tty", "ttyUSB0", 188, 0, gid=20)

    device = look().devices["usb-3-2-1-0"]

    assert dict(device.attributes) == {
        "bus": "usb",
        "address": "3-2:1.0",
        "portPath": "3-2",
        "driver": "ftdi_sio",
        "class": "vendor-specific",
        "classCode": "ff",
        "subclassCode": "ff",
        "protocolCode": "ff",
        "interfaceNumber": 0,
        "interfaceName": "A",
        "subsystem": "tty",
        "name": "Acme Bridge",
        "modalias": device.attributes["modalias"],
        "serial": "S-77",
        "serialUnique": True,
        "vendor": "0403",
        "product": "6001",
        "speed": 12,
        "bcdUSB": Version("2.0.0"),
        "bcdDevice": "0600",
        "serialNode": True,
        "usbfsNode": True,
    }
    assert str(device.attributes["modalias"]).startswith("usb:v0403p6001d0600")
    assert _paths(device.nodes) == ["/dev/ttyUSB0", "/dev/bus/usb/003/007"]
    assert device.kind == "usb"
    assert device.nodes[0].gid == 20
    assert device.topology == Topology(1, "pci0000:00")
    assert not device.shareable


def test_what_a_device_does_not_say_is_absent(machine: FakeMachine, look: Look) -> None:
    bare = machine.usb("1-1", vendor="1a86", product="7523", speed=None, version=None, bcd="0264")
    bare.interface(0, driver="ch341").node("tty", "ttyUSB0", 188, 0)

    attributes = look().devices["usb-1-1-1-0"].attributes

    assert not {"name", "serial", "serialUnique", "speed", "bcdUSB", "byId"} & attributes.keys()
    assert not {"interfaceName", "presentVendor"} & attributes.keys()


@pytest.mark.parametrize(
    ("said", "word", "code"),
    [("0A", "cdc-data", "0a"), ("e0", "wireless", "e0"), ("10", "audio-video", "10")],
)
def test_a_class_has_a_word_and_its_code_in_lower_case(
    machine: FakeMachine, look: Look, said: str, word: str, code: str
) -> None:
    machine.usb("1-1").interface(0, klass=said, driver="acme").node("acme", "acme0", 240, 0)

    attributes = look().devices["usb-1-1-1-0"].attributes

    assert (attributes["class"], attributes["classCode"]) == (word, code)


@pytest.mark.parametrize("code", ["05", "0d", "dc", "ef", "fe"])
def test_a_class_without_a_word_has_its_code_alone(
    machine: FakeMachine, look: Look, code: str
) -> None:
    machine.usb("1-1").interface(0, klass=code, driver="acme").node("acme", "acme0", 240, 0)

    attributes = look().devices["usb-1-1-1-0"].attributes

    assert "class" not in attributes
    assert attributes["classCode"] == code


def test_class_codes_are_read_from_their_files_where_the_modalias_is_odd(
    machine: FakeMachine, look: Look
) -> None:
    machine.usb("1-1").interface(
        0, klass="03", subclass="01", protocol="02", driver="usbhid", modalias="usb:odd"
    ).node("hidraw", "hidraw0", 240, 0)

    attributes = look().devices["usb-1-1-1-0"].attributes

    assert [attributes[k] for k in ("class", "classCode", "subclassCode", "protocolCode")] == [
        "hid",
        "03",
        "01",
        "02",
    ]


@pytest.mark.field_case("G20")
def test_an_interface_without_a_modalias_is_on_its_way_and_not_listed(
    machine: FakeMachine, look: Look
) -> None:
    device = machine.usb("1-1")
    device.interface(0, driver="acme").node("acme", "acme0", 240, 0)
    device.interface(1, driver="acme", modalias="").node("acme", "acme1", 240, 1)

    assert look().names == ["usb-1-1-1-0"]


def test_two_interfaces_of_one_device_have_names_addresses_and_a_port_in_common(
    machine: FakeMachine, look: Look
) -> None:
    quad = machine.usb("2-1.4", vendor="0403", product="6010")
    for number in range(2):
        quad.interface(number, driver="ftdi_sio").node("tty", f"ttyUSB{number}", 188, number)

    devices = look().devices

    assert list(devices) == ["usb-2-1-4-1-0", "usb-2-1-4-1-1"]
    assert [d.attributes["address"] for d in devices.values()] == ["2-1.4:1.0", "2-1.4:1.1"]
    assert {d.attributes["portPath"] for d in devices.values()} == {"2-1.4"}
    assert [d.attributes["interfaceNumber"] for d in devices.values()] == [0, 1]


# -- what is below an interface --------------------------------------------------------------------


def test_a_stick_delivers_its_disk_partitions_and_pass_through(
    machine: FakeMachine, look: Look
) -> None:
    stick = machine.usb("2-7").interface(0, klass="08", driver="usb-storage")
    scsi = stick.child("host3", bus="scsi").child("target3:0:0", bus="scsi")
    lun = scsi.child("3:0:0:0", bus="scsi")
    lun.node("bsg", "bsg/3:0:0:0", 247, 0).node("scsi_generic", "sg1", 21, 1)
    disk = lun.child("block/sdb", klass="block")
    disk.is_node("sdb", 8, 16)
    disk.child("sdb1", klass="block").is_node("sdb1", 8, 17)

    device = look().devices["usb-2-7-1-0"]

    assert set(_paths(device.nodes)) == {
        "/dev/sdb",
        "/dev/sdb1",
        "/dev/sg1",
        "/dev/bsg/3:0:0:0",
        "/dev/bus/usb/002/002",
    }
    assert device.attributes["subsystem"] == "block"
    assert device.attributes["blockNode"] is True


def test_what_hangs_from_a_nested_bus_belongs_to_that_bus(machine: FakeMachine, look: Look) -> None:
    host = machine.usb("1-1").interface(0, driver="acme").node("acme", "acme0", 240, 0)
    for bus in ("usb", "pci", "bluetooth"):
        host.child(f"{bus}-child", bus=bus).node("hidraw", f"hidraw-{bus}", 241, len(bus))

    assert _paths(look().devices["usb-1-1-1-0"].nodes) == ["/dev/acme0", "/dev/bus/usb/001/002"]


def test_a_directory_with_numbers_and_no_name_is_no_node(machine: FakeMachine, look: Look) -> None:
    host = machine.usb("1-1").interface(0, driver="acme").node("acme", "acme0", 240, 0)
    host.child("unnamed", klass="acme", dev="240:7").uevent(MAJOR=240, MINOR=7)
    host.child("numberless", klass="acme").uevent(DEVNAME="acme9")

    assert _paths(look().devices["usb-1-1-1-0"].nodes)[:-1] == ["/dev/acme0"]


def test_the_usbfs_node_follows_the_device_number(machine: FakeMachine, look: Look) -> None:
    adapter = machine.usb("3-1", devnum=7)
    adapter.interface(0, driver="ftdi_sio").node("tty", "ttyUSB0", 188, 0)
    before = look().devices["usb-3-1-1-0"]
    machine.renumber(adapter, 12)
    after = look().devices["usb-3-1-1-0"]

    assert _paths(before.nodes)[-1] == "/dev/bus/usb/003/007"
    assert _paths(after.nodes)[-1] == "/dev/bus/usb/003/012"
    assert after.nodes[-1].minor == 2 * 128 + 11
    assert after.name == before.name
    assert after.attributes == before.attributes


# -- shapes ----------------------------------------------------------------------------------------

_SHAPES = [
    ("acm", {"tty": "ttyACM0"}, "tty", {"serialNode"}),
    ("ftdi with spare pins", {"tty": "ttyUSB0", "gpio": "gpiochip0"}, "tty", {"serialNode"}),
    ("keyboard", {"input": "input/event3", "hidraw": "hidraw0"}, "hidraw",
     {"inputNode", "hidNode"}),
    ("ups", {"usbmisc": "usb/hiddev0", "hidraw": "hidraw0"}, "hidraw", {"hidNode"}),
    ("hiddev alone", {"usbmisc": "usb/hiddev0"}, "usbmisc", {"hidNode"}),
    ("printer", {"usbmisc": "usb/lp0"}, "usbmisc", {"printerNode"}),
    ("instrument", {"usbmisc": "usbtmc0"}, "usbmisc", set()),
    (
        "camera",
        {"video4linux": "video0", "media": "media0", "input": "input/event4"},
        "video4linux",
        {"captureNode", "inputNode"},
    ),
    ("sound card", {"sound": "snd/controlC1", "input": "input/event5"}, "sound",
     {"soundNode", "inputNode", "sound.liken.sh/supportsSound"}),
    ("pad", {"input": "input/js0"}, "input", {"inputNode"}),
    ("display", {"drm": "dri/card1"}, "drm", {"displayNode"}),
    ("sound with a line", {"sound": "snd/controlC1", "tty": "ttyUSB1"}, "",
     {"soundNode", "serialNode"}),
    ("renderer with a generator", {"drm": "dri/renderD129", "hwrng": "hwrng1"}, "", {"renderNode"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "subsystem", "roles"), [s[1:] for s in _SHAPES], ids=[s[0] for s in _SHAPES]
)
def test_nodes_have_one_word_and_a_flag_per_role(
    machine: FakeMachine, look: Look, nodes: dict[str, str], subsystem: str, roles: set[str]
) -> None:
    interface = machine.usb("1-1").interface(0, driver="acme")
    for minor, (kind, name) in enumerate(nodes.items()):
        interface.node(kind, name, 240, minor)

    device = look().devices["usb-1-1-1-0"]

    flags = {name for name, value in device.attributes.items() if value is True}
    assert device.attributes.get("subsystem", "") == subsystem
    assert flags == roles | {"usbfsNode"}
    assert len(device.nodes) == len(nodes) + 1, "an exclusive device delivers everything"
    assert not device.shareable


def test_a_node_of_no_subsystem_leaves_the_shape_unnamed(machine: FakeMachine, look: Look) -> None:
    interface = machine.usb("1-1").interface(0, driver="acme").node("tty", "ttyACM0", 166, 0)
    stray = interface.child("stray", klass="x").is_node("stray0", 240, 1)
    (stray.path / "subsystem").unlink()

    device = look().devices["usb-1-1-1-0"]

    assert "subsystem" not in device.attributes
    assert "/dev/stray0" in _paths(device.nodes)


# -- what is not offered ---------------------------------------------------------------------------


def test_hubs_are_not_offered_and_root_hubs_are_not_spoken_of(
    machine: FakeMachine, look: Look
) -> None:
    machine.usb("1-4.2").interface(0, driver="acme").node("acme", "acme0", 240, 0)

    seen = look()

    assert seen.names == ["usb-1-4-2-1-0"]
    assert seen.rules() == {"1-4": "hub"}


def test_a_hub_without_its_driver_is_still_a_hub(machine: FakeMachine, look: Look) -> None:
    machine.usb("1-4", bDeviceClass="09").interface(0, klass="09")
    machine.usb("1-5", bDeviceClass="09")

    assert look().rules() == {"1-4": "hub", "1-5": "hub"}
    assert look().names == []


def test_a_network_card_has_nothing_to_hand_over(machine: FakeMachine, look: Look) -> None:
    card = machine.usb("1-10")
    card.interface(0, klass="02", subclass="06", driver="cdc_ether").child("net/eth1", klass="net")
    card.interface(1, klass="0a", driver="cdc_ether")

    seen = look()

    assert seen.names == []
    assert seen.rules() == {"1-10:1.0": "no-node", "1-10:1.1": "second-half"}
    assert "cdc_ether" in seen.withheld["1-10:1.0"].reason


def test_the_second_half_of_a_function_says_where_the_first_is(
    machine: FakeMachine, look: Look
) -> None:
    modem = machine.usb("1-1")
    for number in (0, 2):
        control = modem.interface(number, klass="02", driver="cdc_acm")
        control.node("tty", f"ttyACM{number}", 166, number)
        modem.interface(number + 1, klass="0a", driver="cdc_acm")

    seen = look()

    assert seen.names == ["usb-1-1-1-0", "usb-1-1-1-2"]
    assert seen.rules() == {"1-1:1.1": "second-half", "1-1:1.3": "second-half"}
    assert "1-1:1.0," in seen.withheld["1-1:1.1"].reason
    assert "1-1:1.2," in seen.withheld["1-1:1.3"].reason


def test_a_first_half_without_nodes_belongs_to_the_one_that_has_them(
    machine: FakeMachine, look: Look
) -> None:
    modem = machine.usb("1-1")
    modem.interface(0, driver="acme")
    modem.interface(1, driver="acme").node("acme", "acme0", 240, 0)

    assert look().rules() == {"1-1:1.0": "second-half"}


def test_an_undriven_interface_beside_a_driven_one_says_how_to_find_its_module(
    machine: FakeMachine, look: Look
) -> None:
    key = machine.usb("3-3", vendor="1050", product="0407")
    key.interface(0, klass="03", driver="usbhid").node("hidraw", "hidraw0", 240, 0)
    key.interface(1, klass="0b")

    seen = look()

    assert seen.names == ["usb-3-3-1-0"]
    withheld = seen.withheld["3-3:1.1"]
    assert withheld.rule == "undriven"
    assert "modprobe -R 'usb:v1050p0407d0600dc00dsc00dp00ic0Bisc00ip00in01'" in withheld.reason


def _beside(machine: FakeMachine, *others: str) -> None:
    """Put an undriven interface beside one of a serial line and those of other drivers."""
    device = machine.usb("1-1")
    device.interface(0, driver="cdc_acm").node("tty", "ttyACM0", 166, 0)
    device.interface(1)
    for number, driver in enumerate(others, 2):
        other = device.interface(number, driver=driver)
        if driver == "usbhid":
            other.node("hidraw", "hidraw0", 240, 0)
        else:
            other.child("net/eth1", klass="net")


@pytest.mark.parametrize(
    ("others", "way"),
    [
        ((), "A claim on usb-1-1-1-0 has usbfs, which reaches it"),
        (("usbhid",), "A claim on usb-1-1-1-0 may ask for usbfs, which reaches it"),
        (("cdc_ether",), ""),
    ],
    ids=["alone", "beside another device", "beside a network interface"],
)
def test_an_undriven_interface_says_which_claim_reaches_it_if_one_may(
    machine: FakeMachine, look: Look, others: tuple[str, ...], way: str
) -> None:
    _beside(machine, *others)

    reason = look().withheld["1-1:1.1"].reason

    assert way in reason
    assert ("usbfs" in reason) is bool(way)


def test_a_modalias_that_no_kernel_writes_is_not_repeated(machine: FakeMachine, look: Look) -> None:
    device = machine.usb("1-1")
    device.interface(0, driver="acme").node("acme", "acme0", 240, 0)
    device.interface(1, modalias="usb:'; rm -rf / #")

    assert "rm -rf" not in look().withheld["1-1:1.1"].reason


def test_a_device_that_is_not_authorised_says_so(machine: FakeMachine, look: Look) -> None:
    machine.usb("1-1", authorized=0)

    withheld = look().withheld["1-1"]

    assert withheld.rule == "unauthorized"
    assert "/sys/bus/usb/devices/1-1/authorized" in withheld.reason


def test_an_interface_that_is_not_authorised_says_so(machine: FakeMachine, look: Look) -> None:
    device = machine.usb("1-1")
    device.interface(0, driver="acme").node("acme", "acme0", 240, 0)
    device.interface(1, authorized=0)

    seen = look()

    assert seen.names == ["usb-1-1-1-0"]
    assert seen.rules() == {"1-1:1.1": "unauthorized"}


def test_a_device_without_a_configuration_says_so(machine: FakeMachine, look: Look) -> None:
    machine.usb("1-1")

    assert look().rules() == {"1-1": "unconfigured"}


def test_a_console_is_the_machines_and_its_adapter_cannot_be_reset(
    machine: FakeMachine, look: Look
) -> None:
    dual = machine.usb("1-1", vendor="0403", product="6010")
    for number in range(2):
        dual.interface(number, driver="ftdi_sio").node("tty", f"ttyUSB{number}", 188, number)
    machine.consoles("ttyUSB0")

    seen = look()

    assert seen.names == ["usb-1-1-1-1"], "its other line stays"
    assert seen.rules() == {"1-1:1.0": "in-use"}
    assert _paths(seen.devices["usb-1-1-1-1"].nodes) == ["/dev/ttyUSB1"]


def test_a_disk_in_use_is_withheld_with_its_pass_through(machine: FakeMachine, look: Look) -> None:
    stick = machine.usb("2-7").interface(0, klass="08", driver="usb-storage")
    stick.child("3:0:0:0", bus="scsi").node("scsi_generic", "sg1", 21, 1)
    stick.disk("sdb", 8, 16).partition(1, 8, 17)
    machine.mount("8:17", "/data", source="/dev/sdb1")

    seen = look()

    assert seen.names == []
    assert seen.rules() == {"2-7:1.0": "in-use"}
    assert "/data" in seen.withheld["2-7:1.0"].reason
