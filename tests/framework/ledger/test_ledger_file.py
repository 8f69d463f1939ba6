from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker_world import claim
from hypothesis import given
from hypothesis import strategies as st

from hardpoint._core.ledger import schema
from hardpoint._core.ledger.ledger import Ledger, Want, read_records
from hardpoint._core.ledger.schema import STEPS, LedgerFile, connect
from hardpoint.errors import LedgerDamaged, LedgerLost, LedgerTooNew, LedgerUnwritable
from hardpoint.model import Allotment, Device, HoldState, exclusive

Opener = Callable[[], Ledger]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def opened(state: Path) -> Iterator[Opener]:
    ledgers: list[Ledger] = []

    def open_one() -> Ledger:
        ledgers.append(Ledger(state))
        return ledgers[-1]

    yield open_one
    for ledger in ledgers:
        ledger.close()


def want(name: str) -> Want:
    return Want(
        allotment=Allotment(request="r", device=name, pool="p"),
        device=Device(name=name, kind="k", driver="d"),
        cdi_vendor="a.dev",
        cdi_name=f"u-{name}",
        parts=(exclusive(name),),
        undo=False,
    )


async def take(ledger: Ledger, uid: str, *names: str) -> None:
    await ledger.take(claim(uid, *names), [want(name) for name in names], "boot")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def test_state_is_for_root_alone(opened: Opener, state: Path) -> None:
    umask = os.umask(0)
    try:
        ledger = opened()
        await take(ledger, "u1", "a")
        assert mode(state) == 0o700
        modes = {path.name: mode(path) for path in state.iterdir()}
    finally:
        os.umask(umask)
    assert modes == dict.fromkeys(
        ["ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.lock"], 0o600
    )


def test_a_state_directory_that_others_may_read_is_closed_to_them(state: Path) -> None:
    state.mkdir(mode=0o755)
    Ledger(state).close()
    (state / "ledger.db").chmod(0o644)
    Ledger(state).close()
    assert (mode(state), mode(state / "ledger.db")) == (0o700, 0o600)


async def test_every_commit_is_flushed_to_the_disk(opened: Opener, state: Path) -> None:
    opened()
    connection = connect(state / "ledger.db")
    assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL
    connection.close()


async def test_a_new_ledger_is_rebuilding_until_told_otherwise(opened: Opener) -> None:
    ledger = opened()
    assert ledger.rebuilding
    ledger.close()
    ledger = opened()
    assert ledger.rebuilding  # the agent died before it had looked
    await ledger.rebuilt()
    ledger.close()
    assert not opened().rebuilding


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 4096, b"garbage" * 1000, b"SQLite format 3\0" + b"\xff" * 4096]
)
@pytest.mark.field_case("C01", "C11")
async def test_a_file_that_is_no_ledger_is_kept_aside_with_a_time(
    opened: Opener, state: Path, content: bytes
) -> None:
    """kubernetes/kubernetes#135711: zero length, NULs and torn text are all damage."""
    ledger = opened()
    await ledger.rebuilt()
    ledger.close()
    (state / "ledger.db").write_bytes(content)
    ledger = opened()
    assert ledger.damage is not None
    assert ledger.aside is not None
    assert ledger.aside.read_bytes() == content
    assert ledger.aside.name.startswith("ledger.db.damaged-2")
    assert ledger.rebuilding
    await take(ledger, "u1", "a")
    ledger.close()
    assert opened().damage is None


async def test_a_second_damage_in_one_second_overwrites_nothing(
    opened: Opener, state: Path
) -> None:
    for content in (b"one", b"two", b"three"):
        opened().close()
        (state / "ledger.db").write_bytes(content)
    opened()
    kept = {path.read_bytes() for path in state.glob("ledger.db.damaged-*")}
    assert kept == {b"one", b"two", b"three"}


async def test_another_sqlite_file_is_not_taken_for_a_ledger(opened: Opener, state: Path) -> None:
    state.mkdir()
    other = sqlite3.connect(state / "ledger.db")
    other.execute("CREATE TABLE meta (key, value)")
    other.close()
    damage = opened().damage
    assert damage is not None
    assert "not a ledger" in str(damage)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM claims",
        "DELETE FROM meta WHERE key = 'schema'",
        "UPDATE meta SET value = 'x' WHERE key = 'readable_by'",
    ],
)
async def test_contents_that_contradict_each_other_are_damage(
    opened: Opener, state: Path, statement: str
) -> None:
    ledger = opened()
    await take(ledger, "u1", "a")
    ledger.close()
    raw = sqlite3.connect(state / "ledger.db")
    raw.execute("PRAGMA foreign_keys = OFF")
    raw.execute(statement)
    raw.commit()
    raw.close()
    assert opened().damage is not None


