from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from broker_world import claim
from hypothesis import given
from hypothesis import strategies as st
from ledger_world import take, want

from hardpoint._core.ledger.ledger import Ledger, Record, Result
from hardpoint._core.ledger.schema import connect
from hardpoint.errors import BadValue, HoldConflict, LedgerUnwritable
from hardpoint.model import (
    Delivery,
    Device,
    HoldState,
    Part,
    PreparedDevice,
    Withheld,
    exclusive,
    shared,
)


def result(record: Record) -> Result:
    answer = PreparedDevice(request="r", pool="p", device="a", cdi_ids=("a.dev/device=x",))
    return Result(record, Delivery(env={"A": "b"}), answer, "boot-2")


async def test_a_hold_lives_from_preparing_to_gone(ledger: Ledger, other: Ledger) -> None:
    (record,) = await take(ledger, "u1", want("a", exclusive("x")))
    assert (record.state, record.boot_id, record.undo) == (HoldState.PREPARING, "boot", True)
    (held,) = await ledger.hold([result(record)])
    assert (held.state, held.boot_id, held.delivery) == (
        HoldState.HELD,
        "boot-2",
        Delivery(env={"A": "b"}),
    )
    assert await other.of_claim("u1") == (held,)
    await ledger.release([held])
    assert [r.state for r in await other.read()] == [HoldState.RELEASING]
    await ledger.forget([held])
    assert await other.read() == ()
    assert ledger._reader.query("SELECT * FROM claims") == []
    assert ledger._reader.query("SELECT * FROM owners") == []


async def test_a_conflict_in_the_middle_takes_nothing(ledger: Ledger) -> None:
    await take(ledger, "u1", want("b", exclusive("y")))
    with pytest.raises(HoldConflict, match="ns/claim-u1 holds y"):
        await take(ledger, "u2", want("a", exclusive("x")), want("b", exclusive("y")))
    await take(ledger, "u3", want("a", exclusive("x")))
    assert [r.claim.uid for r in await ledger.read()] == ["u1", "u3"]


@pytest.mark.parametrize(
    ("first", "second", "fits"),
    [
        (exclusive("x"), exclusive("x"), False),
        (exclusive("x"), shared("x"), False),
        (shared("x"), exclusive("x"), False),
        (shared("x"), shared("x"), True),
        (exclusive("x"), exclusive("y"), True),
    ],
)
async def test_the_database_itself_refuses_two_owners(
    ledger: Ledger, other: Ledger, first: Part, second: Part, fits: bool
) -> None:
    """Whatever a program believes: rows are written here past every check of ours."""
    await take(ledger, "u1", want("a", first))
    await take(other, "u2", want("b"))
    rows = {r["uid"]: r["id"] for r in other._reader.query("SELECT id, uid FROM holds")}
    raw = connect(ledger.path)
    statement = "INSERT INTO parts (hold, owner, part, exclusive) VALUES (?, 'u2', ?, ?)"
    try:
        raw.execute(statement, (rows["u2"], second.name, second.exclusive))
    except sqlite3.IntegrityError:
        assert not fits
    else:
        assert fits
    finally:
        raw.close()


async def test_a_shared_part_cannot_become_exclusive_under_another_owner(ledger: Ledger) -> None:
    (one,) = await take(ledger, "u1", want("a", shared("x")))
    await take(ledger, "u2", want("b", shared("x")))
    with pytest.raises(HoldConflict):
        await ledger.widen(one, [exclusive("x")])
    raw = connect(ledger.path)
    with pytest.raises(sqlite3.IntegrityError):
        raw.execute("UPDATE owners SET exclusive = 1 WHERE owner = 'u1'")
    raw.close()
    assert await ledger.contender("u3", [shared("x")]) is None


async def test_parts_of_one_claim_go_with_the_last_hold_that_has_them(ledger: Ledger) -> None:
    one, two = await take(
        ledger, "u1", want("a", exclusive("x")), want("a", exclusive("x"), request="s")
    )
    await ledger.forget([one])
    with pytest.raises(HoldConflict):
        await take(ledger, "u2", want("b", shared("x")))
    await ledger.forget([two])
    await take(ledger, "u2", want("b", shared("x")))


async def test_an_exclusive_hold_that_goes_leaves_its_claims_shared_one(ledger: Ledger) -> None:
    one, _ = await take(
        ledger, "u1", want("a", exclusive("x")), want("b", shared("x"), request="s")
    )
    await ledger.forget([one])
    await take(ledger, "u2", want("c", shared("x")))


