"""The operator's levers: releases ended, holds forgotten, quarantines cleared, on somebody's word.

What the evidence says is overruled here, so every act stands in the audit trail, written in the
very transaction that does it. It is done with an agent running or without: the agent sees what was
written within seconds, the next one when it starts. A claim that a call is under way for is left
alone, and a ledger that is damaged is the agent's to begin anew, which asks what was lost.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import anyio.to_thread

from hardpoint import files
from hardpoint._core.grants.lost import MARKER
from hardpoint._core.ledger.audits import READ as AUDITS
from hardpoint._core.ledger.audits import Audited, audits_of, keep_audit
from hardpoint._core.ledger.grantrows import (
    READ,
    Book,
    DeviceKey,
    KnownRelease,
    book_of,
    forget_grant,
    forget_release,
    holders,
    keep_release,
    without,
)
from hardpoint._core.ledger.ledger import Ledger
from hardpoint._core.ledger.locks import ClaimLocks
from hardpoint._core.ledger.records import Reader, Record
from hardpoint._core.ledger.rows import delete
from hardpoint._core.ledger.schema import told
from hardpoint.cdi_files import CdiDirectory
from hardpoint.errors import BadValue, HardpointError, HoldBusy

_T = TypeVar("_T")

_PATIENCE = 1.0
"""Seconds that a lever waits for a call of the agent's: an operator asks again."""


class LeverRefused(HardpointError):
    """What was asked for is not done, and nothing has changed."""


# -- what is written down, with no agent running --------------------------------------------------


def read_book(state: Path) -> Book:
    """Return the grants and releases that are written down. Blocks. Raises ``LedgerError``."""
    return _read(state, "releases", lambda reader: book_of(reader.query(READ)), Book())


def read_audits(state: Path) -> tuple[Audited, ...]:
    """Return what operators did, oldest first. Blocks. Raises ``LedgerError``."""
    return _read(state, "audit", lambda reader: audits_of(reader.query(AUDITS)), ())


def is_rebuilding(state: Path) -> bool:
    """Say whether holds of a ledger that was lost may not have been found again. Blocks.

    Raises ``LedgerError``.
    """
    query = "SELECT 1 FROM meta WHERE key = 'rebuilding' AND value = '1'"
    return _read(state, "meta", lambda reader: bool(reader.query(query)), False)


def is_lost(state: Path) -> bool:
    """Say whether it is not known any more which releases were pending."""
    return (state / MARKER).exists() or (state / MARKER).is_symlink()


def _read(state: Path, table: str, what: Callable[[Reader], _T], nothing: _T) -> _T:
    """Read; nothing where there is no ledger, or one of a release that had no such table."""
    path = state / "ledger.db"
    if not path.exists():
        return nothing
    try:
        reader = Reader(path)
    except sqlite3.Error as error:
        raise told(path, error) from error
    try:
        if not reader.query("SELECT 1 FROM sqlite_master WHERE name = ?", table):
            return nothing
        return what(reader)
    finally:
        reader.close()


# -- levers ---------------------------------------------------------------------------------------


