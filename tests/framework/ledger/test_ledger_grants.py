"""What the ledger says of grants and releases, and what it lets nobody take."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from broker_world import claim

from hardpoint._core.ledger.grantrows import (
    INDEX,
    READ,
    Book,
    DeviceKey,
    KnownGrant,
    KnownRelease,
    Meant,
    blocking,
    book_of,
    end_release,
    forget_grant,
    forget_release,
    holders,
    keep_grant,
    keep_release,
    refuse_ungranted,
    withdraw,
    without,
)
from hardpoint._core.ledger.ledger import Ledger, Want
from hardpoint._core.ledger.rows import open_claim, open_hold
from hardpoint._core.ledger.schema import connect
from hardpoint.errors import HoldDenied
from hardpoint.grants import Grant, GrantedDevice, GrantOutcome, Outcome
from hardpoint.model import Allotment, Claim, ClaimKey, Device

DRIVER, OTHER = "hardpoint.dev", "other.dev"
IN_FORCE = GrantOutcome(Outcome.IN_FORCE)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    ledger = Ledger(tmp_path / "state")
    opened = connect(ledger.path)
    yield opened
    opened.close()
    ledger.close()


def meant(name: str, driver: str = DRIVER) -> Meant:
    return Meant(driver, Device(name=name, kind="radio"))


def grant(allocation: str, *names: str, source: str = "policy/source") -> Grant:
    named = tuple(GrantedDevice(name=name, uuid=f"U-{name}") for name in names)
    return Grant(allocation=allocation, devices=named, source=source)


def known(allocation: str, *devices: Meant, source: str = "policy/source") -> KnownGrant:
    stated = grant(allocation, *(one.device.name for one in devices), source=source)
    return KnownGrant(grant=stated, devices=devices, outcome=IN_FORCE, since=5.0)


def release(id_: str, allocation: str, *devices: Meant, source: str = "policy/s") -> KnownRelease:
    stated = grant(allocation, source=source)
    return KnownRelease(id=id_, grant=stated, devices=devices, since=7.0)


def book(db: sqlite3.Connection) -> Book:
    return book_of(db.execute(READ))


def wanted(allotment: Allotment) -> Want:
    return Want(
        allotment=allotment,
        device=Device(name=allotment.device, kind="radio"),
        cdi_vendor="v",
        cdi_name="n",
        parts=(),
        undo=True,
    )


def hold(
    db: sqlite3.Connection, uid: str, device: str, allocation: str = "", driver: str = DRIVER
) -> None:
    key = ClaimKey(uid, "ns", uid, driver)
    open_claim(db, key, "", 1.0)
    allotment = Allotment(request="r", device=device, pool="p", allocation=allocation)
    open_hold(db, key, wanted(allotment), "boot", 1.0)


# -- written and read again -----------------------------------------------------------------------


def test_what_is_written_down_is_read_again_as_it_was(db: sqlite3.Connection) -> None:
    grants = (
        known("a-1", meant("radio0"), meant("radio1", OTHER)),
        replace(known("a-2"), outcome=GrantOutcome(Outcome.OVERLAP, "taken"), told=True, since=2.5),
    )
    releases = (
        release("r-1", "a-3", meant("radio2")),
        replace(release("r-2", ""), report=False, over=True, since=1.5),
    )
    for one in grants:
        keep_grant(db, one)
    for other in releases:
        keep_release(db, other)
    withdraw(db, "service")

    found = book(db)

    assert sorted(found.grants, key=lambda one: one.key) == list(grants)
    assert sorted(found.releases, key=lambda one: one.id) == list(releases)
    assert (found.withdrawn, found.unreadable) == ("service", ())


def test_a_release_is_called_by_its_allocation_and_one_of_none_by_what_it_is_of() -> None:
    assert release("r-1", "a-1").word == "a-1"
    assert release("r-2", "", source="drain").word == "drain"


def test_an_empty_ledger_has_neither_grants_nor_releases(db: sqlite3.Connection) -> None:
    assert book(db) == Book()


def test_a_row_that_cannot_be_read_costs_no_other_and_is_said(db: sqlite3.Connection) -> None:
    for name in ("json", "outcome", "since", "good"):
        keep_grant(db, known(name, meant(name)))
    for id_ in ("r-json", "r-since", "r-good"):
        keep_release(db, release(id_, "a", meant(id_)))
    db.execute("UPDATE grants SET grant_json = '{' WHERE allocation = 'json'")
    db.execute("UPDATE grants SET outcome = 'well' WHERE allocation = 'outcome'")
    db.execute("UPDATE grants SET since = 'soon' WHERE allocation = 'since'")
    db.execute("UPDATE releases SET devices_json = '7' WHERE id = 'r-json'")
    db.execute("UPDATE releases SET since = 'soon' WHERE id = 'r-since'")

    found = book(db)

    assert [one.grant.allocation for one in found.grants] == ["good"]
    assert [one.id for one in found.releases] == ["r-good"]
    assert sorted(one.partition(":")[0] for one in found.unreadable) == [
        "grant json",
        "grant outcome",
        "grant since",
        "release r-json",
        "release r-since",
    ]


def test_the_devices_of_rows_that_cannot_be_read_are_known_and_no_others(
    db: sqlite3.Connection,
) -> None:
    for name in ("bad", "good"):
        keep_grant(db, known(name, meant(f"granted-{name}")))
        keep_release(db, release(f"r-{name}", name, meant(f"released-{name}")))
    db.execute("UPDATE grants SET grant_json = '{' WHERE allocation = 'bad'")
    db.execute("UPDATE releases SET grant_json = '{' WHERE allocation = 'bad'")

    found = blocking(book(db), db.execute(INDEX))

    assert found.blocked == {
        DeviceKey(DRIVER, "granted-bad"): ("policy/source", "bad"),
        DeviceKey(DRIVER, "released-bad"): ("", ""),
    }


def test_a_row_of_a_damaged_file_that_lacks_its_date_is_said_to_be_unreadable(
    db: sqlite3.Connection,
) -> None:
    keep_grant(db, known("a-1", meant("radio0")))
    columns = "what, source, id, allocation, grant_json, devices_json, outcome, reason, flag, over"

    found = book_of(db.execute(f"SELECT {columns}, NULL AS since FROM ({READ})"))

    assert found.grants == ()
    assert len(found.unreadable) == 1


def test_what_is_written_anew_takes_the_place_of_what_was(db: sqlite3.Connection) -> None:
    keep_grant(db, known("a-1", meant("radio0"), meant("radio1")))
    keep_grant(db, known("a-1", meant("radio1")))
    keep_release(db, release("r-1", "a-2", meant("radio2"), meant("radio3")))
    keep_release(db, release("r-1", "a-2", meant("radio3")))

    assert [one.devices for one in book(db).grants] == [(meant("radio1"),)]
    assert [one.devices for one in book(db).releases] == [(meant("radio3"),)]
    refuse_ungranted(db, *taking("radio1", "a-1"))
    refuse_ungranted(db, *taking("radio2"))
    with pytest.raises(HoldDenied):
        refuse_ungranted(db, *taking("radio0", "a-1"))


def test_a_device_that_is_named_twice_is_granted_and_released_once(db: sqlite3.Connection) -> None:
    keep_grant(db, known("a-1", meant("radio0"), meant("radio0")))
    keep_release(db, release("r-1", "a-2", meant("radio1"), meant("radio1")))

    refuse_ungranted(db, *taking("radio0", "a-1"))
    with pytest.raises(HoldDenied):
        refuse_ungranted(db, *taking("radio1"))


def test_a_grant_is_forgotten_without_those_that_share_half_of_its_name(
    db: sqlite3.Connection,
) -> None:
    names = [("policy/s", "a-1"), ("policy/s", "a-2"), ("policy/t", "a-1")]
    for source, allocation in names:
        keep_grant(db, known(allocation, meant("radio0"), source=source))

    forget_grant(db, ("policy/s", "a-1"))

    assert sorted(one.key for one in book(db).grants) == names[1:]
    refuse_ungranted(db, *taking("radio0", "a-2"))
    refuse_ungranted(db, *taking("radio0", "a-1"))
    forget_grant(db, ("policy/t", "a-1"))
    refuse_ungranted(db, *taking("radio0", "a-2"))
    with pytest.raises(HoldDenied):
        refuse_ungranted(db, *taking("radio0", "a-1"))


def test_a_release_is_forgotten_alone(db: sqlite3.Connection) -> None:
    keep_release(db, release("r-1", "a-1", meant("radio0")))
    keep_release(db, release("r-2", "a-2", meant("radio1")))

    forget_release(db, "r-1")

    assert [one.id for one in book(db).releases] == ["r-2"]
    refuse_ungranted(db, *taking("radio0"))
    with pytest.raises(HoldDenied, match="not released from allocation a-2 yet"):
        refuse_ungranted(db, *taking("radio1"))


def test_a_node_is_withdrawn_for_the_last_reason_and_nothing_else_is_forgotten_with_it(
    db: sqlite3.Connection,
) -> None:
    before = list(map(tuple, db.execute("SELECT * FROM meta ORDER BY key")))
    withdraw(db, "service")
    withdraw(db, "scrap")
    assert book(db).withdrawn == "scrap"

    withdraw(db, "")

    assert book(db).withdrawn == ""
    assert before
    assert list(map(tuple, db.execute("SELECT * FROM meta ORDER BY key"))) == before


def test_a_release_without_some_of_its_devices_has_the_others(db: sqlite3.Connection) -> None:
    both = release("r-1", "a-1", meant("radio0"), meant("radio1"))

    assert without(both, [meant("radio0").key]).devices == (meant("radio1"),)
    assert without(both, [DeviceKey(OTHER, "radio0")]) == both


# -- what nobody may take -------------------------------------------------------------------------


def taking(device: str, allocation: str = "", driver: str = DRIVER) -> tuple[Claim, list[Want]]:
    allotment = Allotment(request="r", device=device, pool="p", allocation=allocation)
    asked = claim("u-new", device)
    asked = replace(asked, key=replace(asked.key, dra_driver=driver))
    return asked, [wanted(allotment)]


def test_nothing_is_taken_on_a_node_that_is_handed_back(db: sqlite3.Connection) -> None:
    refuse_ungranted(db, *taking("radio0"))
    withdraw(db, "service")

    with pytest.raises(HoldDenied, match="service") as denied:
        refuse_ungranted(db, *taking("radio0"))
    assert denied.value.reason == "withdrawn"
    refuse_ungranted(db, taking("radio0")[0], [])


def test_what_is_granted_is_taken_under_its_own_allocation_and_driver(
    db: sqlite3.Connection,
) -> None:
    keep_grant(db, known("a-1", meant("radio0")))
    keep_grant(db, known("a-2", meant("radio1")))

    refuse_ungranted(db, *taking("radio0", "a-1"))
    for device, allocation, driver in [
        ("radio0", "a-2", DRIVER),
        ("radio1", "a-1", DRIVER),
        ("radio0", "a-1", OTHER),
    ]:
        with pytest.raises(HoldDenied) as denied:
            refuse_ungranted(db, *taking(device, allocation, driver))
        assert denied.value.reason == "revoked"


def test_what_is_being_released_is_taken_by_nobody_also_not_under_a_grant(
    db: sqlite3.Connection,
) -> None:
    keep_grant(db, known("a-2", meant("radio0")))
    keep_release(db, release("r-1", "a-1", meant("radio0")))

    for allocation in ("", "a-2"):
        with pytest.raises(HoldDenied) as denied:
            refuse_ungranted(db, *taking("radio0", allocation))
        assert denied.value.reason == "releasing"
    refuse_ungranted(db, *taking("radio0", driver=OTHER))
    refuse_ungranted(db, *taking("radio1"))


def test_of_two_devices_one_that_is_being_released_costs_the_claim(db: sqlite3.Connection) -> None:
    keep_release(db, release("r-1", "a-1", meant("radio1")))
    asked, first = taking("radio0")

    with pytest.raises(HoldDenied):
        refuse_ungranted(db, asked, [*first, *taking("radio1")[1]])


# -- the end of a release -------------------------------------------------------------------------


def test_a_release_ends_once_and_alone(db: sqlite3.Connection) -> None:
    one, two = release("r-1", "a-1", meant("radio0")), release("r-2", "a-2", meant("radio1"))
    keep_release(db, one)
    keep_release(db, two)

    assert end_release(db, one)

    assert {r.id: r.over for r in book(db).releases} == {"r-1": True, "r-2": False}


def test_a_release_that_nobody_wrote_down_does_not_end(db: sqlite3.Connection) -> None:
    keep_release(db, release("r-2", "a-2", meant("radio1")))

    assert not end_release(db, release("r-1", "a-1", meant("radio0")))
    assert [one.over for one in book(db).releases] == [False]


@pytest.mark.parametrize(
    "change",
    [
        {"devices": (meant("radio0"), meant("radio1"))},
        {"report": False},
        {"over": True},
        {"id": "r-2"},
    ],
    ids=str,
)
def test_a_release_that_is_another_by_now_does_not_end(
    db: sqlite3.Connection, change: dict[str, Any]
) -> None:
    found = release("r-1", "a-1", meant("radio0"))
    now = replace(found, **change)
    keep_release(db, now)

    assert not end_release(db, found)
    assert book(db).releases == (now,)


@pytest.mark.parametrize("allocation", ["a-1", ""])
def test_a_release_does_not_end_while_one_of_its_devices_is_held(
    db: sqlite3.Connection, allocation: str
) -> None:
    one = release("r-1", "a-1", meant("radio0"), meant("radio1"))
    keep_release(db, one)
    hold(db, "u-1", "radio1", allocation)

    assert not end_release(db, one)
    assert [known.over for known in book(db).releases] == [False]


def test_what_others_hold_keeps_no_release(db: sqlite3.Connection) -> None:
    one = release("r-1", "a-1", meant("radio0"))
    keep_release(db, one)
    hold(db, "u-1", "radio1", "a-1")
    hold(db, "u-2", "radio0", "a-1", OTHER)
    hold(db, "u-3", "radio0", "a-2")

    assert end_release(db, one)


def test_a_drain_waits_for_holds_under_every_allocation(db: sqlite3.Connection) -> None:
    drain = release("drain", "", meant("radio0"), source="drain")
    keep_release(db, drain)
    hold(db, "u-1", "radio0", "a-2")

    assert holders(db, meant("radio0").key, "") == ["u-1"]
    assert not end_release(db, drain)


def test_a_hold_that_cannot_be_read_may_be_under_any_allocation(db: sqlite3.Connection) -> None:
    hold(db, "u-1", "radio0", "a-2")
    db.execute("UPDATE holds SET allotment_json = '{'")

    assert holders(db, meant("radio0").key, "a-1") == ["u-1"]


# -- as policies see it ---------------------------------------------------------------------------


def test_a_release_is_told_with_its_devices_and_their_drivers() -> None:
    one = release("r-1", "a-1", meant("radio0"), meant("radio1", OTHER))
    told = one.release(left=3.0)

    assert one.key == ("policy/s", "a-1")
    assert one.keys == {DeviceKey(DRIVER, "radio0"), DeviceKey(OTHER, "radio1")}
    assert (told.id, told.allocation, told.source) == ("r-1", "a-1", "policy/s")
    assert told.names == ("radio0", "radio1")
    assert told.dra_drivers == (DRIVER, OTHER)
    assert (told.since, told.left) == (7.0, 3.0)
