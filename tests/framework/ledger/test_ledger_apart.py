"""What is written of one hold, claim or driver changes nothing of another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from broker_world import claim
from ledger_world import take, want

from hardpoint._core.ledger.grantrows import KnownRelease, Meant, keep_release
from hardpoint._core.ledger.ledger import Ledger
from hardpoint._core.ledger.records import Found
from hardpoint.errors import HoldConflict, HoldDenied
from hardpoint.grants import Grant, GrantedDevice
from hardpoint.model import Delivery, Device, HoldState, Withheld, exclusive


async def test_numbers_of_another_boot_are_given_back_and_those_of_this_one_kept(
    ledger: Ledger,
) -> None:
    await ledger.take(claim("u1"), [want("a", exclusive("char:1:1"))], "boot-1")
    await ledger.take(claim("u2"), [want("b", exclusive("char:2:2"))], "boot-2")
    await ledger.drop_numbers("boot-2")

    await ledger.take(claim("u3"), [want("c", exclusive("char:1:1"))], "boot-2")
    with pytest.raises(HoldConflict, match="claim-u2 holds char:2:2"):
        await ledger.take(claim("u3"), [want("d", exclusive("char:2:2"))], "boot-2")


async def test_nothing_is_taken_of_what_is_being_released(ledger: Ledger) -> None:
    """Asked again in the transaction: the offer that the claim was admitted by is older."""
    (old,) = await take(ledger, "u1", want("b"))
    ending = KnownRelease(
        id="r1",
        grant=Grant(allocation="a1", devices=(GrantedDevice(name="a"),), source="policy/s"),
        devices=(Meant("hardpoint.dev", Device(name="a", kind="k")),),
        since=1.0,
    )
    await ledger.write(lambda db: keep_release(db, ending))

    with pytest.raises(HoldDenied):
        await ledger.take(claim("u1"), [want("a")], "boot", replaces=[old])
    assert await ledger.read() == (old,)


async def test_a_hold_that_is_found_again_changes_no_other(ledger: Ledger, other: Ledger) -> None:
    (preparing,) = await take(ledger, "u1", want("a"))
    await ledger.adopt([Found(claim("u2").key, want("b"), Delivery(env={"A": "b"}))], "boot")

    left, found = await other.read()
    assert (found.claim.uid, found.device.name) == ("u2", "b")
    assert (found.state, found.rebuilt, found.delivery) == (
        HoldState.HELD,
        True,
        Delivery(env={"A": "b"}),
    )
    assert left == preparing


async def test_holds_that_are_found_together_are_written_down_together_or_not_at_all(
    ledger: Ledger, other: Ledger
) -> None:
    taken = exclusive("p")
    (before,) = await take(ledger, "u1", want("a", taken))
    found = [Found(claim("u2").key, want(*one), Delivery()) for one in (("b",), ("c", taken))]

    with pytest.raises(HoldConflict, match="device c is in use"):
        await ledger.adopt(found, "boot")

    assert await other.read() == (before,)


async def test_a_claim_that_is_named_names_no_other(ledger: Ledger, other: Ledger) -> None:
    named = replace(claim("u1").key, name="", namespace="")
    same_uid, another = replace(named, dra_driver="other.dev"), replace(named, uid="u2")
    for key in (named, same_uid, another):
        await ledger.adopt([Found(key, want("a"), Delivery())], "boot")
    before = {record.claim: record for record in await other.read()}
    known = replace(named, name="cam", namespace="media")
    await ledger.name_claim(known)

    names = await other.query("SELECT uid, dra_driver, name FROM claims WHERE name <> ''")
    assert [tuple(row) for row in names] == [("u1", "hardpoint.dev", "cam")]
    after = {record.claim: record for record in await other.read()}
    assert after.keys() == {known, same_uid, another}
    assert (after[same_uid], after[another]) == (before[same_uid], before[another])
    assert after[known].rev != before[named].rev, "others read again what was written again"


async def test_a_ledger_that_was_rebuilt_is_so_for_everybody(
    ledger: Ledger, tmp_path: Path
) -> None:
    assert ledger.rebuilding
    await ledger.rebuilt()
    later = Ledger(tmp_path / "state")
    later.close()
    assert (ledger.rebuilding, later.rebuilding) == (False, False)


async def test_of_two_drivers_that_list_the_same_both_lists_are_kept(ledger: Ledger) -> None:
    assert await ledger.keep_listing("usb", [], [])
    assert await ledger.keep_listing("pci", [], [])
    assert set(await ledger.listings()) == {"usb", "pci"}


@pytest.mark.parametrize("strange", [5, "\ud800"])
async def test_what_could_not_be_read_again_costs_the_rest_of_a_listing_nothing(
    ledger: Ledger, strange: Any
) -> None:
    device, withheld = Device(name="a", kind="k"), Withheld("1-2", "rule", "reason")
    devices = [replace(device, name="b", kind=strange), device]
    await ledger.keep_listing("usb", devices, [replace(withheld, reason=strange), withheld])

    kept = (await ledger.listings())["usb"]
    assert (kept.devices, kept.withheld) == ((device,), (withheld,))


async def test_what_was_written_is_asked_for_as_it_is_on_disk(
    ledger: Ledger, other: Ledger
) -> None:
    await take(ledger, "u1", want("a"))
    await take(ledger, "u2", want("b"))
    (row,) = await other.query("SELECT device FROM holds WHERE uid = ?", "u2")
    assert row["device"] == "b"


async def test_reading_waits_for_no_thread_of_anybody_else(ledger: Ledger) -> None:
    """A driver that hangs keeps a thread for as long as it does."""
    threads = anyio.to_thread.current_default_thread_limiter()
    threads.total_tokens = 1
    async with threads:
        with anyio.fail_after(5):
            assert await ledger.read() == ()
