"""Trees that no healthy machine has: one bad entry costs one entry, and nothing is ever raised."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pci_drm_look import Look, look

from hardpoint.attributes import publishable
from hardpoint.testing.fake_device import FakeDevice
from hardpoint.testing.sysfs import FakeMachine, FakePci

GOOD = ["pci-0000-00-02-0", "pci-0000-00-02-0-display"]


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    """A machine with a good GPU at 00:02.0."""
    machine = FakeMachine(tmp_path)
    machine.pci("0000:00:02.0", klass="030000", driver="i915").drm(card=0, render=128)
    return machine


def bad(machine: FakeMachine) -> FakePci:
    """Add a GPU that a test will spoil."""
    return machine.pci("0000:00:03.0", klass="030000", driver="i915").drm(card=1, render=129)


def good_of(found: Look) -> list[str]:
    return [name for name in found.devices if name.startswith("pci-0000-00-02-0")]


@pytest.mark.parametrize("attribute", ["vendor", "device", "class", "modalias", "uevent"])
def test_an_attribute_that_cannot_be_read_costs_its_function(
    machine: FakeMachine, attribute: str
) -> None:
    device = bad(machine)
    if attribute == "uevent":
        (device.path / "drm/card1").joinpath("uevent").unlink()
        (device.path / "drm/card1").joinpath("uevent").mkdir()
    else:
        device.unreadable(attribute)

    found = look(machine.node())

    assert list(found.devices) == GOOD
    assert list(found.unread) == ["bus/pci/devices/0000:00:03.0"]


@pytest.mark.parametrize("attribute", ["subsystem_vendor", "revision", "max_link_speed"])
def test_a_finer_fact_that_cannot_be_read_costs_only_itself(
    machine: FakeMachine, attribute: str
) -> None:
    bad(machine).unreadable(attribute)

    assert len(look(machine.node()).devices) == 4


def test_a_link_that_leads_nowhere_is_no_device(machine: FakeMachine) -> None:
    (machine.sys / "bus/pci/devices/0000:00:09.0").symlink_to("../../../devices/gone")

    found = look(machine.node())

    assert list(found.devices) == GOOD
    assert not found.unread


@pytest.mark.field_case("G08")
def test_text_that_is_not_utf_8_or_too_long_is_made_fit(machine: FakeMachine) -> None:
    bad(machine).set(modalias=b"pci:\xff\xfe\x00\n\x1b[31m" + b"x" * 3000, revision=b"\xff" * 8)

    for device in look(machine.node()).devices.values():
        fit, _ = publishable(device, "hardpoint.dev")
        assert all(len(str(value).encode()) <= 64 for value in fit.attributes.values())
        assert not any("\x1b" in str(value) for value in fit.attributes.values())


@pytest.mark.parametrize(
    ("dev", "devname"), [("226:x", "dri/card1"), ("", "dri/card1"), ("226", "x"), ("1:2:3", "x")]
)
def test_a_node_without_numbers_or_name_is_no_node(
    machine: FakeMachine, dev: str, devname: str
) -> None:
    device = machine.pci("0000:00:03.0", driver="i915")
    child = FakeDevice(machine, device.path / "drm/card1").in_class("drm").set(dev=dev)
    child.uevent(DEVNAME=devname)

    assert look(machine.node()).rules == {"pci 0000:00:03.0": "no-nodes"}


def test_a_node_without_a_name_in_dev_is_no_node(machine: FakeMachine) -> None:
    device = machine.pci("0000:00:03.0", driver="i915")
    FakeDevice(machine, device.path / "drm/card1").in_class("drm").set(dev="226:1")

    assert list(look(machine.node()).devices) == GOOD


def test_what_hangs_from_another_bus_is_judged_there(machine: FakeMachine) -> None:
    bridge = machine.pci("0000:00:1c.0", klass="060400", driver="i915")
    machine.pci("0000:05:00.0", driver="acme", behind="0000:00:1c.0").node("acme", "acme0", 240, 0)
    machine.usb("1-2", controller="0000:00:14.0").interface(0).node("tty", "ttyUSB0", 188, 0)
    radio = bridge.child("hci0", klass="bluetooth")
    radio.node("hidraw", "hidraw0", 239, 0)

    found = look(machine.node())

    assert list(found.devices) == [*GOOD, "pci-0000-05-00-0"]
    assert found.rules["pci 0000:00:1c.0"] == "no-nodes"


def test_an_address_that_is_no_text_is_withheld(machine: FakeMachine) -> None:
    machine.pci("0000:00:0\udcff.0", driver="i915").drm(card=1)
    machine.platform("od\udcffd", driver="acme").node("tty", "ttyX0", 4, 99)

    found = look(machine.node())

    assert list(found.devices) == GOOD
    assert found.rules == {"pci 0000:00:0\ufffd.0": "odd-name", "platform od\ufffdd": "odd-name"}


def test_a_machine_without_a_pci_bus_is_no_fault(tmp_path: Path) -> None:
    assert look(FakeMachine(tmp_path).node()).devices == {}


def test_a_bus_that_cannot_be_listed_is_not_an_empty_one(machine: FakeMachine) -> None:
    node = machine.node()
    listing = machine.sys / "bus/pci/devices"
    listing.rename(machine.sys / "bus/pci/gone")
    listing.write_text("")

    with pytest.raises(NotADirectoryError):
        look(node)


# -- any tree at all ------------------------------------------------------------------------------

names = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/"), min_size=1, max_size=12
).filter(lambda name: name not in (".", ".."))
contents = st.one_of(
    st.binary(max_size=80),
    st.sampled_from(
        [b"0x8086\n", b"0x030000\n", b"-1\n", b"\xff" * 70, b"226:5\n", b"99999999999"]
    ),
    st.none(),
)
subsystems = st.sampled_from(
    [
        "drm",
        "graphics",
        "sound",
        "tty",
        "i2c-dev",
        "block",
        "input",
        "nvme",
        "pci",
        "usb",
        "odd_One",
    ]
)
damages = st.sampled_from(["", "directory", "dangling", "loop", "uevent", "subsystem"])


@st.composite
def functions(draw: st.DrawFn) -> dict[str, object]:
    attributes = st.sampled_from(
        ["vendor", "device", "class", "modalias", "revision", "numa_node", "max_link_width"]
    )
    return {
        "driver": draw(st.sampled_from(["", "i915", "pcieport", "vfio-pci", "acme driver"])),
        "attributes": draw(st.dictionaries(attributes, contents, max_size=4)),
        "nodes": draw(st.lists(st.tuples(subsystems, names, st.integers(0, 9)), max_size=5)),
        "damage": draw(damages),
        "where": draw(st.sampled_from(["vendor", "class", "dev", "driver", "uevent"])),
    }


def build(machine: FakeMachine, number: int, wanted: dict[str, object]) -> None:
    function = machine.pci(f"0000:01:{number:02x}.0", klass="030000", driver=str(wanted["driver"]))
    for name, value in dict(wanted["attributes"]).items():  # type: ignore[call-overload]
        function.attribute(name, value)
    for subsystem, name, minor in list(wanted["nodes"]):  # type: ignore[call-overload]
        child = FakeDevice(machine, function.path / subsystem / f"{name}{number}")
        child.in_class(subsystem).is_node(f"{name}{number}", 200 + number, minor)
    damage(function, str(wanted["damage"]), str(wanted["where"]))


def damage(function: FakePci, how: str, where: str) -> None:
    at = function.path / where
    if how in ("directory", "dangling", "loop"):
        if at.is_symlink() or at.is_file():
            at.unlink()
        if how == "directory":
            at.mkdir()
        else:
            at.symlink_to(at.name if how == "loop" else "../no-such")
    elif how:
        for found in list(function.path.rglob(how))[:2]:
            found.unlink()


@settings(max_examples=60)
@given(st.lists(functions(), max_size=4))
def test_whatever_the_tree_is_the_good_gpu_is_found_and_nothing_is_raised(
    wanted: list[dict[str, object]],
) -> None:
    with tempfile.TemporaryDirectory() as root:
        machine = FakeMachine(root)
        machine.pci("0000:00:02.0", klass="030000", driver="i915").drm(card=70, render=170)
        for number, one in enumerate(wanted):
            build(machine, number, one)

        found = look(machine.node())

    assert good_of(found) == GOOD
    told = {device.origin["address"] for device in found.devices.values()}
    told |= {subject.split()[1] for subject in found.withheld}
    told |= {entry.rpartition("/")[2] for entry in found.unread}
    assert told >= {f"0000:01:{number:02x}.0" for number in range(len(wanted))}
    for device in found.devices.values():
        publishable(device, "hardpoint.dev")
