"""The ledger's file: its tables, its versions, and what happens to a file that cannot be read.

Write-ahead log with ``synchronous=FULL``: one ``fsync`` makes a commit durable, where a rollback
journal needs three, and readers never wait for a writer. Two agents on one node share the file
through SQLite's own locks.

A schema only grows across one release: a newer one adds tables and columns with defaults, and says
in ``meta`` which is the oldest schema that a release must know to read the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from hardpoint._core.state import make_private, open_private
from hardpoint.errors import LedgerDamaged, LedgerError, LedgerTooNew, LedgerUnwritable
from hardpoint.files import sync_directory
from hardpoint.reading import decimal

KNOWN = 2
"""The newest schema that this release writes."""

_APPLICATION = 0x48706C67
_BUSY = 10.0
_OPENING = 30.0

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE claims (
    uid TEXT NOT NULL, dra_driver TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    pod_claim_name TEXT NOT NULL DEFAULT '', created REAL NOT NULL,
    PRIMARY KEY (uid, dra_driver)
) WITHOUT ROWID;
CREATE TABLE holds (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    uid TEXT NOT NULL, dra_driver TEXT NOT NULL,
    owner TEXT NOT NULL,
    request TEXT NOT NULL, device TEXT NOT NULL, share_id TEXT NOT NULL,
    driver TEXT NOT NULL, cdi_vendor TEXT NOT NULL, cdi_name TEXT NOT NULL,
    state TEXT NOT NULL, retired INTEGER NOT NULL DEFAULT 0,
    undo INTEGER NOT NULL, rebuilt INTEGER NOT NULL DEFAULT 0,
    boot_id TEXT NOT NULL,
    device_json TEXT NOT NULL, allotment_json TEXT NOT NULL,
    delivery_json TEXT, answer_json TEXT, remembered_json TEXT NOT NULL DEFAULT '{}',
    tries INTEGER NOT NULL DEFAULT 0, why TEXT NOT NULL DEFAULT '',
    created REAL NOT NULL, changed REAL NOT NULL, rev INTEGER NOT NULL,
    FOREIGN KEY (uid, dra_driver) REFERENCES claims (uid, dra_driver)
);
CREATE UNIQUE INDEX one_hold ON holds (uid, dra_driver, request, device, share_id)
    WHERE NOT retired;
CREATE TABLE parts (
    hold INTEGER NOT NULL REFERENCES holds (id),
    owner TEXT NOT NULL, part TEXT NOT NULL, exclusive INTEGER NOT NULL,
    stale INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (hold, part)
) WITHOUT ROWID;
CREATE INDEX parts_of_owner ON parts (part, owner);
CREATE TABLE owners (
    part TEXT NOT NULL, owner TEXT NOT NULL, exclusive INTEGER NOT NULL,
    PRIMARY KEY (part, owner)
) WITHOUT ROWID;
CREATE UNIQUE INDEX one_owner ON owners (part) WHERE exclusive;
CREATE TRIGGER owners_alone BEFORE INSERT ON owners
WHEN EXISTS (SELECT 1 FROM owners WHERE part = NEW.part AND owner <> NEW.owner
             AND (exclusive OR NEW.exclusive))
BEGIN SELECT RAISE(ABORT, 'the part is held by another claim'); END;
CREATE TRIGGER owners_still_alone BEFORE UPDATE ON owners
WHEN EXISTS (SELECT 1 FROM owners WHERE part = NEW.part AND owner <> OLD.owner
             AND (exclusive OR NEW.exclusive))
BEGIN SELECT RAISE(ABORT, 'the part is held by another claim'); END;
CREATE TRIGGER parts_taken AFTER INSERT ON parts
BEGIN
    INSERT INTO owners VALUES (NEW.part, NEW.owner, NEW.exclusive)
    ON CONFLICT (part, owner) DO UPDATE SET exclusive = max(exclusive, excluded.exclusive);
END;
CREATE TRIGGER parts_given_back AFTER DELETE ON parts
BEGIN
    DELETE FROM owners WHERE part = OLD.part AND owner = OLD.owner;
    INSERT INTO owners SELECT part, owner, max(exclusive) FROM parts
        WHERE part = OLD.part AND owner = OLD.owner GROUP BY part, owner;
END;
CREATE TABLE listings (driver TEXT PRIMARY KEY, listing TEXT NOT NULL, at REAL NOT NULL)
    WITHOUT ROWID;
CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL,
    facts TEXT NOT NULL
);
"""

