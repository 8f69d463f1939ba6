"""The contract suite fails for drivers that break the contract, and says how."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hardpoint.testing
from hardpoint import (
    Delivery,
    Device,
    Hold,
    Node,
    Parameters,
    Refuse,
    Withheld,
    hookimpl,
)
from hardpoint.errors import HoldDenied, HookFault
from hardpoint.testing import DriverContract, DriverUnderTest, FakeMachine, claim_for, hold_on

SUITE = """
from hardpoint.testing import DriverContract

class TestLamps(DriverContract):
    plugin = object
    parameters = ({"level": 3},)
"""


class LampParameters(Parameters):
    """How a lamp shines."""

    level: int = 9


class Lamps:
    """Sets a lamp's level for a claim, and what it was when the claim ends."""

    Parameters = LampParameters

    def __init__(self, node: Node, settings: None) -> None:
        self.node = node

    @hookimpl
    def publish_devices(self) -> Iterator[Device | Withheld]:
        for lamp in self.node.each("class/lamp"):
            yield Device(name=lamp.name, kind="lamp", nodes=lamp.nodes(), parts=lamp.whole())

    @hookimpl
    def deliver_device(self, device: Device, parameters: LampParameters) -> Delivery:
        if parameters.level > 100:
            raise Refuse("a lamp has 100 levels")
        return Delivery(nodes=device.nodes)

    @hookimpl
    def prepare_device(self, device: Device, parameters: LampParameters, hold: Hold) -> None:
        lamp = self.node.entry(f"class/lamp/{device.name}")
        if "level" not in hold.remembered:
            hold.remember(level=lamp.text("level"))
        lamp.write("level", str(parameters.level))

    @hookimpl
    def unprepare_device(self, hold: Hold) -> None:
        lamp = self.node.entry(f"class/lamp/{hold.device.name}")
        if "level" in hold.remembered and lamp.exists():
            lamp.write("level", hold.remembered["level"])


class Forgetful(Lamps):
    """Remembers anew at every call: what it changed itself, at the second."""

    @hookimpl
    def prepare_device(self, device: Device, parameters: LampParameters, hold: Hold) -> None:
        lamp = self.node.entry(f"class/lamp/{device.name}")
        hold.remember(level=lamp.text("level"))
        lamp.write("level", str(parameters.level))


class Credulous(Lamps):
    """Believes what it remembers: that a lamp is as it was set, also when the node was off."""

    @hookimpl
    def prepare_device(self, device: Device, parameters: LampParameters, hold: Hold) -> None:
        if hold.remembered.get("set") == parameters.level:
            return
        self.node.entry(f"class/lamp/{device.name}").write("level", str(parameters.level))
        hold.remember(set=parameters.level)


class Careless(Lamps):
    """Takes a lamp whose level it cannot read for none."""

    @hookimpl
    def publish_devices(self) -> Iterator[Device | Withheld]:
        for lamp in self.node.each("class/lamp"):
            if lamp.get("level"):
                yield Device(name=lamp.name, kind="lamp", parts=lamp.whole())


class Partless(Lamps):
    """Says of a lamp without a node only what it is called."""

    @hookimpl
    def publish_devices(self) -> Iterator[Device | Withheld]:
        for lamp in self.node.each("class/lamp"):
            yield Device(name=lamp.name, kind="lamp")


class Suite(DriverContract):
    plugin = Lamps


@pytest.fixture
def populated(machine: FakeMachine) -> FakeMachine:
    for minor, name in enumerate(("lamp0", "lamp1")):
        machine.platform(f"acme-{name}").node("lamp", name, 240, minor, level="100")
    return machine


def _under_test(plugin: type, machine: FakeMachine) -> tuple[DriverUnderTest, tuple[Device, ...]]:
    driver = DriverUnderTest(plugin, machine.node(writable=True))
    return driver, driver.scan().devices


@pytest.mark.parametrize("asked", [{}, {"level": 3}])
def test_a_driver_that_puts_back_what_it_changed_passes(
    populated: FakeMachine, asked: dict[str, Any]
) -> None:
    driver, devices = _under_test(Lamps, populated)

    Suite().test_a_claim_that_ended_leaves_the_machine_as_it_was(driver, devices, populated, asked)
    Suite().test_preparing_twice_is_preparing_once(driver, devices, asked)


