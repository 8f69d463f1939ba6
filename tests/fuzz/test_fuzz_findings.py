"""What fuzzing found, each as a sentence about the world; the inputs are in ``findings``."""

from __future__ import annotations

import logging
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import pyudev
from broker_world import World, claim, prepare
from fuzz.target_sysfs import healthy, offered
from fuzz.world import DOMAIN, check_published

from hardpoint._core.ledger.ledger import Ledger
from hardpoint._core.ledger.records import Record
from hardpoint._core.logs import TextFormatter
from hardpoint._core.offer.inventory import Facts, as_offer, build
from hardpoint._core.offer.uevents import _drain, matters
from hardpoint._kube import PAGE, Resource, decode
from hardpoint.attributes import publishable
from hardpoint.cdi_files import CdiDirectory
from hardpoint.errors import (
    BadSettings,
    HoldConflict,
    HoldDenied,
    KubeInvalid,
    KubeUnreachable,
    LedgerDamaged,
    NotAMachine,
)
from hardpoint.kube import Kube, shaped
from hardpoint.model import Capacity, ClaimKey, Delivery, Device, DeviceNode, Offer
from hardpoint.recorded import open_machine
from hardpoint.settings import load
from hardpoint.testing import FakeMachine
from hardpoint_dra.claims import to_claim
from hardpoint_dra.translate import VERSIONS

UID = "33333333-2222-4333-8444-555555555555"

# -- sysfs ----------------------------------------------------------------------------------------


def without(machine: FakeMachine, port: str, spoil: Callable[[Path], object]) -> None:
    """Spoil one USB device; everything else is offered as before."""
    before = {one.name: one for one in offered(machine.node())[0].devices}
    spoil((machine.sys / f"bus/usb/devices/{port}").resolve())

    after = {one.name: one for one in offered(machine.node())[0].devices}

    own = f"usb-{port.replace('.', '-')}-"
    assert {n: o for n, o in after.items() if not n.startswith(own)} == {
        n: o for n, o in before.items() if not n.startswith(own)
    }


def test_a_number_that_only_looks_like_digits_costs_its_own_device(tmp_path: Path) -> None:
    odd = b"MAJOR=188\nMINOR=\xc2\xb2\nDEVNAME=ttyUSB0\n"  # a superscript two
    without(
        healthy(tmp_path), "1-1", lambda at: (at / "1-1:1.0/tty/ttyUSB0/uevent").write_bytes(odd)
    )


def test_a_port_that_makes_the_driver_stumble_costs_that_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hardpoint_usb.ports import read_port as real

    def stumbling(entry: Any, interfaces: Any) -> Any:
        if entry.name == "1-1" and (Path(entry.path) / "stumble").exists():
            raise ValueError("of any kind")
        return real(entry, interfaces)

    monkeypatch.setattr("hardpoint_usb.scan.read_port", stumbling)
    without(healthy(tmp_path), "1-1", lambda at: (at / "stumble").touch())


@pytest.mark.parametrize("how", ["loop", "superscript"])
def test_a_spoilt_list_of_numa_nodes_costs_no_device(tmp_path: Path, how: str) -> None:
    machine = healthy(tmp_path)
    names = [one.name for one in offered(machine.node())[0].devices]
    nodes = machine.sys / "devices/system/node"
    if how == "loop":
        nodes.rename(tmp_path / "aside")
        nodes.symlink_to("node")
    else:
        (nodes / "node²").mkdir()

    assert [one.name for one in offered(machine.node())[0].devices] == names


# -- kernel events --------------------------------------------------------------------------------


class Queued:
    def __init__(self, *events: Any) -> None:
        self._events = list(events)

    def poll(self, timeout: float) -> Any:
        return self._events.pop(0) if self._events else None