async def test_widening_takes_more_and_keeps_what_was_taken(ledger: Ledger) -> None:
    (record,) = await take(ledger, "u1", want("a", exclusive("x"), shared("y")))
    await ledger.widen(record, [exclusive("z"), exclusive("y")])
    for part in ("x", "y", "z"):
        with pytest.raises(HoldConflict):
            await take(ledger, "u2", want("b", shared(part)))


async def test_a_retired_hold_keeps_its_parts_even_from_its_own_claim(ledger: Ledger) -> None:
    (record,) = await take(ledger, "u1", want("a", exclusive("x")))
    await ledger.retire(record, HoldState.QUARANTINED, "stuck")
    with pytest.raises(HoldConflict, match="the quarantine after ns/claim-u1"):
        await take(ledger, "u1", want("a", exclusive("x")))
    (retired,) = await ledger.read()
    assert (retired.retired, retired.why, retired.lock) == (True, "stuck", f"u1/{record.id}")
    await ledger.forget([retired])
    await take(ledger, "u1", want("a", exclusive("x")))


async def test_a_retired_hold_keeps_its_parts_whatever_another_claim_holds_twice(
    ledger: Ledger,
) -> None:
    other = want("b", exclusive("y")), want("b", exclusive("y"), request="s")
    await take(ledger, "u2", *other)
    (record,) = await take(ledger, "u1", want("a", exclusive("x")))
    await ledger.retire(record, HoldState.QUARANTINED, "stuck")
    with pytest.raises(HoldConflict, match="the quarantine after ns/claim-u1"):
        await take(ledger, "u1", want("a", exclusive("x")))


async def test_what_one_sharer_is_made_true_with_again_stays_the_others_too(
    ledger: Ledger,
) -> None:
    (one,) = await take(ledger, "u1", want("a", shared("x")))
    await take(ledger, "u2", want("a", shared("x")))
    await ledger.cover(one, [shared("x")])
    await ledger.forget([one])

    with pytest.raises(HoldConflict, match="claim-u2 holds x"):
        await take(ledger, "u3", want("b", exclusive("x")))


async def test_what_is_no_number_is_a_holds_whatever_its_file_delivers(ledger: Ledger) -> None:
    """A slot is in no file: a hold whose numbers have changed has it still."""
    (one,) = await take(ledger, "u1", want("a", exclusive("slot:0"), exclusive("char:1:1")))
    (two,) = await take(ledger, "u2", want("b"))
    await ledger.hold([result(one)])

    await ledger.cover(two, [exclusive("char:1:1")])
    with pytest.raises(HoldConflict, match="claim-u1 holds slot:0"):
        await ledger.cover(two, [exclusive("slot:0")])


async def test_a_number_that_one_sharer_is_not_delivered_any_more_is_not_taken_from_the_other(
    ledger: Ledger,
) -> None:
    (one,) = await take(ledger, "u1", want("a", shared("char:1:1")))
    await take(ledger, "u2", want("a", shared("char:1:1")))
    (three,) = await take(ledger, "u3", want("b"))
    await ledger.hold([result(one)])

    with pytest.raises(HoldConflict, match="claim-u2"):
        await ledger.cover(three, [exclusive("char:1:1")])


async def test_of_a_hold_that_is_replaced_the_numbers_stay_and_nothing_else(
    ledger: Ledger,
) -> None:
    (old,) = await take(ledger, "u1", want("a", exclusive("slot:1"), exclusive("char:1:1")))
    await ledger.take(claim("u1"), [want("a")], "boot", replaces=[old])

    await take(ledger, "u2", want("b", exclusive("slot:1")))
    with pytest.raises(HoldConflict):
        await take(ledger, "u2", want("c", exclusive("char:1:1")))


async def test_a_part_that_is_named_twice_is_refused_and_nothing_is_taken(
    ledger: Ledger,
) -> None:
    with pytest.raises(HoldConflict):
        await take(ledger, "u1", want("a", exclusive("x"), exclusive("x")))
    assert await ledger.read() == ()


async def test_a_hold_is_taken_again_in_the_moment_the_old_one_goes(ledger: Ledger) -> None:
    (old,) = await take(ledger, "u1", want("a", exclusive("x")))
    (new,) = await ledger.take(claim("u1"), [want("a", exclusive("x"))], "boot", replaces=[old])
    assert new.id != old.id
    with pytest.raises(HoldConflict):
        await ledger.take(claim("u2"), [want("a", exclusive("x"))], "boot", replaces=[])
    assert await ledger.read() == (new,)


