"""What is in doubt after a ledger was lost, and until when."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hardpoint._core.grants.conditions import Conditions
from hardpoint._core.grants.grantplan import Stated
from hardpoint._core.grants.lost import Lost, open_ledger
from hardpoint._core.ledger.grantrows import Book, DeviceKey, KnownGrant, Meant
from hardpoint.errors import LedgerUnwritable
from hardpoint.grants import Grant, GrantedDevice, GrantOutcome, Outcome
from hardpoint.model import Device

SOURCE, OTHER = "policy/source", "policy/other"
IN_FORCE = GrantOutcome(Outcome.IN_FORCE)


def device(name: str, kind: str = "radio") -> Meant:
    return Meant("hardpoint.dev", Device(name=name, kind=kind))


R0, R1, CARD = device("radio0"), device("radio1"), device("card0", kind="gpu")


def grant(allocation: str, *devices: Meant) -> Grant:
    named = tuple(GrantedDevice(name=one.device.name) for one in devices)
    return Grant(allocation=allocation, devices=named, source=SOURCE)


def book(*grants: tuple[str, Meant]) -> Book:
    return Book(
        tuple(
            KnownGrant(grant=grant(allocation, one), devices=(one,), outcome=IN_FORCE)
            for allocation, one in grants
        )
    )


def says(*grants: Grant, source: str = SOURCE) -> Stated:
    return Stated(source=source, kinds=("radio",), grants=grants)


def silent(source: str = SOURCE) -> Stated:
    return Stated(source=source, kinds=("radio",), grants=None)


class After:
    """A state directory whose ledger was lost, and who looks at it."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.changes = 0
        self.conditions = Conditions(self._changed)
        self.lost = Lost(state, self.conditions)

    def _changed(self) -> None:
        self.changes += 1

    def mark(self, content: Any) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        self.lost.path.write_text(text)

    def said(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.lost.path.read_bytes())
        return found

    async def keys(
        self, known: Book, *stated: Stated, complete: bool = True, devices: tuple[Meant, ...] = ()
    ) -> set[str]:
        found = await self.lost.keys(
            known,
            devices or (R0, R1, CARD),
            {one.source: one for one in stated},
            complete=complete,
        )
        assert all(key.dra_driver == "hardpoint.dev" for key in found)
        return {key.name for key in found}


@pytest.fixture
def after(tmp_path: Path) -> After:
    return After(tmp_path)


FACTS = {"at": 50.0, "error": "malformed", "aside": "ledger.db.damaged", "live": []}


# -- whether it was lost --------------------------------------------------------------------------


async def test_without_a_marker_nothing_is_in_doubt(after: After) -> None:
    await after.lost.begin(say=True)

    assert not after.lost.lost
    assert await after.keys(Book(), says()) == set()
    assert after.lost.release() is None
    assert not await after.lost.look()
    assert after.conditions.all == ()


async def test_a_marker_is_said_by_who_writes_and_by_nobody_else(after: After) -> None:
    after.mark(FACTS)
    await after.lost.begin(say=False)
    assert (after.lost.lost, after.conditions.all) == (True, ())

    await after.lost.begin(say=True)
    (condition,) = after.conditions.all
    assert condition.type == "ReleasesUnreadable"
    assert str(after.lost.path) in condition.message


async def test_a_marker_that_cannot_be_opened_says_that_releases_were_lost(after: After) -> None:
    after.lost.path.mkdir()
    await after.lost.begin(say=True)

    assert await after.keys(Book(), says()) == {"radio0", "radio1"}
    first = after.lost.release()
    await after.keys(Book(), says())
    assert after.lost.release() == first, "its date stays"


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, _sparse, lambda path: path.symlink_to("/dev/zero"), lambda path: path.touch()],
    ids=("a pipe", "huge", "a link without an end", "empty"),
)
async def test_whatever_the_marker_is_it_says_that_releases_were_lost_and_hangs_nobody(
    after: After, make: Callable[[Path], Any]
) -> None:
    make(after.lost.path)
    await after.lost.begin(say=True)

    assert await after.keys(Book(), says()) == {"radio0", "radio1"}
    await after.lost.clear()
    assert not os.path.lexists(after.lost.path)


