"""A ledger whose disk failed for a moment, and is well again."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from hardpoint._core.ledger import schema
from hardpoint._core.ledger.committer import Committer
from hardpoint._core.ledger.schema import LedgerFile, told
from hardpoint.errors import LedgerUnwritable


async def test_a_ledger_that_could_once_be_opened_for_reading_alone_is_written_afterwards(
    tmp_path: Path,
) -> None:
    """``open(2)`` for writing failed; SQLite tries to read, then (unixOpen in os_unix.c)."""
    file = LedgerFile(tmp_path)
    opened: list[str] = []

    def connect() -> sqlite3.Connection:
        mode = "rw" if opened else "ro"
        opened.append(mode)
        if mode == "rw":
            return schema.connect(file.path)
        address = f"file:{file.path}?mode=ro"
        return sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)

    committer = Committer(
        str(file.path), connect, lambda error: told(file.path, error), lambda: None
    )
    write = "INSERT OR REPLACE INTO meta VALUES ('withdrawn', 'x')"
    try:
        with pytest.raises(LedgerUnwritable, match="readonly"):
            await committer.run(lambda db: db.execute(write).rowcount)

        assert await committer.run(lambda db: db.execute(write).rowcount) == 1
        assert opened == ["ro", "rw"]
    finally:
        committer.close()
        file.close()