class Levers:
    """What an operator may do to one node's ledger. ``who`` is that operator."""

    def __init__(self, ledger: Ledger, locks: ClaimLocks, cdi: CdiDirectory, who: str) -> None:
        self._ledger, self._locks, self._cdi, self._who = ledger, locks, cdi, who

    async def forget(
        self, records: Iterable[Record], what: str, facts: Mapping[str, Any]
    ) -> tuple[Record, ...]:
        """Remove holds and what CDI files say of them; return those that were there still.

        Raises ``LeverRefused`` while a call for one of their claims is under way.
        """
        async with self._turns(records) as found:
            await self._take_out(found)

            def work(db: sqlite3.Connection) -> None:
                for record in found:
                    delete(db, record)
                keep_audit(db, time.time(), self._who, what, facts)

            if found:
                await self._ledger.write(work)
        return found

    async def end(
        self,
        releases: Sequence[KnownRelease],
        devices: Collection[DeviceKey],
        holds: Iterable[Record],
        facts: Mapping[str, Any],
    ) -> None:
        """Write down that some devices of releases are free, and forget holds in the same moment.

        A release with no other device is over then: the agent tells its source. Raises
        ``LeverRefused`` where one is not pending, or the ledger has another hold on a device.
        """
        async with self._turns(holds) as found:
            await self._take_out(found)

            def work(db: sqlite3.Connection) -> None:
                for record in found:
                    delete(db, record)
                book = {one.id: one for one in book_of(db.execute(READ)).releases}
                for release in releases:
                    _end(db, book.get(release.id), frozenset(devices))
                keep_audit(db, time.time(), self._who, "release --force", facts)

            await self._ledger.write(work)

    async def forget_unreadable(self, id_: str, facts: Mapping[str, Any]) -> None:
        """Remove a release, by id, or a grant, by allocation, whose row says nothing any more.

        No source can be told of it. What can be read of that name stays.
        """

        def work(db: sqlite3.Connection) -> None:
            rows = [row for row in db.execute(READ) if row["id"] == id_]
            for row in (row for row in rows if book_of((row,)).unreadable):
                if row["what"] == "grant":
                    forget_grant(db, (row["source"], id_))
                else:
                    forget_release(db, id_)
            keep_audit(db, time.time(), self._who, "release --force", facts)

        await self._ledger.write(work)

    async def clear_lost(self, state: Path, facts: Mapping[str, Any]) -> None:
        """Remove the marker of lost releases; it is in the trail before it is done."""
        await self._ledger.audit(self._who, "release --clear-lost", facts)
        await anyio.to_thread.run_sync(files.remove, state / MARKER)

    @asynccontextmanager
    async def _turns(self, records: Iterable[Record]) -> AsyncIterator[tuple[Record, ...]]:
        """Wait a moment for the turns of holds, and give the holds as they are then."""
        wanted = tuple(records)
        claims = {record.lock: record for record in wanted}
        ids = {record.id for record in wanted}
        async with AsyncExitStack() as turns:
            for lock, record in sorted(claims.items()):
                name, driver = record.holder, record.claim.dra_driver
                turn = self._locks.turn(lock, name, driver, patience=_PATIENCE)
                try:
                    await turns.enter_async_context(turn)
                except HoldBusy as error:
                    raise LeverRefused(
                        f"a call for {name} is under way, which may change device "
                        f"{record.device.name}: wait for it, or stop the agent"
                    ) from error
            yield tuple(one for one in await self._ledger.read() if one.id in ids)

    async def _take_out(self, records: Iterable[Record]) -> None:
        """Let no CDI file deliver what is about to be nobody's: before the ledger forgets it."""
        files_of: dict[tuple[str, str], set[str]] = {}
        for record in records:
            if not record.retired:  # its claim has given it back: no file of it is left
                key = record.cdi_vendor, record.claim.uid
                files_of.setdefault(key, set()).add(record.cdi_name)
        for (vendor, uid), names in files_of.items():
            with suppress(BadValue):  # of a damaged row: no file can be called that
                await anyio.to_thread.run_sync(_take_out, self._cdi, vendor, uid, names)


def _end(
    db: sqlite3.Connection, known: KnownRelease | None, devices: Collection[DeviceKey]
) -> None:
    if known is None or known.over:
        raise LeverRefused("a release has ended meanwhile: look again with `hardpoint release`")
    ended = known.keys & set(devices)
    for key in ended:
        held = holders(db, key, known.grant.allocation)
        if held:
            raise LeverRefused(f"device {key.name} is held for {', '.join(held)} by now")
    if ended == known.keys:
        db.execute("UPDATE releases SET over = 1 WHERE id = ?", (known.id,))
    else:
        keep_release(db, without(known, ended))


def _take_out(cdi: CdiDirectory, vendor: str, uid: str, names: Collection[str]) -> None:
    """Remove devices from a claim's file, and a file that would be empty or says nothing."""
    cdi.file(vendor, uid)
    good, _ = cdi.claims((vendor,))
    devices = next((one.devices for one in good if one.uid == uid), {})
    left = [(f"{uid}-{name}", what) for name, what in devices.items()]
    left = [(name, what) for name, what in left if name not in names]
    if left:
        cdi.write(vendor, uid, left)
    else:
        cdi.remove(vendor, uid)


@asynccontextmanager
async def levers(state: Path, cdi: CdiDirectory, who: str) -> AsyncIterator[Levers]:
    """Open the ledger that an agent has made. Raises ``LedgerError``, and ``LeverRefused``."""
    if not (state / "ledger.db").exists():
        raise LeverRefused(f"no agent has run with {state}: nothing is written down there")
    ledger = await anyio.to_thread.run_sync(lambda: Ledger(state, begin=False))
    try:
        locks = ClaimLocks(state / "claims.lock")
        try:
            yield Levers(ledger, locks, cdi, who)
        finally:
            locks.close()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(ledger.close)