async def test_a_marker_of_a_release_before_names_no_sources(after: After) -> None:
    after.mark({"at": 50.0, "live": None})
    await after.lost.begin(say=True)

    await after.keys(Book(), says())

    found = after.lost.release()
    assert found is not None
    assert found.since == 50.0


async def test_a_marker_is_written_when_there_is_something_new_to_say(marked: After) -> None:
    await marked.keys(Book(), says())
    before = marked.lost.path.stat().st_ino
    await marked.keys(Book(), says())

    assert marked.lost.path.stat().st_ino == before


async def test_nothing_is_in_doubt_before_it_was_looked(after: After) -> None:
    assert not after.lost.lost
    assert after.lost.release() is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "7",
        '{"live": 7}',
        '{"at": "soon"}',
        '{"at": []}',
        '{"at": NaN}',
        '{"at": 1e999}',
        "{}",
        "[" * 100_000,
        "\0" * 64,
    ],
    ids=[
        "empty",
        "half",
        "list",
        "number",
        "live",
        "text",
        "at",
        "nan",
        "late",
        "nothing",
        "deep",
        "nuls",
    ],
)
async def test_a_marker_that_says_nothing_says_that_releases_were_lost(
    after: After, content: str
) -> None:
    after.mark(content)
    await after.lost.begin(say=True)

    assert await after.keys(Book(), says()) == {"radio0", "radio1"}
    found = after.lost.release()
    assert found is not None
    assert found.since > 1e9, "since now: nobody knows since when"


async def test_a_release_of_what_was_lost_is_as_old_as_the_loss_and_told_to_nobody(
    after: After,
) -> None:
    after.mark(FACTS)
    await after.lost.begin(say=True)
    await after.keys(Book(), says())

    found = after.lost.release()
    assert found is not None
    assert (found.id, found.grant.source, found.grant.allocation) == ("lost", "lost", "")
    assert (found.devices, found.since, found.report, found.over) == ((R0, R1), 50.0, False, False)


# -- what is in doubt -----------------------------------------------------------------------------


@pytest.fixture
async def marked(after: After) -> After:
    after.mark(FACTS)
    await after.lost.begin(say=True)
    return after


async def test_what_a_source_grants_when_it_is_first_asked_is_in_doubt_no_more(
    marked: After,
) -> None:
    stated = says(grant("a-1", R0))

    assert await marked.keys(Book(), stated) == set(), "it is not written down yet"
    assert marked.lost.release() is None
    assert await marked.keys(book(("a-1", R0)), stated) == {"radio1"}
    assert marked.said()["live"] == [SOURCE]


async def test_what_is_granted_later_stays_in_doubt(marked: After) -> None:
    await marked.keys(Book(), says())

    assert await marked.keys(Book(), says(grant("a-1", R0))) == {"radio0", "radio1"}


async def test_a_source_that_cannot_be_asked_leaves_all_open(marked: After) -> None:
    assert await marked.keys(Book(), silent()) == set()
    assert marked.lost.release() is None
    assert marked.said()["live"] == []


async def test_what_two_sources_govern_is_in_doubt_once_both_have_said(marked: After) -> None:
    assert await marked.keys(Book(), says(), silent(OTHER)) == set()
    assert await marked.keys(Book(), says(), says(source=OTHER)) == {"radio0", "radio1"}
    assert marked.said()["live"] == [OTHER, SOURCE]


async def test_of_two_sources_one_that_is_not_written_down_yet_keeps_both_open(
    marked: After,
) -> None:
    other = Stated(source=OTHER, kinds=("gpu",), grants=())

    assert await marked.keys(Book(), says(grant("a-1", R0)), other) == set()
    assert await marked.keys(book(("a-1", R0)), says(grant("a-1", R0)), other) == {
        "card0",
        "radio1",
    }


async def test_nothing_is_over_before_every_driver_has_said_what_it_has(marked: After) -> None:
    assert await marked.keys(Book(), says(), complete=False) == {"radio0", "radio1"}
    assert marked.lost.release() is None
    await marked.keys(Book(), says(), complete=True)
    assert marked.lost.release() is not None