def test_a_driver_that_remembers_its_own_change_fails(populated: FakeMachine) -> None:
    driver, devices = _under_test(Forgetful, populated)

    with pytest.raises(AssertionError, match="lamp0 was left changed"):
        Suite().test_a_claim_that_ended_leaves_the_machine_as_it_was(driver, devices, populated, {})


@pytest.mark.field_case("C13", "C06")
@pytest.mark.parametrize("asked", [{}, {"level": 3}])
def test_a_driver_that_believes_what_it_remembers_from_before_a_reboot_fails(
    populated: FakeMachine, tmp_path: Path, asked: dict[str, Any]
) -> None:
    good, devices = _under_test(Lamps, populated)
    Suite().test_preparing_anew_after_a_reboot_makes_the_device_ready_again(
        good, devices, populated, asked, tmp_path / "good"
    )
    bad, devices = _under_test(Credulous, populated)

    with pytest.raises(AssertionError, match="lamp0 was taken for ready"):
        Suite().test_preparing_anew_after_a_reboot_makes_the_device_ready_again(
            bad, devices, populated, asked, tmp_path / "bad"
        )


def test_a_driver_that_takes_an_unreadable_attribute_for_a_lost_device_fails(
    populated: FakeMachine,
) -> None:
    driver, _ = _under_test(Careless, populated)

    with pytest.raises(AssertionError, match=r"'lamp0'.* since level could not be read"):
        Suite().test_an_entry_that_cannot_be_read_costs_only_itself(populated, driver)


def test_a_device_without_a_part_is_told_what_it_risks(populated: FakeMachine) -> None:
    _, devices = _under_test(Partless, populated)

    with pytest.raises(AssertionError, match=r"lamp0 takes no part .* parts=entry\.whole\(\)"):
        Suite().test_every_device_takes_a_part(devices)


def test_parameters_that_no_device_takes_fail(populated: FakeMachine) -> None:
    driver, devices = _under_test(Lamps, populated)

    with pytest.raises(AssertionError, match=r"no device .* takes the parameters {'level': 101}"):
        Suite().test_delivery_is_pure(driver, devices, populated, {"level": 101})


def test_parameters_that_the_model_lacks_are_named(populated: FakeMachine) -> None:
    driver, devices = _under_test(Lamps, populated)

    with pytest.raises(HoldDenied, match="unknown key bright; the keys are level"):
        driver.deliver(devices[0], {"bright": 1})


def test_parameters_without_a_model_are_refused(populated: FakeMachine) -> None:
    class Dark(Lamps):
        Parameters = None  # type: ignore[assignment]

    driver, devices = _under_test(Dark, populated)

    with pytest.raises(HoldDenied, match="its driver takes none"):
        driver.parameters({"level": 1})
    assert devices


def test_what_a_driver_raises_arrives_bare(populated: FakeMachine) -> None:
    driver, devices = _under_test(Lamps, populated)
    hold = hold_on(devices[0])

    with pytest.raises(Refuse, match="100 levels"):
        driver.deliver(devices[0], {"level": 101})
    with pytest.raises(HookFault, match="prepare_device"):
        driver.call(
            "prepare_device",
            device=devices[0],
            claim=claim_for(devices[0]),
            parameters=None,
            hold=hold,
        )


def test_blocks_of_parameters_are_tests_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "test_lamps.py").write_text(SUITE)
    words = ["-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "test_lamps.py"]
    found = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)

    for asked in ("without parameters", "level=3"):
        assert f"TestLamps::test_delivery_is_pure[{asked}]" in found.stdout


def test_every_tool_for_tests_is_there_by_its_name() -> None:
    assert sorted(hardpoint.testing.__all__) == list(hardpoint.testing.__all__)
    for name in hardpoint.testing.__all__:
        assert getattr(hardpoint.testing, name).__name__ == name
    with pytest.raises(AttributeError, match="no_such_tool"):
        hardpoint.testing.no_such_tool  # noqa: B018
