"""The tests that every driver is held to: subclass, name the plugin, fill a machine.

    class TestAcme(DriverContract):
        plugin = Acme

        @pytest.fixture
        def populated(self, machine: FakeMachine) -> FakeMachine:
            machine.platform("acme.0", driver="acme").node("acme", "acme0", 240, 0)
            return machine

In-tree drivers pass the same class, unmodified.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import anyio
import pytest

from hardpoint import cdi
from hardpoint._core.codec import dump, load
from hardpoint._core.discovery import Plugin, Plugins
from hardpoint._core.faults import FaultBoard
from hardpoint._core.inventory import Listing
from hardpoint._core.relay import Relay
from hardpoint.attributes import attribute_name, publishable
from hardpoint.errors import HoldDenied, Refuse, TryAgain
from hardpoint.model import (
    Allotment,
    AttributeType,
    AttributeValue,
    Claim,
    ClaimKey,
    Delivery,
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
from hardpoint.testing.sysfs import FakeMachine

_T = TypeVar("_T")

DOMAIN = "contract.test"
_TYPES = {
    bool: AttributeType.BOOL,
    int: AttributeType.INT,
    str: AttributeType.STRING,
    Version: AttributeType.VERSION,
}


class DriverUnderTest:
    """One driver on one machine, called through the relay as the agent calls it."""

    def __init__(self, made: type, node: Node, settings: dict[str, Any]) -> None:
        self.made, self.node, self.settings = made, node, settings
        self.record = Plugin("driver", "contract", loaded=made)
        self.plugins = Plugins([self.record])
        self.plugins.start(self.record, node, settings)

    def call(self, hook: str, subject: str = "", **arguments: Any) -> Any:
        """Call one hook; None if the driver does not implement it."""

        async def ask() -> Any:
            async with Relay(self.plugins, FaultBoard()) as relay:
                if not relay.implements("contract", hook):
                    return None
                if hook in ("publish_devices", "describe_attributes"):
                    return await relay.plugin(hook, "driver/contract", subject, **arguments)
                return await relay.owner(hook, "contract", subject, **arguments)

        return anyio.run(ask)

    def scan(self) -> Listing:
        """Walk the machine once; raises what the walk raises."""
        return Listing("contract").after(self.call("publish_devices"), 0.0)

    def again_on(self, node: Node) -> DriverUnderTest:
        """Return a fresh driver of the same class on another machine."""
        return DriverUnderTest(self.made, node, self.settings)

    def parameters(self) -> Any:
        """Return what a claim without parameters gives."""
        return decode(self.record.parameters_model, (), where="claim")

    def deliver(self, device: Device) -> Delivery:
        """Return the driver's delivery, or the default: the device's nodes."""
        if not self.implements("deliver_device"):
            return Delivery(nodes=device.nodes)
        answer = self.call(
            "deliver_device", device.name, device=device, parameters=self.parameters()
        )
        return cast("Delivery", answer)

    def implements(self, hook: str) -> bool:
        """Say whether the driver has this hook."""
        return bool(getattr(self.made, hook, None))


def claim_for(device: Device) -> Claim:
    """Return a claim that was allocated this device."""
    key = ClaimKey("11111111-2222-3333-4444-555555555555", "contract", "claim", DOMAIN)
    allotment = Allotment(request="device", device=device.name, pool="node")
    return Claim(key=key, allotments=(allotment,))


def hold_on(device: Device) -> Hold:
    """Return a hold of that claim, which remembers in memory."""
    return Hold(claim=claim_for(device).key, device=device, request="device")


class DriverContract:
    """Inherit from this, and give ``plugin`` and the fixture ``populated``."""

    plugin: ClassVar[type]
    settings: ClassVar[dict[str, Any]] = {}
    reads_sysfs: ClassVar[bool] = True
    """False for a driver whose hardware is not in sysfs (a vendor's library)."""

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
            assert device.all_parts, f"{device.name} could be given to two claims"

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
        before = _fingerprint(populated.root)
        driver.scan()

        assert _fingerprint(populated.root) == before

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
        gone = _remove(populated, before[0].entry)
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
        entry = populated.sys / before.devices[0].entry
        if not before.devices[0].entry or not (entry / "uevent").is_file():
            pytest.skip("its devices name no entry of sysfs")
        for name in ("uevent", "modalias", "vendor", "idVendor"):
            _spoil(entry / name)

        listed = driver.call("publish_devices")
        after = before.after(listed, 1.0)

        lost = {item.entry for item in listed if isinstance(item, Unread)}
        names = {device.name for device in after.devices}
        assert {d.name for d in before.devices if d.entry not in lost} <= names | _withheld(after)
        assert {d.name for d in before.devices if d.entry in lost} <= names

    # -- what a holder receives -------------------------------------------------------------------

    def test_delivery_is_pure(
        self, driver: DriverUnderTest, devices: tuple[Device, ...], populated: FakeMachine
    ) -> None:
        before = _fingerprint(populated.root)
        for device in devices:
            assert driver.deliver(device) == driver.deliver(device)

        assert _fingerprint(populated.root) == before

    def test_a_runtime_takes_what_is_delivered(
        self, driver: DriverUnderTest, devices: tuple[Device, ...]
    ) -> None:
        for device in devices:
            assert cdi.spec(DOMAIN, [(f"1-{device.name}", driver.deliver(device))])

    def test_delivered_nodes_are_the_devices_own(
        self, driver: DriverUnderTest, devices: tuple[Device, ...]
    ) -> None:
        for device in devices:
            own = {node.path for node in device.nodes}
            extra = [n for n in driver.deliver(device).nodes if n.path not in own]
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
        self, driver: DriverUnderTest, devices: tuple[Device, ...]
    ) -> None:
        for device in devices:
            hold = hold_on(device)
            self._prepare(driver, device, hold)
            remembered = dict(hold.remembered)
            self._prepare(driver, device, hold)

            assert dict(hold.remembered) == remembered

    def test_unpreparing_succeeds_twice(
        self, driver: DriverUnderTest, devices: tuple[Device, ...]
    ) -> None:
        for device in devices:
            hold = hold_on(device)
            self._prepare(driver, device, hold)
            for _ in range(2):
                driver.call("unprepare_device", device.name, device=device, hold=hold)

    def test_unpreparing_undoes_a_prepare_that_never_began(
        self, driver: DriverUnderTest, devices: tuple[Device, ...]
    ) -> None:
        for device in devices:
            driver.call("unprepare_device", device.name, device=device, hold=hold_on(device))

    def test_unpreparing_succeeds_for_a_device_that_is_gone(
        self, driver: DriverUnderTest, devices: tuple[Device, ...], populated: FakeMachine
    ) -> None:
        hold = hold_on(devices[0])
        self._prepare(driver, devices[0], hold)
        _remove(populated, devices[0].entry)

        driver.call("unprepare_device", devices[0].name, device=None, hold=hold)

    def test_a_device_that_is_gone_is_refused_in_words(
        self, driver: DriverUnderTest, devices: tuple[Device, ...], populated: FakeMachine
    ) -> None:
        _remove(populated, devices[0].entry)

        _only_meant(lambda: driver.deliver(devices[0]))
        _only_meant(lambda: self._prepare(driver, devices[0], hold_on(devices[0])))

    def test_health_is_an_answer_for_any_device(
        self, driver: DriverUnderTest, devices: tuple[Device, ...], populated: FakeMachine
    ) -> None:
        if not driver.implements("check_device"):
            pytest.skip("it does not check devices")
        there = driver.call("check_device", devices[0].name, device=devices[0])
        _remove(populated, devices[0].entry)
        gone = driver.call("check_device", devices[0].name, device=devices[0])

        assert isinstance(there, Health)
        assert isinstance(gone, Health)

    def _prepare(self, driver: DriverUnderTest, device: Device, hold: Hold) -> None:
        driver.call(
            "prepare_device",
            device.name,
            device=device,
            claim=claim_for(device),
            parameters=driver.parameters(),
            hold=hold,
        )


