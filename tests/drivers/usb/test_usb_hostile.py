"""Descriptors and trees that mean harm, or are half there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from usb_seen import Seen, see

from hardpoint import Device, Withheld
from hardpoint.attributes import publishable
from hardpoint.testing import FakeMachine
from hardpoint_usb import Usb
from hardpoint_usb.ports import is_port, port_of

Look = Callable[..., Seen]

TEXT = st.one_of(
    st.none(),
    st.binary(max_size=150),
    st.text(max_size=80).map(lambda t: t.encode("utf-8", "surrogatepass")),
    st.sampled_from([b"\xff\xfe\n", b"\x1b[31mred\n", b"../../etc/passwd\n", b"\xe2\x80\xae\n"]),
)
DRIVERS = st.sampled_from(["", "usbhid", "ftdi_sio", "usbfs", "hub", "usb", "btusb", "usb-storage"])
NODES = st.lists(
    st.sampled_from(["tty", "hidraw", "input", "block", "sound", "cec", "usbmisc"]),
    max_size=3,
    unique=True,
)


@st.composite
def _interfaces(draw: st.DrawFn) -> list[dict[str, object]]:
    return [
        {
            "driver": draw(DRIVERS),
            "nodes": draw(NODES),
            "modalias": draw(TEXT),
            "interface": draw(TEXT),
            "authorized": draw(st.sampled_from([b"1\n", b"0\n", b"\xff", None])),
        }
        for _ in range(draw(st.integers(0, 3)))
    ]


@pytest.mark.field_case("G08")
@given(
    strings=st.fixed_dictionaries(
        dict.fromkeys(
            ("manufacturer", "product_name", "serial", "speed", "version", "bcdDevice"), TEXT
        )
    ),
    ids=st.tuples(TEXT, TEXT),
    interfaces=_interfaces(),
    duration=TEXT,
)
@settings(max_examples=150)
def test_whatever_a_device_says_it_is_published_or_has_a_reason(
    strings: dict[str, bytes | None],
    ids: tuple[bytes | None, bytes | None],
    interfaces: list[dict[str, object]],
    duration: bytes | None,
) -> None:
    with tempfile.TemporaryDirectory(dir=_memory()) as root:
        machine = FakeMachine(root)
        device = machine.usb("1-2")
        minor = 0
        for number, facts in enumerate(interfaces):
            interface = device.interface(number, driver=str(facts["driver"]))
            for kind in facts["nodes"]:  # type: ignore[attr-defined]
                interface.node(kind, f"{kind}{minor}", 240, minor)
                minor += 1
            for name in ("modalias", "interface", "authorized"):
                interface.attribute(name, facts[name])  # type: ignore[arg-type]
        device.set(idVendor=ids[0], idProduct=ids[1], **strings)
        device.attribute("power/connected_duration", duration)

        listed = list(Usb(machine.node(), Usb.Settings()).publish_devices())

        assert listed, "a device in a port is never passed over in silence"
        for item in listed:
            assert isinstance(item, Device | Withheld)
            if isinstance(item, Device):
                fit, _ = publishable(item, "hardpoint.dev")
                assert all("\x1b" not in str(v) for v in fit.attributes.values())
                assert item.all_parts
            else:
                assert "\x1b" not in item.reason


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


@given(st.text(max_size=12))
def test_a_name_on_the_bus_is_a_port_or_an_interface_or_neither(name: str) -> None:
    assert not (is_port(name) and port_of(name))
    if port_of(name):
        assert is_port(port_of(name))


@pytest.mark.parametrize("name", ["usb1", "1-0", "0-1", "1-", "1-2.", "1-2:1", "1-2:1.0.0", "٣-1"])
def test_names_that_no_kernel_gives_are_passed_over(machine: FakeMachine, name: str) -> None:
    machine.device("usb", name, driver="acme", modalias="usb:v1D6B").node("acme", "acme0", 240, 0)

    assert see(machine.node()) == Seen({}, {}, {})


def test_a_port_that_cannot_be_read_costs_that_port(machine: FakeMachine, look: Look) -> None:
    for port in ("1-1", "1-2", "1-3"):
        machine.usb(port).interface(0)
    (machine.sys / "bus/usb/devices/1-2/idVendor").unlink()
    (machine.sys / "bus/usb/devices/1-2/idVendor").mkdir()

    seen = look()

    assert seen.names == ["usb-1-1", "usb-1-3"]
    assert list(seen.unread) == ["bus/usb/devices/1-2"]
    assert "EISDIR" in seen.unread["bus/usb/devices/1-2"].reason


def test_a_dangling_link_is_nothing(machine: FakeMachine, look: Look) -> None:
    machine.usb("1-1").interface(0)
    (machine.sys / "bus/usb/devices/1-9").symlink_to("../../../devices/gone/1-9")
    (machine.sys / "bus/usb/devices/1-1:1.7").symlink_to("../../../devices/gone/1-1:1.7")

    seen = look()

    assert seen.names == ["usb-1-1"]
    assert seen.unread == {}
    assert seen.withheld == {}


def test_a_machine_without_usb_has_none(machine: FakeMachine) -> None:
    assert list(Usb(machine.node(), Usb.Settings()).publish_devices()) == []


def test_a_machine_whose_sysfs_is_away_is_unknown(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    node = machine.node()
    machine.sys.rename(tmp_path / "away")

    with pytest.raises(FileNotFoundError):
        list(Usb(node, Usb.Settings()).publish_devices())


def test_nothing_of_what_a_device_says_is_logged(
    machine: FakeMachine, look: Look, caplog: pytest.LogCaptureFixture
) -> None:
    machine.usb("1-1", serial="SECRET-42", product_name="SECRET").unreadable("bcdDevice")
    machine.usb("1-2", serial="SECRET-42").unreadable("idVendor")
    look()

    assert "SECRET" not in caplog.text