async def test_the_next_process_knows_which_sources_were_asked(marked: After) -> None:
    await marked.keys(Book(), says())
    assert marked.said() == {**FACTS, "live": [SOURCE]}
    next_one = After(marked.state)
    await next_one.lost.begin(say=True)

    stated = says(grant("a-1", R0))
    assert await next_one.keys(Book(), stated) == {"radio0", "radio1"}


async def test_the_next_process_knows_nothing_to_be_over_before_it_has_looked(after: After) -> None:
    after.mark({**FACTS, "live": [SOURCE]})
    await after.lost.begin(say=True)

    assert after.lost.release() is None


async def test_what_the_other_of_two_agents_has_asked_is_known(marked: After) -> None:
    marked.mark({**FACTS, "live": [SOURCE]})

    assert await marked.keys(Book(), says(grant("a-1", R0))) == {"radio0", "radio1"}


async def test_a_marker_that_cannot_be_written_costs_nothing_else(marked: After) -> None:
    marked.mark("[]")

    assert await marked.keys(Book(), says()) == {"radio0", "radio1"}
    assert marked.lost.path.read_text() == "[]"


# -- its end --------------------------------------------------------------------------------------


async def ends_by_evidence(after: After) -> None:
    await after.lost.clear()


async def ends_by_an_operator(after: After) -> None:
    assert not await after.lost.look()
    after.lost.path.unlink()
    assert await after.lost.look()


@pytest.mark.parametrize("end", [ends_by_evidence, ends_by_an_operator])
async def test_it_is_over_for_this_process_and_the_next(
    marked: After, end: Callable[..., Any]
) -> None:
    await marked.keys(Book(), says())

    await end(marked)

    assert marked.lost.release() is None
    assert await marked.keys(Book(), says()) == set()
    assert marked.conditions.all == ()
    assert not marked.lost.path.exists()
    again = After(marked.state)
    await again.lost.begin(say=True)
    assert not again.lost.lost


async def test_a_marker_that_is_gone_already_may_be_cleared(marked: After) -> None:
    marked.lost.path.unlink()

    await marked.lost.clear()

    assert not marked.lost.lost


# -- the ledger -----------------------------------------------------------------------------------


def test_a_new_node_has_lost_nothing(tmp_path: Path) -> None:
    open_ledger(tmp_path).close()

    assert not (tmp_path / "releases.unreadable").exists()


def test_a_ledger_that_was_removed_is_one_that_was_lost(tmp_path: Path) -> None:
    (tmp_path / "writer.lock").touch()

    open_ledger(tmp_path).close()

    marker = tmp_path / "releases.unreadable"
    said = json.loads(marker.read_text())
    assert (said["error"], said["aside"], said["live"]) == ("the ledger was removed", "", [])
    assert stat.S_IMODE(marker.stat().st_mode) == 0o600
    (tmp_path / "releases.unreadable").unlink()
    open_ledger(tmp_path).close()
    assert not marker.exists(), "it is there again"


def test_a_damaged_ledger_is_marked_with_where_it_is_kept(tmp_path: Path) -> None:
    open_ledger(tmp_path).close()
    (tmp_path / "ledger.db").write_bytes(b"no ledger" * 1000)

    opened = open_ledger(tmp_path)
    opened.close()

    said = json.loads((tmp_path / "releases.unreadable").read_text())
    assert said["aside"] == str(opened.aside)
    assert said["error"]
    assert said["at"] > 1e9


def test_a_loss_that_cannot_be_written_down_begins_no_ledger(tmp_path: Path) -> None:
    (tmp_path / "writer.lock").touch()
    (tmp_path / "releases.unreadable").mkdir()

    with pytest.raises(LedgerUnwritable):
        open_ledger(tmp_path)
    assert not (tmp_path / "ledger.db").exists()


async def test_every_device_in_doubt_goes_by_its_driver_and_its_name(marked: After) -> None:
    stated = {SOURCE: says()}

    found = await marked.lost.keys(Book(), (R0,), stated, complete=True)

    assert found == {DeviceKey("hardpoint.dev", "radio0")}
