"""The tests that every driver is held to: subclass, name the plugin, fill a machine.

    class TestAcme(DriverContract):
        plugin = Acme

        @pytest.fixture
        def populated(self, machine: FakeMachine) -> FakeMachine:
            machine.platform("acme.0", driver="acme").node("acme", "acme0", 240, 0)
            return machine

A driver with claim parameters names blocks of them to try too: ``parameters = ({"level": 3},)``.
In-tree drivers pass the same class, unmodified.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from hardpoint import cdi
from hardpoint._core.ledger.codec import dump, load
from hardpoint._core.offer.inventory import Listing
from hardpoint.attributes import attribute_name, publishable
from hardpoint.errors import HoldDenied, Refuse, TryAgain
from hardpoint.model import (
    AttributeType,
    AttributeValue,
    Device,
    DeviceNode,
    Health,
    Hold,
    Unread,
    Version,
    Withheld,
)
from hardpoint.node import Node
from hardpoint.parameters import decode
from hardpoint.testing._machine_files import contents, files, fingerprint, put_back, remove, spoilt
from hardpoint.testing.driver_under_test import DOMAIN, DriverUnderTest, claim_for, hold_on
from hardpoint.testing.sysfs import FakeMachine

_T = TypeVar("_T")

_TYPES = {
    bool: AttributeType.BOOL,
    int: AttributeType.INT,
    str: AttributeType.STRING,
    Version: AttributeType.VERSION,
}


class DriverContract:
    """Inherit from this, and give ``plugin`` and the fixture ``populated``."""

    plugin: ClassVar[type]
    settings: ClassVar[dict[str, Any]] = {}
    reads_sysfs: ClassVar[bool] = True
    """False for a driver whose hardware is not in sysfs (a vendor's library)."""
    parameters: ClassVar[tuple[dict[str, Any], ...]] = ()
    """Blocks of claim parameters, without ``apiVersion`` and ``kind``: what is delivered, prepared
    and unprepared is tried with each of them, and without any. A device may refuse a block; one
    device at least has to take it."""
    restores: ClassVar[bool] = True
    """False for a driver that leaves the hardware changed on purpose when a claim ends."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run what takes ``asked`` without parameters and with each block of them."""
        if "asked" in metafunc.fixturenames:
            metafunc.parametrize("asked", ({}, *self.parameters), ids=_words)

    @pytest.fixture
    def populated(self, machine: FakeMachine) -> FakeMachine:
        """A machine on which the driver finds at least one device."""
        pytest.fail("give your DriverContract a fixture `populated` that fills `machine`")

    @pytest.fixture
    def driver(self, populated: FakeMachine) -> DriverUnderTest:
        """The driver on the populated machine."""
        return DriverUnderTest(self.plugin, populated.node(writable=True), self.settings)

    @pytest.fixture
    def devices(self, driver: DriverUnderTest) -> tuple[Device, ...]:
        """What it publishes there."""
        return driver.scan().devices

    # -- loading ----------------------------------------------------------------------------------

    def test_it_loads_and_implements_only_hooks_that_exist(self, driver: DriverUnderTest) -> None:
        assert driver.record.state == "running", driver.record.reason

    def test_making_it_touches_no_hardware(self, tmp_path: Path) -> None:
        nowhere = tmp_path / "nothing-here"
        node = Node(name="n", sys=nowhere, dev=nowhere, proc=nowhere, run=nowhere)

        assert DriverUnderTest(self.plugin, node, self.settings).record.state == "running"

    def test_a_wrong_setting_refuses_it_with_a_sentence(self, driver: DriverUnderTest) -> None:
        wrong = DriverUnderTest(self.plugin, driver.node, {"no_such_key": 1})

        assert wrong.record.state == "refused"
        assert "no_such_key" in wrong.record.reason

    # -- what it lists ----------------------------------------------------------------------------

    def test_it_finds_a_device_on_the_populated_machine(self, devices: tuple[Device, ...]) -> None:
        assert devices

    def test_two_walks_of_an_unchanged_machine_agree(self, driver: DriverUnderTest) -> None:
        assert driver.scan() == driver.scan()

    def test_a_new_process_lists_the_same(self, driver: DriverUnderTest) -> None:
        assert driver.again_on(driver.node).scan() == driver.scan()

    def test_names_are_unique(self, devices: tuple[Device, ...]) -> None:
        assert len({device.name for device in devices}) == len(devices)

    def test_the_api_server_takes_everything_it_says(self, devices: tuple[Device, ...]) -> None:
        for device in devices:
            _, mended = publishable(device, DOMAIN)
            assert not mended, f"{device.name}: {mended[0]}"

    def test_attributes_are_absent_rather_than_empty_or_false(
        self, devices: tuple[Device, ...]
    ) -> None:
        for device in devices:
            vague = [n for n, v in device.attributes.items() if v is False or v == ""]
            assert not vague, device.name

    def test_every_attribute_is_described_with_its_type(
        self, driver: DriverUnderTest, devices: tuple[Device, ...]
    ) -> None:
        described = {
            attribute_name(info.name, DOMAIN): info
            for info in driver.call("describe_attributes") or ()
        }
        for device in devices:
            for name, value in device.attributes.items():
                info = described.get(attribute_name(name, DOMAIN))
                assert info is not None, f"{name} of {device.name} is not described"
                assert info.type is _type_of(value), name
                assert not info.kinds or device.kind in info.kinds, name

    def test_every_device_takes_a_part(self, devices: tuple[Device, ...]) -> None:
        for device in devices:
            assert device.all_parts, (
                f"{device.name} takes no part and has no node: another driver, or another name of "
                "yours, could hand the same hardware to a second claim; give it parts=entry.whole()"
            )

    def test_no_two_devices_deliver_one_exclusive_node(self, devices: tuple[Device, ...]) -> None:
        seen: dict[str, str] = {}
        for device in devices:
            for node in device.nodes:
                if node.part and not (node.shared or device.shareable):
                    assert node.part not in seen, f"{device.name} and {seen[node.part]}"
                    seen[node.part] = device.name

    def test_devices_survive_the_ledger(self, devices: tuple[Device, ...]) -> None:
        for device in devices:
            assert load(Device, dump(device)) == device

    def test_what_it_withholds_says_why_in_a_sentence(self, driver: DriverUnderTest) -> None:
        for withheld in driver.scan().withheld:
            assert isinstance(withheld, Withheld)
            assert withheld.subject
            assert withheld.rule
            assert " " in withheld.reason

    # -- how it walks -----------------------------------------------------------------------------

    def test_a_walk_writes_nothing(self, populated: FakeMachine, driver: DriverUnderTest) -> None:
        before = fingerprint(populated.root)
        driver.scan()

        assert fingerprint(populated.root) == before

    def test_an_empty_machine_is_no_fault(self, driver: DriverUnderTest, tmp_path: Path) -> None:
        empty = FakeMachine(tmp_path / "empty").node()

        assert driver.again_on(empty).scan().devices == ()

    def test_a_machine_without_sysfs_is_not_an_empty_one(
        self, driver: DriverUnderTest, tmp_path: Path
    ) -> None:
        if not self.reads_sysfs:
            pytest.skip("it does not read sysfs")
        lost = Node(name="n", sys=tmp_path / "gone", dev=tmp_path, proc=tmp_path, run=tmp_path)

        with pytest.raises(Exception, match=r"."):
            driver.again_on(lost).scan()

    def test_a_device_that_vanished_costs_only_itself(
        self, populated: FakeMachine, driver: DriverUnderTest
    ) -> None:
        before = driver.scan().devices
        gone = remove(populated, before[0].entry)
        if not gone:
            pytest.skip("its devices name no entry of sysfs")

        after = {device.name for device in driver.scan().devices}

        below = {d.name for d in before if _inside(populated, d, gone)}
        assert before[0].name not in after
        assert {d.name for d in before} - below <= after

    def test_an_entry_that_cannot_be_read_costs_only_itself(
        self, populated: FakeMachine, driver: DriverUnderTest
    ) -> None:
        before = driver.scan()
        attributes = files(populated, before.devices)
        if not attributes:
            pytest.skip("its devices name no entry of sysfs, or entries without attributes")
        for chosen in (*attributes, [file for each in attributes for file in each]):
            with spoilt(chosen):
                listed = driver.call("publish_devices")
            after = before.after(listed, 1.0)

            lost = {item.entry for item in listed if isinstance(item, Unread)}
            names = {device.name for device in after.devices}
            gone = {d.name for d in before.devices} - names
            explained = {d.name for d in before.devices if d.entry not in lost} & _withheld(after)
            assert gone <= explained, (
                f"{sorted(gone)} taken for unplugged since {chosen[0].name} could not be read"
            )

    # -- what a holder receives -------------------------------------------------------------------

    def test_delivery_is_pure(
        self,
        driver: DriverUnderTest,
        devices: tuple[Device, ...],
        populated: FakeMachine,
        asked: dict[str, Any],
    ) -> None:
        before = fingerprint(populated.root)
        for device in _takers(driver, devices, asked):
            assert driver.deliver(device, asked) == driver.deliver(device, asked)

        assert fingerprint(populated.root) == before

    def test_a_runtime_takes_what_is_delivered(
        self, driver: DriverUnderTest, devices: tuple[Device, ...], asked: dict[str, Any]
    ) -> None:
        for device in _takers(driver, devices, asked):
            assert cdi.spec(DOMAIN, [(f"1-{device.name}", driver.deliver(device, asked))])

    def test_delivered_nodes_are_the_devices_own(
        self, driver: DriverUnderTest, devices: tuple[Device, ...], asked: dict[str, Any]
    ) -> None:
        for device in _takers(driver, devices, asked):
            own = {node.path for node in device.nodes}
            extra = [n for n in driver.deliver(device, asked).nodes if n.path not in own]
            assert all(_takes(node) for node in extra), device.name

    # -- what a claim may ask ---------------------------------------------------------------------

    def test_a_claim_without_parameters_is_served(self, driver: DriverUnderTest) -> None:
        model = driver.record.parameters_model

        assert driver.parameters() is None if model is None else model()

    def test_an_unknown_parameter_is_refused_with_the_known_ones(
        self, driver: DriverUnderTest
    ) -> None:
        model = driver.record.parameters_model
        if model is None:
            pytest.skip("it takes no parameters")
        block = {"apiVersion": model.api_version, "kind": model.kind, "no_such_key": 1}

        with pytest.raises(HoldDenied, match="no_such_key"):
            decode(model, (block,), where="claim")

    # -- a claim's life ---------------------------------------------------------------------------

    def test_preparing_twice_is_preparing_once(
        self, driver: DriverUnderTest, devices: tuple[Device, ...], asked: dict[str, Any]
    ) -> None:
        for device in _takers(driver, devices, asked):
            hold = hold_on(device)
            if not _is_prepared(driver, device, hold, asked):
                continue
            remembered = dict(hold.remembered)
            driver.prepare(device, hold, asked)

            assert dict(hold.remembered) == remembered

    def test_preparing_anew_after_a_reboot_makes_the_device_ready_again(
        self,
        driver: DriverUnderTest,
        devices: tuple[Device, ...],
        populated: FakeMachine,
        asked: dict[str, Any],
        tmp_path: Path,
    ) -> None:
        if not driver.implements("prepare_device"):
            pytest.skip("it changes nothing for a claim")
        booted = shutil.copytree(populated.sys, tmp_path / "as-booted", symlinks=True)
        for device in _takers(driver, devices, asked):
            hold = hold_on(device)
            if not _is_prepared(driver, device, hold, asked):
                continue
            prepared = contents(populated.sys)
            put_back(populated.sys, booted)
            driver.again_on(populated.node(writable=True)).prepare(device, hold, asked)
            found = contents(populated.sys)
            put_back(populated.sys, booted)

            assert found == prepared, f"{device.name} was taken for ready: it was, before the boot"

    def test_unpreparing_succeeds_twice(
        self, driver: DriverUnderTest, devices: tuple[Device, ...], asked: dict[str, Any]
    ) -> None:
        for device in _takers(driver, devices, asked):
            hold = hold_on(device)
            _is_prepared(driver, device, hold, asked)
            for _ in range(2):
                driver.unprepare(device, hold)

    def test_a_claim_that_ended_leaves_the_machine_as_it_was(
        self,
        driver: DriverUnderTest,
        devices: tuple[Device, ...],
        populated: FakeMachine,
        asked: dict[str, Any],
    ) -> None:
        if not self.restores or not driver.implements("prepare_device"):
            pytest.skip("it changes nothing for a claim, or does not change it back")
        for device in _takers(driver, devices, asked):
            before = contents(populated.sys)
            hold = hold_on(device)
            for _ in range(2):  # what a second call remembers must not be what the first changed
                _is_prepared(driver, device, hold, asked)
            driver.unprepare(device, hold)
            driver.call("release_device", device.name, device=device, hold=hold)

            assert contents(populated.sys) == before, f"{device.name} was left changed"

    def test_unpreparing_undoes_a_prepare_that_never_began(
        self, driver: DriverUnderTest, devices: tuple[Device, ...], populated: FakeMachine
    ) -> None:
        before = contents(populated.sys)
        for device in devices:
            driver.unprepare(device, hold_on(device))

        assert contents(populated.sys) == before

    def test_unpreparing_succeeds_for_a_device_that_is_gone(
        self,
        driver: DriverUnderTest,
        devices: tuple[Device, ...],
        populated: FakeMachine,
        asked: dict[str, Any],
    ) -> None:
        device = _takers(driver, devices, asked)[0]
        hold = hold_on(device)
        _is_prepared(driver, device, hold, asked)
        remove(populated, device.entry)

        driver.unprepare(None, hold)

    def test_a_device_that_is_gone_is_refused_in_words(
        self, driver: DriverUnderTest, devices: tuple[Device, ...], populated: FakeMachine
    ) -> None:
        remove(populated, devices[0].entry)

        _only_meant(lambda: driver.deliver(devices[0]))
        _only_meant(lambda: driver.prepare(devices[0], hold_on(devices[0])))

    def test_health_is_an_answer_for_any_device(
        self, driver: DriverUnderTest, devices: tuple[Device, ...], populated: FakeMachine
    ) -> None:
        if not driver.implements("check_device"):
            pytest.skip("it does not check devices")
        there = driver.call("check_device", devices[0].name, device=devices[0])
        remove(populated, devices[0].entry)
        gone = driver.call("check_device", devices[0].name, device=devices[0])

        assert isinstance(there, Health)
        assert isinstance(gone, Health)


def _words(asked: dict[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in asked.items()) or "without parameters"


def _takers(
    driver: DriverUnderTest, devices: tuple[Device, ...], asked: dict[str, Any]
) -> list[Device]:
    """Return the devices that can be had with these parameters: all of them without any."""
    if not asked:
        return list(devices)
    taking = [device for device in devices if _is_delivered(driver, device, asked)]
    assert taking, f"no device of the populated machine takes the parameters {asked}"
    return taking


def _is_delivered(driver: DriverUnderTest, device: Device, asked: dict[str, Any]) -> bool:
    """Say whether the driver does not refuse to deliver the device with these parameters."""
    try:
        driver.deliver(device, asked)
    except (Refuse, TryAgain):
        return False
    return True


def _is_prepared(
    driver: DriverUnderTest, device: Device, hold: Hold, asked: dict[str, Any]
) -> bool:
    """Prepare; False where the driver refuses these parameters, which it may for some devices."""
    try:
        driver.prepare(device, hold, asked)
    except (Refuse, TryAgain):
        if not asked:
            raise
        return False
    return True


def _type_of(value: AttributeValue) -> AttributeType:
    return _TYPES[type(value)]


def _takes(node: DeviceNode) -> bool:
    return bool(node.takes) or node.shared or node.absent_ok


def _withheld(listing: Listing) -> set[str]:
    return {withheld.subject for withheld in listing.withheld}


def _inside(machine: FakeMachine, device: Device, gone: Path) -> bool:
    """Say whether a device hung from what was removed."""
    del machine
    names = {part.name.partition(":")[2] for part in device.parts}
    return gone.name in names or any(gone.name in name for name in names)


def _only_meant(act: Callable[[], _T]) -> None:
    """Raise unless it succeeds, or raises one of the two errors that a plugin may raise."""
    try:
        act()
    except (TryAgain, Refuse):
        return


__all__ = ["DriverContract", "DriverUnderTest", "claim_for", "hold_on"]