def test_an_event_whose_name_is_no_text_is_a_reason_to_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for word, value in {
        "ACTION": "add",
        "DEVPATH": "/devices/virtual/net/x\udcff",
        "SUBSYSTEM": "net",
        "SEQNUM": "1",
    }.items():
        monkeypatch.setenv(word, value)
    event = pyudev.Devices.from_environment(pyudev.Context())
    with pytest.raises(UnicodeDecodeError):
        str(event.device_path)

    assert [matters(one) for one in _drain(Queued(event))] == [True]


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "value"),
    [("RULES", f"[{'1' * 5000}]"), ("NODE_NAME", "a/b"), ("NODE_NAME", "\udcff")],
)
def test_a_variable_that_nobody_can_use_is_refused_by_name(variable: str, value: str) -> None:
    with pytest.raises(BadSettings, match=f"HARDPOINT_{variable}"):
        load(None, {f"HARDPOINT_{variable}": value})


def test_a_path_that_no_system_call_takes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "hardpoint.toml"
    file.write_text('[paths]\nstate = "/a\\u0000b"\n')

    with pytest.raises(BadSettings, match=r"paths\.state.*NUL"):
        load(file, {})


# -- what drivers answer --------------------------------------------------------------------------


async def test_a_device_that_could_not_be_read_again_costs_the_kept_list_only_itself(
    tmp_path: Path,
) -> None:
    good = Device(name="good-0", kind="card")
    odd: Any = {"a": {"no": "attribute"}}
    half = Device(name="half-0", kind="card", entry="bus/usb/devices/\udcff")
    ledger = Ledger(tmp_path)
    try:
        await ledger.keep_listing(
            "cards", [Device(name="odd-0", kind="card", attributes=odd), half, good], ()
        )
        kept = await ledger.listings()
    finally:
        ledger.close()

    assert kept["cards"].devices == (good,)


@pytest.mark.parametrize("amount", ["1e999", "9" * 400, "1E308Ki", "0." + "1" * 500, "1e-999"])
def test_an_amount_of_any_length_is_one_or_is_left_out(amount: str) -> None:
    device = Device(name="odd-0", kind="card", capacity={"memory": Capacity(value=amount)})

    fit, problems = publishable(device, "hardpoint.dev")

    assert bool(fit.capacity) != bool(problems)


def logged(message: str, serial: str = "") -> str:
    try:
        int(serial or "none", 16)
    except ValueError:
        record = logging.LogRecord("x", 40, __file__, 1, message, (), sys.exc_info())
    return TextFormatter("%(message)s").format(record)


def test_a_trace_in_the_log_says_where_and_not_what() -> None:
    said = logged("failed", "SERIAL-1")

    assert "SERIAL-1" not in said
    assert "test_fuzz_findings.py" in said
    assert "ValueError" in said


def test_what_is_logged_is_one_line_and_steers_no_terminal() -> None:
    said = logged("claim=a\nforged line \x1b[2J\u202e")

    assert said.splitlines()[0] == r"claim=a\nforged line \x1b[2J\u202e"


# -- the API server -------------------------------------------------------------------------------

RESULT = {"request": "r", "driver": DOMAIN.dra_driver, "pool": "node-1", "device": "a"}
KEY = ClaimKey(UID, "ns", "claim", DOMAIN.dra_driver)


@pytest.mark.parametrize(
    "devices",
    [
        {"results": [None]},
        {"results": True},
        {"results": [{k: v for k, v in RESULT.items() if k != "device"}]},
        {"results": [{**RESULT, "shareID": {}}]},
        {"results": [{**RESULT, "consumedCapacity": 7}]},
        {"config": [None]},
        {"config": 7},
        {"config": [{"requests": [{}], "opaque": {"driver": DOMAIN.dra_driver}}]},
    ],
)
def test_a_claim_that_is_none_is_denied_by_name(devices: dict[str, Any]) -> None:
    found = {"metadata": {"uid": UID}, "status": {"allocation": {"devices": devices}}}

    with pytest.raises(HoldDenied, match="ns/claim") as denied:
        to_claim(KEY, found, "node-1")
    assert denied.value.reason in ("bad-claim", "bad-parameters")