_GRANTS = """
CREATE TABLE grants (
    source TEXT NOT NULL, allocation TEXT NOT NULL,
    grant_json TEXT NOT NULL, devices_json TEXT NOT NULL,
    outcome TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '', told INTEGER NOT NULL DEFAULT 0,
    since REAL NOT NULL,
    PRIMARY KEY (source, allocation)
) WITHOUT ROWID;
CREATE TABLE granted (
    source TEXT NOT NULL, allocation TEXT NOT NULL, dra_driver TEXT NOT NULL, device TEXT NOT NULL,
    PRIMARY KEY (dra_driver, device, source, allocation)
) WITHOUT ROWID;
CREATE TABLE releases (
    id TEXT PRIMARY KEY, source TEXT NOT NULL, allocation TEXT NOT NULL,
    grant_json TEXT NOT NULL, devices_json TEXT NOT NULL,
    since REAL NOT NULL, report INTEGER NOT NULL, over INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE releasing (
    id TEXT NOT NULL REFERENCES releases (id), dra_driver TEXT NOT NULL, device TEXT NOT NULL,
    PRIMARY KEY (dra_driver, device, id)
) WITHOUT ROWID;
"""

STEPS: tuple[str, ...] = (_TABLES, _GRANTS)
"""What brings a file from one schema to the next; the first makes an empty one."""


_TAKEN = "SELECT part, owner, max(exclusive) FROM parts GROUP BY part, owner"
_OWNED = "SELECT part, owner, exclusive FROM owners"
_CONTRADICTIONS = {
    "SELECT part FROM owners GROUP BY part HAVING max(exclusive) AND count(*) > 1": (
        "a part has two owners"
    ),
    f"{_TAKEN} EXCEPT {_OWNED}": "a part is taken that nobody owns",
    f"{_OWNED} EXCEPT {_TAKEN}": "a part is owned that no hold takes",
}


def connect(path: Path) -> sqlite3.Connection:
    """Open a ledger that exists. Raises ``sqlite3.Error``."""
    address = f"file:{quote(str(path))}?mode=rw"
    connection = sqlite3.connect(
        address, uri=True, timeout=_BUSY, isolation_level=None, check_same_thread=False
    )
    connection.row_factory = sqlite3.Row
    connection.text_factory = _text
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _text(raw: bytes) -> str:
    """Read text; of a damaged row too, so that it costs that row only."""
    return raw.decode("utf-8", "replace")


def told(path: Path, error: sqlite3.Error) -> LedgerError:
    """Return an error of SQLite as one of ours."""
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FORMAT")):
        return LedgerDamaged(str(path), str(error))
    return LedgerUnwritable(str(path), str(error))