async def test_the_file_of_an_agent_that_runs_is_never_set_aside(
    opened: Opener, state: Path
) -> None:
    """Two agents overlap in a rolling update; renaming would make two ledgers."""
    opened()
    with (state / "ledger.db").open("r+b") as file:
        file.write(b"\0" * 4096)
    with pytest.raises(LedgerDamaged):
        Ledger(state)
    assert list(state.glob("*.damaged-*")) == []


def test_a_half_made_ledger_of_a_crash_is_made_anew(state: Path) -> None:
    state.mkdir()
    (state / ".ledger.new").write_bytes(b"half")
    (state / "ledger.db-wal").write_bytes(b"the log of another file")
    ledger = Ledger(state)
    assert ledger.damage is None
    ledger.close()
    assert sorted(path.name for path in state.iterdir()) == ["ledger.db", "ledger.lock"]


@given(offset=st.integers(0, 60_000), junk=st.binary(min_size=1, max_size=64), cut=st.booleans())
@pytest.mark.field_case("C11")
def test_a_torn_or_garbled_ledger_never_crashes_the_agent_and_never_loses_a_hold_silently(
    tmp_path_factory: pytest.TempPathFactory, offset: int, junk: bytes, cut: bool
) -> None:
    state = tmp_path_factory.mktemp("state")
    shutil.copy(_ledger_with_a_hold(), state / "ledger.db")
    path = state / "ledger.db"
    size = path.stat().st_size
    with path.open("r+b") as file:
        if cut:
            file.truncate(min(offset, size - 1))
        else:
            file.seek(min(offset, size))
            file.write(junk)
    try:
        ledger = Ledger(state)
    except LedgerTooNew:
        return
    names = [record.device.name for record in ledger.latest]
    assert ledger.damage is not None or len(names) == 1
    ledger.close()


_made: list[Path] = []


def _ledger_with_a_hold() -> Path:
    if not _made:
        import tempfile

        import anyio

        root = Path(tempfile.mkdtemp())
        ledger = Ledger(root)
        anyio.run(take, ledger, "u1", "a")
        ledger.close()
        _made.append(root / "ledger.db")
    return _made[0]


# -- versions -------------------------------------------------------------------------------------


def set_meta(state: Path, key: str, value: str) -> None:
    raw = sqlite3.connect(state / "ledger.db")
    raw.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
    raw.commit()
    raw.close()


@pytest.mark.field_case("B25", "C05")
def test_a_ledger_of_a_later_release_is_left_alone(state: Path) -> None:
    Ledger(state).close()
    set_meta(state, "schema", "9")
    set_meta(state, "readable_by", "9")
    before = (state / "ledger.db").read_bytes()
    with pytest.raises(LedgerTooNew, match="schema version 9"):
        Ledger(state)
    assert (state / "ledger.db").read_bytes() == before
    assert list(state.glob("*.damaged-*")) == []


@pytest.mark.field_case("C05", "C12")
async def test_the_release_before_reads_and_writes_a_ledger_that_only_grew(
    opened: Opener, state: Path
) -> None:
    grown = (*STEPS, "ALTER TABLE holds ADD COLUMN colour TEXT NOT NULL DEFAULT 'red';")
    ledger = opened()
    await take(ledger, "u1", "a")
    LedgerFile(state, steps=grown).close()  # the next release starts while this one runs
    await take(ledger, "u2", "b")
    ledger.close()
    ledger = opened()
    assert [record.claim.uid for record in ledger.latest] == ["u1", "u2"]
    raw = connect(state / "ledger.db")
    assert raw.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()[0] == str(
        len(STEPS) + 1
    )
    assert [row[0] for row in raw.execute("SELECT colour FROM holds")] == ["red", "red"]
    raw.close()


@pytest.mark.field_case("C05")
def test_an_upgrade_that_fails_changes_nothing(state: Path) -> None:
    Ledger(state).close()
    broken = (*STEPS, "CREATE TABLE more (x);\nCREATE TABLE meta (x);")
    with pytest.raises(LedgerUnwritable):
        LedgerFile(state, steps=broken)
    raw = connect(state / "ledger.db")
    assert not raw.execute("SELECT 1 FROM sqlite_master WHERE name = 'more'").fetchall()
    raw.close()
    Ledger(state).close()


# -- disks ----------------------------------------------------------------------------------------


def test_a_state_directory_that_cannot_be_made_is_said_to_be_unwritable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerUnwritable, match=r"ENOTDIR|EEXIST"):
        Ledger(tmp_path / "file" / "state")