def test_an_answer_that_is_nested_without_end_is_no_answer() -> None:
    with pytest.raises(KubeUnreachable):
        decode(b'{"a":' * 100_000)


@pytest.mark.parametrize("name", ["a/status", "a?watch=true", "a#b", "%2e%2e", "a b", "x\\y"])
def test_a_name_is_one_step_of_a_path_whatever_it_is(name: str) -> None:
    path = Resource("resource.k8s.io", "v1", "resourceclaims").path("ns", name)

    assert path.startswith("apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/")
    assert not set("?# \\") & set(path)
    assert len(path.split("/")) == 7


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_leads_upwards_is_no_name(name: str) -> None:
    with pytest.raises(KubeInvalid):
        Resource("", "v1", "nodes").path("", name)


async def test_deleting_what_has_no_name_deletes_no_collection() -> None:
    async with Kube.at("http://127.0.0.1:9") as kube:
        with pytest.raises(KubeInvalid):
            await kube.delete(Resource("", "v1", "pods"), "", namespace="ns")


@pytest.mark.parametrize(
    "spoil",
    [
        {"metadata": None},
        {"metadata": {"resourceVersion": "1"}},
        {"metadata": {"name": "s", "ownerReferences": ["x"]}},
        {"metadata": {"name": "s", "ownerReferences": [{"kind": "Node", "name": "n", "uid": {}}]}},
        {"spec": []},
        {"spec": {"driver": "d", "pool": {"generation": None}}},
        {"spec": {"driver": "d", "pool": {}, "devices": [None]}},
        {"spec": {"driver": "d", "pool": {}, "devices": [{"name": "a", "taints": 0.5}]}},
    ],
)
def test_a_stored_slice_that_is_none_is_no_answer(spoil: dict[str, Any]) -> None:
    whole = {"metadata": {"name": "s"}, "spec": {"driver": "d", "pool": {}, "devices": []}}
    for version in VERSIONS.values():
        version.decode(whole)
        with pytest.raises(KubeUnreachable):
            version.decode({**whole, **spoil})


@pytest.mark.parametrize("lacking", ["name", "uid", "resourceVersion"])
def test_a_listed_object_that_nobody_could_delete_is_no_answer(lacking: str) -> None:
    metadata = {"name": "s", "uid": "u", "resourceVersion": "1"}
    listed = {"kind": "ResourceSliceList", "items": [{"metadata": metadata}]}
    shaped(PAGE, listed, "a list")
    del metadata[lacking]

    with pytest.raises(KubeUnreachable):
        shaped(PAGE, listed, "a list")


# -- CDI files ------------------------------------------------------------------------------------


async def rebuilt(root: Path, *names: str) -> tuple[World, list[Device]]:
    """Lose the ledger; return what is held by the names in one CDI file."""
    world = World(root)
    world.card("b", 1)
    node = DeviceNode(path="/dev/b", major=240, minor=1, mode=0o660)
    devices = [(f"{UID}-{name}", Delivery(nodes=(node,))) for name in names]
    CdiDirectory(world.cdi).write("hardpoint.dev", UID, devices)
    async with world.broker() as broker:
        await broker.restore()
        facts = Facts(domain_of=lambda _: DOMAIN, holds=broker.holds())
        check_published(as_offer(build([], facts), Offer(generation=0), complete=True))
        return world, [hold.device for hold in broker.holds()]


async def test_two_names_in_a_cdi_file_that_say_one_thing_stop_no_start(tmp_path: Path) -> None:
    _, held = await rebuilt(tmp_path, "b:r", "b-:r")

    assert [device.name for device in held] == ["b", "b"]


async def test_a_name_in_a_cdi_file_that_no_slice_takes_is_published_as_one_it_takes(
    tmp_path: Path,
) -> None:
    _, held = await rebuilt(tmp_path, "A.b")

    assert [device.name for device in held] == ["A.b"]


# -- the ledger -----------------------------------------------------------------------------------


