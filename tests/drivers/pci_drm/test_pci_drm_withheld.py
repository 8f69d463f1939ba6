from __future__ import annotations

import re
from pathlib import Path

import pytest
from pci_drm_look import look

from hardpoint import Condition, Health
from hardpoint.testing.sysfs import FakeMachine, FakePci
from hardpoint_pci_drm import PciDrm
from hardpoint_pci_drm.withheld import RULES


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


@pytest.mark.parametrize(
    ("klass", "driver", "rule", "says"),
    [
        ("030000", "", "no-driver", "no kernel driver is bound to this GPU"),
        ("028000", "", "no-driver", "load the module that knows pci:v00001AF4d00001000"),
        ("060000", "", "plumbing", "bridge"),
        ("060400", "pcieport", "plumbing", "behind it"),
        ("020000", "ice", "no-nodes", "network interface"),
        ("0c0330", "xhci_hcd", "no-nodes", "USB controller"),
        ("0c0500", "i801_smbus", "no-nodes", "i2c-dev"),
        ("118000", "proc_thermal", "no-nodes", "proc_thermal makes no node"),
        ("010802", "nvme", "controller", "storage controller"),
        ("080501", "sdhci-pci", "controller", "storage controller"),
        ("030000", "vfio-pci", "passthrough", "virtual machine"),
    ],
)
def test_a_function_that_makes_no_device_says_why(
    machine: FakeMachine, klass: str, driver: str, rule: str, says: str
) -> None:
    machine.pci("0000:00:1f.3", klass=klass, driver=driver)

    (withheld,) = look(machine.node()).withheld.values()

    assert (withheld.subject, withheld.rule) == ("pci 0000:00:1f.3", rule)
    assert says in withheld.reason
    assert rule in RULES


def test_the_readme_explains_every_rule() -> None:
    readme = (Path(__file__).parents[3] / "drivers/pci_drm/README.md").read_text()
    table = readme.partition("the rule that says so")[2].partition("## Settings")[0]

    explained = re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)
    assert sorted(explained) == sorted(RULES)


def test_a_function_for_a_virtual_machine_is_withheld_with_its_nodes(machine: FakeMachine) -> None:
    machine.pci("0000:0a:00.0", driver="vfio-pci").node("vfio-dev", "vfio/devices/vfio0", 511, 0)

    assert look(machine.node()).rules == {"pci 0000:0a:00.0": "passthrough"}


def test_nothing_but_a_frame_buffer_is_withheld(machine: FakeMachine) -> None:
    machine.pci("0000:00:02.0", klass="030000", driver="nvidiafb").fb(0)

    assert look(machine.node()).rules == {"pci 0000:00:02.0": "framebuffer"}


def test_a_frame_buffer_beside_a_card_node_is_told(machine: FakeMachine) -> None:
    machine.pci("0000:00:02.0", klass="030000", driver="ast").drm(card=0).fb(0)

    found = look(machine.node())

    assert found.nodes == {"pci-0000-00-02-0-display": ["/dev/dri/card0"]}
    assert found.rules == {"pci 0000:00:02.0 /dev/fb0": "framebuffer"}


def test_a_function_of_any_class_may_make_a_network_interface(machine: FakeMachine) -> None:
    can = machine.pci("0000:00:0a.0", klass="ff0000", driver="kvaser_pci")
    can.child("net").child("can0").in_class("net")

    (withheld,) = look(machine.node()).withheld.values()

    assert "network interface" in withheld.reason


def test_the_boards_management_bus_is_offered_only_where_the_settings_say_so(
    machine: FakeMachine,
) -> None:
    bridge = machine.pci("0000:00:14.0", klass="068000", driver="piix4_smbus")
    bridge.node("i2c-dev", "i2c-0", 89, 0, name="SMBus PIIX4 adapter port 0 at 0b00")
    gpu = machine.pci("0000:0a:00.0", klass="030000", driver="amdgpu").drm(card=0)
    gpu.node("i2c-dev", "i2c-1", 89, 1, name="AMDGPU DM i2c hw bus 0")
    machine.platform("fe804000.i2c", driver="i2c-bcm2835").node(
        "i2c-dev", "i2c-2", 89, 2, name="bcm2835 (i2c@7e804000)"
    )

    found = look(machine.node())
    asked = look(machine.node(), smbus=True)

    assert found.rules == {"pci 0000:00:14.0 /dev/i2c-0": "smbus"}
    assert found.nodes["pci-0000-0a-00-0-i2c-dev"] == ["/dev/i2c-1"]
    assert found.nodes["platform-fe804000-i2c"] == ["/dev/i2c-2"]
    assert asked.nodes["pci-0000-00-14-0"] == ["/dev/i2c-0"]