async def test_the_same_allotment_twice_is_refused_and_takes_nothing(ledger: Ledger) -> None:
    with pytest.raises(LedgerUnwritable):
        await take(ledger, "u1", want("a", exclusive("x")), want("a", exclusive("x")))
    assert await ledger.read() == ()


# -- remembering ----------------------------------------------------------------------------------


async def test_what_a_driver_remembers_is_on_disk_when_the_call_returns(
    ledger: Ledger, other: Ledger
) -> None:
    (record,) = await take(ledger, "u1", want("a"))
    hold = record.hold(lambda facts: ledger.remember(record, facts))
    await anyio.to_thread.run_sync(lambda: hold.remember(image="fft", size=3))
    assert [r.remembered for r in await other.read()] == [{"image": "fft", "size": 3}]
    hold.remember(image="dct")  # from the loop's own thread, as an async hook does
    assert [r.remembered for r in await other.read()] == [{"image": "dct", "size": 3}]


async def test_what_cannot_be_kept_is_not_remembered(ledger: Ledger) -> None:
    (record,) = await take(ledger, "u1", want("a"))
    hold = record.hold(lambda facts: ledger.remember(record, facts))
    with pytest.raises(BadValue):
        hold.remember(image=object())
    await ledger.forget([record])
    with pytest.raises(LedgerUnwritable, match="has ended"):
        hold.remember(image="fft")
    assert hold.remembered == {}


# -- many at once ---------------------------------------------------------------------------------


async def test_64_claims_at_once_share_commits(ledger: Ledger) -> None:
    commits = 0
    committed = ledger._committer._committed

    def count() -> None:
        nonlocal commits
        commits += 1
        committed()

    ledger._committer._committed = count
    async with anyio.create_task_group() as tasks:
        for number in range(64):
            name = f"d{number}"
            tasks.start_soon(take, ledger, f"u{number}", want(name, exclusive(name)))
    assert len(await ledger.read()) == 64
    assert commits < 16


async def test_one_that_is_refused_costs_the_others_of_its_commit_nothing(ledger: Ledger) -> None:
    refused: list[str] = []

    async def attempt(uid: str) -> None:
        try:
            await take(ledger, uid, want("a", exclusive("x")), want(f"own-{uid}", exclusive(uid)))
        except HoldConflict:
            refused.append(uid)

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(attempt, f"u{number}")
    assert len(refused) == 19
    assert len(await ledger.read()) == 2


async def test_work_that_breaks_the_transaction_costs_only_itself(ledger: Ledger) -> None:
    def breaks(db: sqlite3.Connection) -> None:
        db.execute("SELECT * FROM no_such_table")

    failed: list[Exception] = []

    async def broken() -> None:
        try:
            await ledger._committer.run(breaks)
        except LedgerUnwritable as error:
            failed.append(error)

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(take, ledger, f"u{number}", want(f"d{number}"))
            tasks.start_soon(broken)
    assert (len(failed), len(await ledger.read())) == (10, 10)


async def test_a_connection_that_broke_is_replaced(ledger: Ledger) -> None:
    await take(ledger, "u1", want("a"))
    broken = ledger._committer._connection
    assert broken is not None
    broken.close()
    with pytest.raises(LedgerUnwritable):
        await take(ledger, "u2", want("b"))
    await take(ledger, "u2", want("b"))
    assert len(await ledger.read()) == 2


async def test_a_write_that_was_begun_is_finished_when_its_caller_is_cancelled(
    ledger: Ledger,
) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await take(ledger, "u1", want("a"))
    assert len(await ledger.read()) == 1


async def test_two_agents_write_at_once_and_one_wins(ledger: Ledger, other: Ledger) -> None:
    outcome: list[str] = []

    async def attempt(through: Ledger, uid: str) -> None:
        try:
            await take(through, uid, want("a", exclusive("x")))
            outcome.append("took")
        except HoldConflict:
            outcome.append("refused")

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(attempt, ledger, f"left-{number}")
            tasks.start_soon(attempt, other, f"right-{number}")
    assert sorted(outcome) == [*["refused"] * 19, "took"]
    assert await ledger.read() == await other.read()


async def test_a_watcher_hears_of_its_own_agents_changes(ledger: Ledger) -> None:
    heard: list[int] = []
    ledger.on_change(lambda: heard.append(len(ledger.latest)))
    (record,) = await take(ledger, "u1", want("a"))
    await ledger.forget([record])
    assert heard == [1, 0]
    await ledger.keep_listing("usb", [], [])
    assert heard == [1, 0]