class LedgerFile:
    """The ledger's file, held open against being set aside by another agent.

    ``damage`` is what was wrong with the file found at opening, which is then kept as ``aside``;
    ``fresh`` says that the file is new, because there was none or it was damaged. Without ``begin``
    there has to be a good one: only an agent that then asks what was lost may begin anew.
    ``on_damage`` is called before anything is begun anew: whoever is killed then knows it still.
    """

    def __init__(
        self,
        directory: Path,
        steps: Sequence[str] = STEPS,
        *,
        begin: bool = True,
        on_damage: Callable[[str, Path], None] = lambda damage, aside: None,
    ) -> None:
        self.path = directory / "ledger.db"
        self.damage: LedgerDamaged | None = None
        self.aside: Path | None = None
        self.fresh = False
        self._steps, self._begin, self._on_damage = steps, begin, on_damage
        try:
            make_private(directory)
            self._lock = open_private(directory / "ledger.lock")
            try:
                self._open()
            except BaseException:
                os.close(self._lock)
                raise
        except OSError as error:
            raise LedgerUnwritable(str(self.path), _said(error)) from error

    def close(self) -> None:
        """Let another agent set the file aside."""
        os.close(self._lock)

    def _open(self) -> None:
        alone = _locked(self._lock, fcntl.LOCK_EX)
        if not alone:
            _await_shared(self._lock)
        if alone and self._begin and not os.path.lexists(self.path):
            self._create()
        try:
            self._examine()
        except LedgerDamaged as damage:
            if not (
                alone and self._begin
            ):  # renaming the file of a running agent would make two ledgers
                raise
            self.damage, self.aside = damage, _name_aside(self.path)
            self._on_damage(str(damage), self.aside)
            _set_aside(self.path, self.aside)
            self._create()
        if alone:
            _await_shared(self._lock)

    def _create(self) -> None:
        """Make a new file under another name first: an empty ledger is never a half-made one."""
        new = self.path.with_name(".ledger.new")
        for leftover in (new, *_beside(new)):
            leftover.unlink(missing_ok=True)
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            with closing(connect(new)) as connection:
                upgrade(connection, self._steps)
                connection.execute("INSERT OR REPLACE INTO meta VALUES ('rebuilding', '1')")
                _into_one_file(connection)
        except sqlite3.Error as error:
            raise told(self.path, error) from error
        # What is left of its log is in it. One of another file would be replayed into this one.
        for leftover in (*_beside(new), *_beside(self.path)):
            leftover.unlink(missing_ok=True)
        os.rename(new, self.path)
        sync_directory(self.path.parent)
        self.fresh = True

    def _examine(self) -> None:
        if os.path.lexists(self.path):
            found = self.path.lstat()
            if not stat.S_ISREG(found.st_mode):  # SQLite would follow a link
                raise LedgerDamaged(str(self.path), "it is no plain file")
            self.path.chmod(0o600)
            if not found.st_size:  # SQLite would take it for a new file
                raise LedgerDamaged(str(self.path), "the file is empty")
        try:
            with closing(connect(self.path)) as connection:
                _examine(self.path, connection, self._steps)
                upgrade(connection, self._steps)
        except sqlite3.Error as error:
            raise told(self.path, error) from error
        except UnicodeDecodeError as error:  # sqlite3 quoting what it found
            raise LedgerDamaged(str(self.path), "its schema cannot be read") from error


def _into_one_file(connection: sqlite3.Connection) -> None:
    """Move all of the log into the file, durably: closing does so too, and says nothing if not."""
    busy = _one(connection, "PRAGMA wal_checkpoint(TRUNCATE)")
    if busy:
        raise sqlite3.OperationalError("the new file is in use")


def _examine(path: Path, connection: sqlite3.Connection, steps: Sequence[str]) -> None:
    if _one(connection, "PRAGMA application_id") != _APPLICATION:
        raise LedgerDamaged(str(path), "it is not a ledger")
    schema = _examine_schema(path, connection, len(steps))
    problem = _one(connection, "PRAGMA integrity_check(1)")
    if problem != "ok":
        raise LedgerDamaged(str(path), str(problem))
    missing = _shape_of(steps, schema) - _shape(connection, exact=schema <= len(steps))
    if missing:
        raise LedgerDamaged(str(path), f"it lacks {', '.join(sorted(name for name, _ in missing))}")
    if connection.execute("PRAGMA foreign_key_check").fetchone():
        raise LedgerDamaged(str(path), "a hold without its claim, or a part without its hold")
    for query, what in _CONTRADICTIONS.items():
        if connection.execute(query).fetchone():
            raise LedgerDamaged(str(path), what)