def _type_of(value: AttributeValue) -> AttributeType:
    return _TYPES[type(value)]


def _takes(node: DeviceNode) -> bool:
    return bool(node.takes) or node.shared or node.absent_ok


def _withheld(listing: Listing) -> set[str]:
    return {withheld.subject for withheld in listing.withheld}


def _fingerprint(root: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.lstat().st_mtime_ns, path.lstat().st_size)
        for path in sorted(root.rglob("*"))
    }


def _remove(machine: FakeMachine, entry: str) -> Path | None:
    """Take a device off the machine: its directory, and the links that led to it."""
    if not entry or not (machine.sys / entry).exists():
        return None
    gone = (machine.sys / entry).resolve()
    shutil.rmtree(gone)
    for link in machine.sys.rglob("*"):
        if link.is_symlink() and not link.exists():
            link.unlink()
    return gone


def _inside(machine: FakeMachine, device: Device, gone: Path) -> bool:
    """Say whether a device hung from what was removed."""
    del machine
    names = {part.name.partition(":")[2] for part in device.parts}
    return gone.name in names or any(gone.name in name for name in names)


def _spoil(path: Path) -> None:
    """Make an attribute exist and be unreadable, for root too."""
    if path.is_file():
        path.unlink()
        path.mkdir()


def _only_meant(act: Callable[[], _T]) -> None:
    """Raise unless it succeeds, or raises one of the two errors that a plugin may raise."""
    try:
        act()
    except (TryAgain, Refuse):
        return


__all__ = ["DriverContract", "DriverUnderTest", "claim_for", "hold_on"]