@pytest.mark.field_case("C10")
def test_a_full_disk_fails_the_write_and_changes_nothing(tmp_path: Path) -> None:
    """The size limit makes write(2) fail as a full disk does; afterwards there is room again."""
    script = """
import resource, sys, anyio
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from broker_world import claim
from hardpoint._core.ledger.ledger import Ledger, Want
from hardpoint.errors import LedgerUnwritable
from hardpoint.model import Allotment, Device, exclusive

def want(name, size):
    return Want(allotment=Allotment(request="r", device=name, pool="p"),
        device=Device(name=name, kind="k" * size), cdi_vendor="a.dev", cdi_name=name,
        parts=(exclusive(name),), undo=False)

async def main():
    ledger = Ledger(Path(sys.argv[1]))
    await ledger.take(claim("u1", "a"), [want("a", 10)], "boot")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        await ledger.take(claim("u2", "b"), [want("b", 400_000)], "boot")
    except LedgerUnwritable as error:
        print("unwritable")
    print([r.device.name for r in await ledger.read()])
    await ledger.take(claim("u3", "c"), [want("c", 10)], "boot")  # a small one still fits
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await ledger.take(claim("u2", "b"), [want("b", 400_000)], "boot")
    print([r.device.name for r in await ledger.read()])
    ledger.close()

anyio.run(main)
"""
    tests = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "state"), tests],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["unwritable", "['a']", "['a', 'c', 'b']"]
    assert [r.device.name for r in read_records(tmp_path / "state")] == ["a", "c", "b"]


async def test_a_ledger_that_has_become_read_only_says_so(opened: Opener) -> None:
    ledger = opened()
    await take(ledger, "u1", "a")
    ledger._committer.run_blocking(lambda db: None)
    connection = ledger._committer._connection
    assert connection is not None
    connection.execute("PRAGMA query_only = ON")
    with pytest.raises(LedgerUnwritable):
        await take(ledger, "u2", "b")
    await take(ledger, "u2", "b")  # by another connection: this one would stay so


# -- commands -------------------------------------------------------------------------------------


async def test_holds_can_be_read_with_an_agent_running_and_without(
    opened: Opener, state: Path
) -> None:
    assert read_records(state) == ()
    ledger = opened()
    await take(ledger, "u1", "a")
    assert [r.state for r in read_records(state)] == [HoldState.PREPARING]
    ledger.close()
    assert [r.device.name for r in read_records(state)] == ["a"]
    (state / "ledger.db").write_bytes(b"x" * 5000)
    with pytest.raises(LedgerDamaged):
        read_records(state)


def test_the_schema_known_is_the_number_of_its_steps() -> None:
    assert len(STEPS) == schema.KNOWN


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        (sqlite3.OperationalError("disk I/O error"), LedgerUnwritable),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_ledger_that_could_not_be_opened_keeps_no_hand_on_its_file(
    state: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: BaseException,
    raised: type[BaseException],
) -> None:
    """A damaged one would never be set aside: only who has the file alone may do that."""
    Ledger(state).close()

    def fails(path: Path) -> sqlite3.Connection:
        raise fault

    with monkeypatch.context() as patched:
        patched.setattr("hardpoint._core.ledger.records.connect", fails)
        with pytest.raises(raised):
            Ledger(state)
    (state / "ledger.db").write_bytes(b"x" * 5000)
    again = Ledger(state)
    again.close()
    assert again.damage is not None


async def test_what_cannot_be_looked_for_is_not_said_to_be_lost(
    opened: Opener, state: Path, tmp_path: Path
) -> None:
    ledger, lost = opened(), threading.Event()
    ledger.on_lost(lost.set)
    state.rename(tmp_path / "away")
    state.symlink_to(state)  # every path through it is ELOOP

    with pytest.raises(LedgerUnwritable):
        await ledger.audit("test", "x", {})
    assert not lost.is_set()
    state.unlink()
    (tmp_path / "away").rename(state)
    await ledger.audit("test", "x", {})


async def test_a_ledger_that_nobody_watches_takes_nothing_more_either(
    opened: Opener, state: Path
) -> None:
    ledger = opened()
    (state / "ledger.db").unlink()
    with pytest.raises(LedgerLost):
        await ledger.audit("test", "x", {})


@pytest.mark.parametrize("how", ["removed", "replaced", "directory", "a file for a directory"])
async def test_a_ledger_that_was_taken_away_while_it_is_open_takes_nothing_more(
    opened: Opener, state: Path, how: str
) -> None:
    """A second agent that starts now has another ledger, and would hand out the same device."""
    ledger, lost = opened(), threading.Event()
    ledger.on_lost(lost.set)
    if how in ("directory", "a file for a directory"):
        shutil.rmtree(state)
    else:
        (state / "ledger.db").unlink()
    if how == "replaced":
        (state / "ledger.db").write_bytes(b"")
    if how == "a file for a directory":
        state.write_bytes(b"")

    with pytest.raises(LedgerLost, match="removed or replaced"):
        await ledger.audit("test", "x", {})
    assert lost.is_set()