def _examine_schema(path: Path, connection: sqlite3.Connection, known: int) -> int:
    meta = {str(row[0]): str(row[1]) for row in connection.execute("SELECT key, value FROM meta")}
    schema, oldest = meta.get("schema", ""), meta.get("readable_by", meta.get("schema", ""))
    newest, needed = decimal(schema), decimal(oldest)
    if newest is None or needed is None:
        raise LedgerDamaged(str(path), "it states no schema")
    if needed > known:
        raise LedgerTooNew(str(path), newest, known)
    return newest


def _shape_of(steps: Sequence[str], schema: int) -> set[tuple[str, str]]:
    """Return what a file of a schema has: what keeps two owners from one part, among the rest."""
    with closing(sqlite3.connect(":memory:")) as model:
        for step in steps[:schema]:
            for statement in _statements(step):
                model.execute(statement)
        return _shape(model, exact=schema <= len(steps))


def _shape(connection: sqlite3.Connection, *, exact: bool) -> set[tuple[str, str]]:
    """Return tables, indexes and triggers, each with its text if ``exact``, and every column.

    Raises ``UnicodeDecodeError`` for a name that is no text.
    """
    found = connection.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite%'"
    ).fetchall()
    shape = {(str(name), str(sql) if exact else "") for _, name, sql in found}
    for table in [str(name) for kind, name, _ in found if kind == "table"]:
        quoted = table.replace('"', '""')
        columns = connection.execute(f'SELECT * FROM "{quoted}" LIMIT 0').description  # noqa: S608
        shape |= {(f"{table}.{column[0]}", "") for column in columns}
    return shape


def upgrade(connection: sqlite3.Connection, steps: Sequence[str] = STEPS) -> None:
    """Bring a file to the newest schema known, in one transaction; a newer one is left alone."""
    if _schema(connection) >= len(steps):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = _schema(connection)
        for step in steps[found:]:
            for statement in _statements(step):
                connection.execute(statement)
        newest = str(max(found, len(steps)))
        connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('schema', ?)", (newest,))
        connection.execute("INSERT OR IGNORE INTO meta VALUES ('readable_by', '1')")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _schema(connection: sqlite3.Connection) -> int:
    if not _one(connection, "SELECT count(*) FROM sqlite_master WHERE name = 'meta'"):
        return 0
    return int(str(_one(connection, "SELECT value FROM meta WHERE key = 'schema'") or 0))


def _statements(script: str) -> list[str]:
    """Split a script where SQLite itself says that a statement is complete: triggers hold ``;``."""
    statements, statement = [], ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            statements.append(statement)
            statement = ""
    return statements


def _one(connection: sqlite3.Connection, query: str) -> object:
    row = connection.execute(query).fetchone()
    return row[0] if row else None


# -- files ----------------------------------------------------------------------------------------


def _locked(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _await_shared(descriptor: int) -> None:
    """Share the file with another agent, which may be in the middle of creating it."""
    deadline = time.monotonic() + _OPENING
    while not _locked(descriptor, fcntl.LOCK_SH):
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, "another agent has been opening it for too long")
        time.sleep(0.01)


def _beside(path: Path) -> tuple[Path, Path]:
    return path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")


def _name_aside(path: Path) -> Path:
    """Return a name for a damaged file that says when."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    for count in range(1, 1000):
        if not os.path.lexists(aside):
            break
        aside = path.with_name(f"{path.name}.damaged-{stamp}-{count}")
    return aside


def _set_aside(path: Path, aside: Path) -> None:
    """Keep a damaged file, with its log, under another name."""
    log, index = _beside(path)
    os.rename(path, aside)
    if os.path.lexists(log):
        os.rename(log, aside.with_name(aside.name + "-wal"))
    index.unlink(missing_ok=True)
    sync_directory(path.parent)


def _said(error: OSError) -> str:
    return f"{errno.errorcode.get(error.errno or 0, error.errno)}: {error.strerror}"