async def reopened(root: Path, column: str, value: Any) -> tuple[Record, Exception | None]:
    """Write something odd into a hold's row; return its record, and how another claim fares."""
    world = World(root)
    world.card("b", 1)
    async with world.broker() as broker:
        await broker.restore()
        await prepare(broker, claim("uid-b", "b"))
    with closing(sqlite3.connect(world.state / "ledger.db")) as db:
        db.execute(f"UPDATE holds SET {column} = ?", (value,))
        db.commit()
    async with world.broker() as broker:
        await broker.restore()
        [record] = broker._ledger.latest
        try:
            await prepare(broker, claim("uid-new", "b"))
        except HoldConflict as error:
            return record, error
        return record, None


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("device", b"\xff"),
        ("cdi_vendor", b"\xff"),
        ("changed", "never"),
        ("tries", "many"),
        ("device_json", '{"name": "a", "kind": "card", "driver": "cards"}'),
    ],
)
async def test_an_odd_row_keeps_what_it_holds_and_stops_no_start(
    tmp_path: Path, column: str, value: Any
) -> None:
    record, refused = await reopened(tmp_path, column, value)

    assert isinstance(refused, HoldConflict)
    assert isinstance(record.device.name, str)
    assert isinstance(record.cdi_vendor, str)
    assert record.tries + record.changed >= 0


async def test_a_row_that_says_two_devices_is_no_record(tmp_path: Path) -> None:
    other = '{"name": "a", "kind": "card", "driver": "cards"}'
    record, _ = await reopened(tmp_path, "device_json", other)

    assert not record.readable
    assert record.device.name == "b"


def test_a_schema_in_other_digits_is_damage(tmp_path: Path) -> None:
    Ledger(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as db:
        db.execute("UPDATE meta SET value = '²' WHERE key = 'schema'")
        db.commit()

    ledger = Ledger(tmp_path)
    ledger.close()

    assert isinstance(ledger.damage, LedgerDamaged)


@pytest.mark.parametrize(
    ("old", "new"), [(b"tries INTEGER", b"tri\xffs INTEGER"), (b"WHEN EXISTS", b"WHEN exists")]
)
def test_a_ledger_whose_schema_says_another_thing_is_damage(
    tmp_path: Path, old: bytes, new: bytes
) -> None:
    Ledger(tmp_path).close()
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new, 1))

    ledger = Ledger(tmp_path)
    ledger.close()

    assert isinstance(ledger.damage, LedgerDamaged)


@pytest.mark.parametrize("guard", ["TRIGGER owners_alone", "INDEX one_owner"])
def test_a_ledger_without_what_keeps_owners_apart_is_damage(tmp_path: Path, guard: str) -> None:
    Ledger(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as db:
        db.execute(f"DROP {guard}")
        db.commit()

    ledger = Ledger(tmp_path)
    ledger.close()

    assert isinstance(ledger.damage, LedgerDamaged)
    assert guard.split()[1] in str(ledger.damage)


# -- recorded machines ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "table",
    [
        '{"nodes": {"/dev/a": {"type": "char", "major": Infinity, "minor": 0}}}',
        '{"nodes": {"/dev/\\ud800": {"type": "char", "major": 1, "minor": 0}}}',
        '{"nodes": {"/dev/a": {"type": "char", "major": -1, "minor": 0}}}',
        '{"nodes": {}, "links": {"/dev/x": "\\ud800"}}',
    ],
)
def test_a_table_of_what_cannot_be_is_no_machine(tmp_path: Path, table: str) -> None:
    (tmp_path / "sys/bus").mkdir(parents=True)
    (tmp_path / "dev.json").write_text(table)

    with pytest.raises(NotAMachine), open_machine(tmp_path):
        pass


def test_a_refusal_shows_the_path_and_steers_no_terminal(tmp_path: Path) -> None:
    odd = tmp_path / "x\x1b[2J"
    odd.write_bytes(b"")

    with pytest.raises(NotAMachine) as refused, open_machine(odd):
        pass
    assert r"x\x1b[2J" in str(refused.value)