async def test_a_closed_ledger_refuses_and_does_not_hang(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "other")
    await anyio.to_thread.run_sync(ledger.close)
    with pytest.raises(LedgerUnwritable, match="ending"):
        await take(ledger, "u1", want("a"))
    await anyio.to_thread.run_sync(ledger.close)


# -- listings and the audit -----------------------------------------------------------------------


async def test_a_drivers_last_good_list_is_kept_and_written_only_when_it_changes(
    ledger: Ledger, other: Ledger
) -> None:
    device = Device(name="a", kind="k", attributes={"n": 1})
    withheld = Withheld("1-2", "rule", "reason")
    assert await ledger.keep_listing("usb", [device], [withheld])
    assert not await ledger.keep_listing("usb", [device], [withheld])
    kept = (await other.listings())["usb"]
    assert (kept.devices, kept.withheld) == ((device,), (withheld,))
    assert await ledger.keep_listing("usb", [replace(device, name="b")], [])


async def test_a_listing_that_cannot_be_read_costs_no_other(ledger: Ledger) -> None:
    await ledger.keep_listing("usb", [Device(name="a", kind="k")], [])

    def spoil(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO listings VALUES ('pci', '{\"devices\": 3}', 0)")

    await ledger._committer.run(spoil)
    assert list(await ledger.listings()) == ["usb"]


async def test_what_operators_do_is_written_down(ledger: Ledger) -> None:
    await ledger.audit("anna", "holds forget", {"uid": "u1"})
    (entry,) = await ledger.audits()
    assert (entry.who, entry.what, entry.facts) == ("anna", "holds forget", {"uid": "u1"})


# -- against a model ------------------------------------------------------------------------------

moves = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "forget", "retire", "widen"]),
        st.sampled_from(["u1", "u2", "u3"]),
        st.lists(st.builds(Part, st.sampled_from(["x", "y", "z"]), st.booleans()), max_size=2).map(
            tuple
        ),
    ),
    max_size=12,
)


@given(moves)
def test_no_sequence_of_moves_makes_two_owners_or_loses_a_part(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, tuple[Part, ...]]]
) -> None:
    anyio.run(_play, tmp_path_factory.mktemp("state"), steps)


async def _play(state: Path, steps: list[tuple[str, str, tuple[Part, ...]]]) -> None:
    ledger = Ledger(state)
    model: dict[int, tuple[str, dict[str, bool]]] = {}
    try:
        for number, (move, uid, parts) in enumerate(steps):
            await _move(ledger, model, number, move, uid, parts)
            rows = ledger._reader.query("SELECT part, owner, exclusive FROM owners")
            found = {(r["part"], r["owner"]): bool(r["exclusive"]) for r in rows}
            assert found == _owners(model)
    finally:
        ledger.close()


async def _move(ledger: Ledger, model: Any, number: int, move: str, uid: str, parts: Any) -> None:
    wanted: dict[str, bool] = {}
    for part in parts:
        wanted[part.name] = wanted.get(part.name, False) or part.exclusive
    merged = [Part(name, alone) for name, alone in wanted.items()]
    mine = [r for r in await ledger.read() if r.claim.uid == uid and not r.retired]
    try:
        if move == "take":
            (record,) = await take(ledger, uid, want(f"d{number}", *merged))
            model[record.id] = (uid, wanted)
        elif mine and move == "forget":
            await ledger.forget(mine[:1])
            del model[mine[0].id]
        elif mine and move == "widen":
            await ledger.widen(mine[0], parts)
            had = model[mine[0].id][1]
            for name, alone in wanted.items():
                had[name] = had.get(name, False) or alone
        elif mine and move == "retire":
            await ledger.retire(mine[0], HoldState.RELEASING)
            rows = ledger._reader.query("SELECT owner FROM holds WHERE id = ?", mine[0].id)
            model[mine[0].id] = (rows[0]["owner"], model[mine[0].id][1])
    except HoldConflict:
        owned = _owners(model)
        assert any(
            name in wanted and owner != uid and (alone or wanted[name])
            for (name, owner), alone in owned.items()
        )


def _owners(model: dict[int, tuple[str, dict[str, bool]]]) -> dict[tuple[str, str], bool]:
    found: dict[tuple[str, str], bool] = {}
    for owner, parts in model.values():
        for name, alone in parts.items():
            found[name, owner] = found.get((name, owner), False) or alone
    return found
