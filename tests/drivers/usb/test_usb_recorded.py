"""The recorded machines, against what was read in their trees by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from recorded_machines import NAMES
from recorded_steps import replay
from usb_seen import Seen, see

from hardpoint import AttributeType, Device, Node, Version
from hardpoint.attributes import publishable
from hardpoint_usb import Usb

Recorded = Callable[[str], Node]

DESKTOP = {
    "usb-1-1-1-0": "ttyUSB0 bus/usb/001/002",
    "usb-1-2-1-0": "ttyUSB1 bus/usb/001/003",
    "usb-1-3-1-0": "input/mouse1 input/event4 hidraw0 bus/usb/001/004",
    "usb-1-4-1-1-1-0": "input/mouse3 input/event8 hidraw4 bus/usb/001/011",
    "usb-1-4-1-2-1-0": "ttyUSB2 bus/usb/001/013",
    "usb-1-4-1-3-1-0": "input/mouse4 input/event9 hidraw5 bus/usb/001/015",
    "usb-1-4-2-1-0": "input/event7 hidraw3 bus/usb/001/009",
    "usb-1-5": "bus/usb/001/006",
    "usb-1-6-1-0": "snd/pcmC2D0p snd/controlC2 bus/usb/001/008",
    "usb-1-9": "bus/usb/001/010",
    "usb-1-11": "bus/usb/001/014",
    "usb-2-7-1-0": "bsg/7:0:0:0 sg2 sdb sdb1 bus/usb/002/002",
    "usb-2-8-1-0": "bsg/8:0:0:0 sg3 sdc bus/usb/002/003",
    "usb-6-1-1-0": "input/event5 hidraw1 bus/usb/006/002",
    "usb-6-2-1-0": "input/mouse2 input/event6 hidraw2 bus/usb/006/003",
}
ZOO = {
    "usb-11-1-1-0": "ttyUSB9 bus/usb/011/002",
    "usb-11-2-1-0": "usb/lp1 bus/usb/011/003",
    "usb-11-3-1-0": "media0 video1 video0 input/event9 bus/usb/011/004",
    "usb-13-1-1-0": "ttyUSB4 gpiochip0 bus/usb/013/002",
    "usb-13-2-1-0": "bsg/6:0:0:0 sg0 sda bus/usb/013/003",
    "usb-15-1-1-0": "ttyUSB5",
    "usb-15-1-1-1": "ttyUSB8",
    "usb-17-1-1-0": "ttyUSB10",
    "usb-17-1-1-1": "ttyUSB11",
    "usb-17-1-1-2": "ttyUSB6",
    "usb-17-1-1-3": "ttyUSB7",
    "usb-3-1-1-0": "ttyUSB1 bus/usb/003/002",
    "usb-3-2-1-0": "ttyACM0 bus/usb/003/003",
    "usb-3-3-1-0": "input/event5 hidraw0",
    "usb-3-3-1-1": "hidraw1 usb/hiddev2",
    "usb-5-1-1-0": "ttyUSB0 bus/usb/005/002",
    "usb-5-2-1-0": "ttyACM1 bus/usb/005/003",
    "usb-5-3-1-0": "input/js1 input/event6 hidraw2 bus/usb/005/004",
    "usb-7-1-1-0": "ttyUSB2 bus/usb/007/002",
    "usb-7-2-1-0": "input/js0 input/event4 bus/usb/007/003",
    "usb-7-3-1-0": "input/event7 hidraw3 bus/usb/007/004",
    "usb-9-1-1-0": "ttyUSB3 bus/usb/009/002",
    "usb-9-2-1-0": "usbtmc0 bus/usb/009/003",
    "usb-9-3-1-0": "input/event8 input/mouse1 hidraw4 bus/usb/009/004",
}
ZOO_WHOLE = (
    "11-4 13-3 13-4 15-2 15-3 16-1 17-2 17-3 17-4 3-4 3-5 5-4 5-5 7-4 7-5 9-4"  # no driver link
)
GADGET = {
    "usb-10-1": "bus/usb/010/002",
    "usb-11-1-1-0": "usb/hiddev0 hidraw1 bus/usb/011/002",
    "usb-12-1-1-0": "bsg/7:0:0:0 sg1 sdb bus/usb/012/002",
    "usb-13-1-1-0": "midi1 snd/midiC1D0 dmmidi1 snd/controlC1 bus/usb/013/002",
    "usb-14-1-1-0": "usb/lp1",  # its other function is a network card
    "usb-3-1-1-0": "ttyACM1",
    "usb-3-1-1-2": "input/event4 hidraw0",
    "usb-3-1-1-3": "bsg/6:0:0:0 sg0 sda",
    "usb-4-1-1-0": "ttyACM0 bus/usb/004/002",
    "usb-5-1-1-0": "ttyACM2 bus/usb/005/002",
    "usb-6-1-1-0": "ttyACM3 bus/usb/006/002",
    "usb-7-1-1-0": "ttyACM4 bus/usb/007/002",
    "usb-8-1-1-0": "ttyACM5 bus/usb/008/002",
    "usb-9-1-1-0": "ttyACM6 bus/usb/009/002",
}


def _delivered(seen: Seen) -> dict[str, set[str]]:
    return {
        name: {node.path.removeprefix("/dev/") for node in device.nodes}
        for name, device in seen.devices.items()
    }


def _expected(table: dict[str, str]) -> dict[str, set[str]]:
    return {name: set(nodes.split()) for name, nodes in table.items()}


def test_desktop(recorded: Recorded) -> None:
    seen = see(recorded("desktop"))

    assert _delivered(seen) == _expected(DESKTOP)
    assert seen.rules() == {
        "1-4": "hub",
        "1-4.1": "hub",
        "1-10:1.0": "undriven",
        "1-10:1.1": "no-node",
        "1-6:1.1": "second-half",
    }
    serials = {n: d.attributes.get("serial") for n, d in seen.devices.items()}
    assert serials["usb-1-4-1-2-1-0"] == "FTNEST01"
    assert serials["usb-2-7-1-0"] == "STICK-0001"
    assert all(d.attributes["serialUnique"] for d in seen.devices.values())
    assert all(d.topology.pcie_root == "pci0000:00" for d in seen.devices.values())


def test_the_nested_adapter_of_desktop_in_full(recorded: Recorded) -> None:
    attributes = see(recorded("desktop")).devices["usb-1-4-1-2-1-0"].attributes

    assert dict(attributes) == {
        "bus": "usb",
        "address": "1-4.1.2:1.0",
        "portPath": "1-4.1.2",
        "driver": "ftdi_sio",
        "class": "vendor-specific",
        "classCode": "ff",
        "subclassCode": "ff",
        "protocolCode": "ff",
        "interfaceNumber": 0,
        "subsystem": "tty",
        "name": "QEMU QEMU USB SERIAL",
        "modalias": "usb:v0403p6001d0400dc00dsc00dp00icFFiscFFipFFin00",
        "serial": "FTNEST01",
        "serialUnique": True,
        "vendor": "0403",
        "product": "6001",
        "speed": 12,
        "bcdUSB": Version("2.0.0"),
        "bcdDevice": "0400",
        "byId": "usb-QEMU_QEMU_USB_SERIAL_FTNEST01-if00-port0",
        "serialNode": True,
        "usbfsNode": True,
    }


@pytest.mark.field_case("G11")
def test_usbzoo(recorded: Recorded) -> None:
    seen = see(recorded("usbzoo"))

    whole = {f"usb-{port}" for port in ZOO_WHOLE.split()}
    driven = {n: nodes for n, nodes in _delivered(seen).items() if n not in whole}
    assert driven == _expected(ZOO)
    assert whole <= seen.devices.keys()
    assert seen.rules() == {
        "3-3:1.2": "undriven",  # CCID of a security key
        "5-2:1.2": "undriven",  # a debugger's bulk pipe
        **dict.fromkeys(("3-2:1.1", "5-2:1.1", "11-3:1.1"), "second-half"),
    }
    unsure = {"usb-3-1-1-0", "usb-5-1-1-0"}  # CP2102 twins, both 0001
    numbered = {n for n, d in seen.devices.items() if "serial" in d.attributes}
    unique = {n for n, d in seen.devices.items() if "serialUnique" in d.attributes}
    assert numbered - unique == unsure
    shapes = {n: seen.devices[n].attributes.get("subsystem") for n in ZOO}
    assert shapes["usb-11-3-1-0"] == "video4linux"
    assert shapes["usb-13-1-1-0"] == "tty"
    assert shapes["usb-13-2-1-0"] == "block"
    assert shapes["usb-9-2-1-0"] == "usbmisc"
    assert shapes["usb-7-2-1-0"] == "input"
    assert seen.devices["usb-7-3-1-0"].attributes["speed"] == 1
    assert seen.devices["usb-16-1"].attributes["speed"] == 5000
    assert seen.devices["usb-7-2-1-0"].attributes["name"] == "©Microsoft Controller"


def test_gadget(recorded: Recorded) -> None:
    seen = see(recorded("gadget"))

    assert _delivered(seen) == _expected(GADGET)
    halves = "3-1:1.1 4-1:1.1 5-1:1.1 6-1:1.1 7-1:1.1 8-1:1.1 9-1:1.1 13-1:1.1 14-1:1.2"
    assert seen.rules() == {"14-1:1.1": "no-node", **dict.fromkeys(halves.split(), "second-half")}
    twins = (seen.devices["usb-4-1-1-0"].attributes, seen.devices["usb-5-1-1-0"].attributes)
    assert [t["serial"] for t in twins] == ["SAME", "SAME"]
    assert not any({"serialUnique", "byId"} & t.keys() for t in twins)
    assert seen.devices["usb-11-1-1-0"].attributes["name"] == "line brek [31mred [0m"
    assert seen.devices["usb-8-1-1-0"].attributes["serial"] == "in  side"


def test_disks(recorded: Recorded) -> None:
    """2-1 is mounted at /media/STICK; the twins of 2-2 and 2-3 have one serial number."""
    seen = see(recorded("disks"))

    assert seen.names == ["usb-2-2-1-0", "usb-2-3-1-0"]
    assert seen.rules() == {"2-1:1.0": "in-use"}
    assert "/media/STICK" in seen.withheld["2-1:1.0"].reason
    assert not any("serialUnique" in d.attributes for d in seen.devices.values())


def test_bluetooth(recorded: Recorded) -> None:
    (device,) = see(recorded("bluetooth")).devices.values()

    assert (device.name, device.kind) == ("usb-3-1-1-0", "bluetooth.adapter")
    assert [n.path for n in device.nodes] == ["/dev/bus/usb/003/002", "/dev/uhid"]


def test_legacy(recorded: Recorded) -> None:
    assert _delivered(see(recorded("legacy"))) == _expected(
        {
            "usb-1-1-1-1-0": "input/event4 hidraw0 bus/usb/001/004",
            "usb-1-1-2-1-0": "input/event5 input/mouse1 hidraw1 bus/usb/001/005",
            "usb-1-1-3-1-0": "ttyUSB1 bus/usb/001/006",
            "usb-1-2-1-0": "ttyUSB0 bus/usb/001/003",
        }
    )


def test_many(recorded: Recorded) -> None:
    """196 in ports: 26 hubs, 85 serial adapters, 46 HID devices, 39 without a driver."""
    seen = see(recorded("many"))

    assert Counter(d.attributes["subsystem"] for d in seen.devices.values()) == {
        "tty": 85,
        "hidraw": 46,
        "usb": 39,
    }
    assert Counter(seen.rules().values()) == {"hub": 26}


@pytest.mark.parametrize("name", ["minimal", "graphics", "virtual"])
def test_machines_with_nothing_plugged_in(recorded: Recorded, name: str) -> None:
    seen = see(recorded(name))

    assert (seen.devices, seen.withheld, seen.unread) == ({}, {}, {})


@pytest.mark.parametrize("name", NAMES)
def test_everything_published_is_described_and_fit_for_the_api(
    recorded: Recorded, name: str
) -> None:
    driver = Usb(recorded(name), Usb.Settings())
    described = {info.name: info.type for info in driver.describe_attributes()}
    types = {bool: AttributeType.BOOL, int: AttributeType.INT, str: AttributeType.STRING}

    for device in driver.publish_devices():
        if isinstance(device, Device):
            assert publishable(device, "hardpoint.dev")[1] == ()
            for attribute, value in device.attributes.items():
                assert described[attribute] is types.get(type(value), AttributeType.VERSION)


@pytest.mark.parametrize("name", NAMES)
def test_no_string_of_the_hardware_controls_a_terminal(recorded: Recorded, name: str) -> None:
    seen = see(recorded(name))

    said = [str(v) for d in seen.devices.values() for v in d.attributes.values()]
    said += [w.reason for w in seen.withheld.values()]
    assert not [text for text in said if any(ord(c) < 32 or ord(c) == 127 for c in text)]


# -- replugged -------------------------------------------------------------------------------------

STEPS: dict[str, dict[str, tuple[set[str], set[str]]]] = {
    "usbzoo": {
        "unplug cp2102-twin": ({"usb-5-1-1-0"}, set()),
        "plug cp2102-twin": (set(), {"usb-5-1-1-0"}),
        "unplug arduino": ({"usb-3-2-1-0"}, set()),
        "plug arduino": (set(), {"usb-3-2-1-0"}),
        "unplug webcam": ({"usb-11-3-1-0"}, set()),
        "plug webcam": (set(), {"usb-11-3-1-0"}),
        "unplug usbtmc": ({"usb-9-2-1-0"}, set()),
        "plug usbtmc": (set(), {"usb-9-2-1-0"}),
        "unplug yubikey": ({"usb-3-3-1-0", "usb-3-3-1-1"}, set()),
    },
    "gadget": {
        "unplug twin-1": ({"usb-4-1-1-0"}, set()),
        "plug twin-1": (set(), {"usb-4-1-1-0"}),
        "unplug office": ({"usb-14-1-1-0"}, set()),
        "plug office": (set(), {"usb-14-1-1-0"}),
        "plug hidvendor": (set(), {"usb-15-1-1-0"}),
        "plug gser": (set(), {"usb-16-1-1-0"}),
    },
    "desktop": {
        "unplug serial-1": ({"usb-1-1-1-0"}, set()),
        "plug serial-1": (set(), {"usb-1-1-1-0"}),
        "unplug speaker": ({"usb-1-6-1-0"}, set()),
        "plug speaker": (set(), {"usb-1-6-1-0"}),
        "unplug thumb": ({"usb-2-7-1-0"}, set()),
        "plug webcam": (set(), {"usb-7-1-1-0"}),
    },
    "bluetooth": {
        "unplug dongle": ({"usb-3-1-1-0"}, set()),
        "plug dongle": (set(), {"usb-3-1-1-0"}),
    },
}


@pytest.mark.parametrize("name", STEPS)
def test_plugging_changes_what_was_plugged_and_nothing_else(scratch: Path, name: str) -> None:
    before: set[str] | None = None
    for command, node in replay(name, scratch):
        now = set(see(node).devices)
        gone, new = STEPS[name].get(command, (set(), set()))
        if before is not None:
            assert (before - now, now - before) == (gone, new), command
        before = now


@pytest.mark.field_case("G16")
def test_a_replugged_device_has_its_name_and_attributes_and_another_usbfs_node(
    scratch: Path,
) -> None:
    seen = [
        see(node).devices.get("usb-1-1-1-0") for _, node in islice(replay("desktop", scratch), 3)
    ]
    first, unplugged, again = seen

    assert first is not None
    assert again is not None
    assert unplugged is None
    assert again.attributes == first.attributes
    assert first.nodes[-1].path == "/dev/bus/usb/001/002"
    assert again.nodes[-1].path != first.nodes[-1].path
    assert again.nodes[-1].takes == first.nodes[-1].takes


def test_a_twin_that_leaves_makes_the_other_one_unique(scratch: Path) -> None:
    unique = [
        see(node).devices["usb-3-1-1-0"].attributes.get("serialUnique")
        for _, node in islice(replay("usbzoo", scratch), 3)
    ]

    assert unique == [None, True, None]
