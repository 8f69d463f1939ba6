from __future__ import annotations

from pathlib import Path

import pytest
from recorded_machines import Recorded

from hardpoint import DeviceNode, Node
from hardpoint.platform import Platform
from hardpoint.testing.sysfs import FakeMachine


def why(node: Node, path: str, major: int | None = None, minor: int | None = None) -> str:
    return Platform.of(node).reason(DeviceNode(path=path, major=major, minor=minor)) or ""


@pytest.mark.parametrize(
    ("name", "path", "says"),
    [
        ("desktop", "/dev/ttyS0", "console"),
        ("desktop", "/dev/console", "console"),
        ("desktop", "/dev/ttyS1", ""),
        ("desktop", "/dev/ttyS2", "not there"),
        ("desktop", "/dev/rtc0", "clock"),
        ("desktop", "/dev/tpm0", "TPM"),
        ("desktop", "/dev/tpmrm0", "TPM"),
        ("desktop", "/dev/watchdog0", ""),
        ("desktop", "/dev/ttyUSB0", ""),
        ("legacy", "/dev/ttyS2", ""),
        ("legacy", "/dev/ttyS3", "not there"),
        ("legacy", "/dev/lp0", ""),
        ("legacy", "/dev/ipmi0", "BMC"),
        ("legacy", "/dev/vport2p1", ""),
        ("virtual", "/dev/video0", ""),
        ("graphics", "/dev/dri/renderD131", ""),
    ],
)
def test_a_recorded_machine_keeps_its_consoles_clock_and_tpm(
    recorded: Recorded, name: str, path: str, says: str
) -> None:
    reason = why(recorded(name), path)

    assert says in reason
    assert bool(reason) is bool(says)


def test_a_console_is_known_by_its_numbers_under_any_path(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path).consoles("ttyS1")
    machine.device("pnp", "00:02", driver="serial").node("tty", "ttyS1", 4, 65, type=4)

    assert "console" in why(machine.node(), "/dev/modem", 4, 65)


def test_the_console_in_the_foreground_is_kept_with_the_one_that_stands_for_it(
    tmp_path: Path,
) -> None:
    machine = FakeMachine(tmp_path).consoles("tty0")
    machine.virtual("tty", "tty0", 4, 0, active="tty2")
    machine.virtual("tty", "tty2", 4, 2)
    machine.virtual("tty", "tty3", 4, 3)

    assert "console" in why(machine.node(), "/dev/tty2", 4, 2)
    assert not why(machine.node(), "/dev/tty3", 4, 3)


def test_where_the_consoles_cannot_be_read_every_line_is_kept_and_a_gpu_is_not(
    tmp_path: Path,
) -> None:
    machine = FakeMachine(tmp_path).consoles("ttyS1")
    machine.pci("0000:00:02.0").drm(card=0)
    machine.device("pnp", "00:02", driver="serial").node("tty", "ttyS0", 4, 64, type=4)
    (machine.sys / "class/tty/console/active").unlink()
    (machine.sys / "class/tty/console/active").mkdir()

    assert "cannot be read" in why(machine.node(), "/dev/ttyS0", 4, 64)
    assert not why(machine.node(), "/dev/dri/card0", 226, 0)


@pytest.mark.parametrize("attached", ["serio", "bluetooth", "net"])
def test_a_line_that_something_is_attached_to_is_kept(tmp_path: Path, attached: str) -> None:
    machine = FakeMachine(tmp_path)
    port = machine.usb("1-2").interface(0, driver="cdc_acm").node("tty", "ttyACM0", 166, 0)
    before = why(machine.node(), "/dev/ttyACM0", 166, 0)
    child = machine.device("x", f"{attached}0", below=f"{port.path}/tty/ttyACM0")
    (child.path / "subsystem").unlink()
    child.in_class(attached)

    assert not before
    assert f"{attached}0 is attached" in why(machine.node(), "/dev/ttyACM0", 166, 0)


@pytest.mark.parametrize(("state", "says"), [("active", "armed"), ("inactive", "")])
def test_a_watchdog_is_kept_while_the_machine_has_armed_it(
    tmp_path: Path, state: str, says: str
) -> None:
    machine = FakeMachine(tmp_path)
    dog = machine.platform("iTCO_wdt", driver="iTCO_wdt")
    dog.node("watchdog", "watchdog0", 245, 0, state=state).node("misc", "watchdog", 10, 130)

    for path, numbers in (("/dev/watchdog0", (245, 0)), ("/dev/watchdog", (10, 130))):
        reason = why(machine.node(), path, *numbers)
        assert says in reason
        assert bool(reason) is bool(says)


def test_the_clock_that_set_the_time_at_boot_is_kept_whatever_its_number(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.platform("rtc-a", driver="rtc").node("rtc", "rtc0", 251, 0, hctosys=0)
    machine.platform("rtc-b", driver="rtc").node("rtc", "rtc1", 251, 1, hctosys=1)
    machine.platform("rtc-c", driver="rtc").node("rtc", "rtc2", 251, 2, hctosys=0)

    kept = [why(machine.node(), f"/dev/rtc{n}", 251, n) != "" for n in range(3)]
    assert kept == [True, True, False]


def test_flash_memory_of_the_board_is_kept(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.pci("0000:00:1f.5", driver="intel-spi").node("mtd", "mtd0", 90, 0)

    assert "firmware" in why(machine.node(), "/dev/mtd0", 90, 0)


def test_what_leads_to_the_management_engine_is_kept(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.pci("0000:00:16.0", driver="mei_me").node("mei", "mei0", 240, 0)

    assert "management engine" in why(machine.node(), "/dev/mei0", 240, 0)


def test_the_port_of_a_hypervisors_agent_is_kept_and_any_other_is_not(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    function = machine.pci("0000:00:05.0", driver="virtio-pci")
    for number, name in enumerate(
        (
            "org.qemu.guest_agent.0",
            "com.redhat.spice.0",
            "org.spice-space.webdav.0",
            "acme.data",
            "",
        )
    ):
        function.node("virtio-ports", f"vport0p{number}", 246, number, name=name)

    kept = [bool(why(machine.node(), f"/dev/vport0p{n}", 246, n)) for n in range(5)]
    assert kept == [True, True, True, False, False]


def test_what_cannot_be_read_is_kept_and_nothing_is_raised(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    port = machine.device("pnp", "00:02", driver="serial").node("tty", "ttyS0", 4, 64)
    (port.path / "tty/ttyS0/type").mkdir()

    assert "EISDIR" in why(machine.node(), "/dev/ttyS0", 4, 64)