def test_a_function_whose_every_node_the_machine_uses_says_which(machine: FakeMachine) -> None:
    bridge = machine.pci("0000:00:1f.0", klass="060100", driver="lpc_ich")
    bridge.node("tpm", "tpm0", 10, 224).node("tpmrm", "tpmrm0", 253, 65536)

    (withheld,) = look(machine.node()).withheld.values()

    assert (withheld.subject, withheld.rule) == ("pci 0000:00:1f.0", "platform")
    assert "/dev/tpm0, /dev/tpmrm0: the TPM" in withheld.reason


@pytest.mark.field_case("B20", "G20")
def test_a_node_that_comes_late_is_published_then(machine: FakeMachine) -> None:
    gpu = machine.pci("0000:0a:00.0", klass="030000", driver="amdgpu")
    before = look(machine.node())
    gpu.drm(card=0, render=128)

    assert before.rules == {"pci 0000:0a:00.0": "no-nodes"}
    assert list(look(machine.node()).devices) == ["pci-0000-0a-00-0", "pci-0000-0a-00-0-display"]


@pytest.mark.field_case("F09")
def test_a_function_that_was_removed_is_gone_and_its_neighbours_stay(machine: FakeMachine) -> None:
    for slot in (2, 3):
        machine.pci(f"0000:00:0{slot}.0", driver="i915").drm(card=slot, render=128 + slot)
    gpu = FakePci(machine, (machine.sys / "bus/pci/devices/0000:00:02.0").resolve())
    gpu.remove()

    assert list(look(machine.node()).devices) == ["pci-0000-00-03-0", "pci-0000-00-03-0-display"]


# -- health ---------------------------------------------------------------------------------------


def health(machine: FakeMachine) -> Health:
    node = machine.node()
    driver = PciDrm(node, PciDrm.Settings())
    (device,) = look(node).devices.values()
    return driver.check_device(device)


@pytest.fixture
def gpu(machine: FakeMachine) -> FakePci:
    return machine.pci("0000:0a:00.0", klass="030000", driver="amdgpu").drm(render=128)


def test_a_function_that_answers_is_healthy(machine: FakeMachine, gpu: FakePci) -> None:
    gpu.set(config=b"\x02\x10\x4c\x74" + bytes(60))

    assert health(machine) == Health(Condition.HEALTHY)


def test_a_function_that_answers_nothing_but_ones_has_fallen_off_the_bus(
    machine: FakeMachine, gpu: FakePci
) -> None:
    gpu.set(config=b"\xff" * 64)

    assert health(machine).condition is Condition.UNHEALTHY
    assert "fallen off the bus" in health(machine).message


def test_a_function_that_sleeps_is_not_woken_to_ask(machine: FakeMachine, gpu: FakePci) -> None:
    gpu.set(config=b"\xff" * 64).attribute("power/runtime_status", "suspended")

    assert health(machine) == Health(Condition.HEALTHY)


def test_a_device_that_is_gone_or_has_lost_its_driver_is_unhealthy(
    machine: FakeMachine, gpu: FakePci
) -> None:
    node = machine.node()
    driver = PciDrm(node, PciDrm.Settings())
    device = look(node).devices["pci-0000-0a-00-0"]

    gpu.unbind()
    unbound = driver.check_device(device)
    gpu.remove()
    gone = driver.check_device(device)

    assert (unbound.condition, gone.condition) == (Condition.UNHEALTHY, Condition.UNHEALTHY)
    assert "driver" in unbound.message
    assert "gone from the pci bus" in gone.message
