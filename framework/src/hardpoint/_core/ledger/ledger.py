"""The ledger: every hold, on disk before anything is changed and until all of it is undone.

Holds take parts, and the database itself makes two exclusive owners of one part impossible, also
with two agents: a unique index and triggers, not this program, refuse them. Writing is shared by
whoever waits (``committer``); reading never waits for a writer.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from hardpoint._core.ledger.audits import READ as AUDITS
from hardpoint._core.ledger.audits import Audited, audits_of, keep_audit
from hardpoint._core.ledger.codec import dump, load
from hardpoint._core.ledger.committer import Committer
from hardpoint._core.ledger.grantrows import refuse_ungranted
from hardpoint._core.ledger.records import Found, Reader, Record, Result, Want
from hardpoint._core.ledger.rows import (
    cover,
    delete,
    drop_numbers,
    give_back_parts,
    has_rival,
    keep_stale,
    mark_stale,
    numbers_of,
    open_claim,
    open_hold,
    read_row,
    revision,
    strongest,
    take_parts,
)
from hardpoint._core.ledger.schema import LedgerFile, connect, told
from hardpoint.errors import BadValue, LedgerLost, LedgerUnwritable
from hardpoint.model import (
    Claim,
    ClaimKey,
    Device,
    HoldState,
    Part,
    Withheld,
)

_T = TypeVar("_T")

_READERS = 8


@dataclass(frozen=True, slots=True)
class KeptListing:
    """What a driver listed when it was last read, for the time until it answers again."""

    devices: tuple[Device, ...] = ()
    withheld: tuple[Withheld, ...] = ()


class Ledger:
    """Holds, listings and the audit trail of one node. Close it when done.

    Opening blocks: call it in a worker thread. A damaged file is kept aside (``damage``, ``aside``)
    and a new one started, ``rebuilding`` until ``rebuilt()`` is called. Raises ``LedgerTooNew``,
    ``LedgerUnwritable``, and ``LedgerDamaged`` where another agent still uses the file, or without
    ``begin``, which is for commands: what was lost is the agent's to find out. ``on_damage`` is
    told what was wrong and where the file will be kept, before anything is changed.
    """

    def __init__(
        self,
        directory: Path,
        clock: Callable[[], float] = time.time,
        *,
        begin: bool = True,
        on_damage: Callable[[str, Path], None] = lambda damage, aside: None,
    ) -> None:
        self._clock = clock
        self._closed = False
        self._watchers: list[Callable[[], None]] = []
        self._on_lost: Callable[[], None] = lambda: None
        self._threads: anyio.CapacityLimiter | None = None
        self._file = LedgerFile(directory, begin=begin, on_damage=on_damage)
        self.path, self.damage, self.aside = self._file.path, self._file.damage, self._file.aside
        try:
            self._reader = Reader(self.path)
            self._shown = self._reader.read()
            self._identity = _identity(self.path)
            self._committer = Committer(
                str(self.path),
                lambda: connect(self.path),
                lambda error: told(self.path, error),
                self._committed,
                self._check,
            )
        except sqlite3.Error as error:
            self._file.close()
            raise told(self.path, error) from error
        except BaseException:
            self._file.close()
            raise
        self.rebuilding = bool(self._reader.query("SELECT 1 FROM meta WHERE key = 'rebuilding'"))
        """True while the holds of a ledger that was lost have not been found again."""

    def close(self) -> None:
        """Finish what is being written. Blocks."""
        if self._closed:
            return
        self._closed = True
        self._committer.close()
        self._reader.close()
        self._file.close()

    # -- reading ----------------------------------------------------------------------------------

    @property
    def latest(self) -> tuple[Record, ...]:
        """Every record, as last read: at most two seconds behind another agent. Never blocks."""
        return self._reader.latest

    async def read(self) -> tuple[Record, ...]:
        """Return every record as it is on disk now. Raises ``LedgerError``."""
        return await self._in_thread(self._reader.read)

    async def of_claim(self, uid: str) -> tuple[Record, ...]:
        """Return a claim's records as they are on disk now, retired ones included."""
        return tuple(record for record in await self.read() if record.claim.uid == uid)

    async def contender(self, uid: str, parts: Iterable[Part]) -> tuple[str, str] | None:
        """Return a part that another claim holds, of these, and who it is; None if all are free."""
        wanted = tuple(parts)
        return await self._in_thread(lambda: self._reader.contender(uid, wanted))

    async def listings(self) -> dict[str, KeptListing]:
        """Return what each driver last listed; one that cannot be read is left out."""
        rows = await self._in_thread(
            lambda: self._reader.query("SELECT driver, listing FROM listings")
        )
        found = {}
        for row in rows:
            with suppress(BadValue):
                found[row["driver"]] = load(KeptListing, row["listing"])
        return found

    async def audits(self) -> tuple[Audited, ...]:
        """Return what operators did, oldest first."""
        return audits_of(await self._in_thread(lambda: self._reader.query(AUDITS)))

    # -- a hold's life ----------------------------------------------------------------------------

    async def take(
        self,
        claim: Claim,
        wants: Sequence[Want],
        boot_id: str,
        replaces: Iterable[Record] = (),
    ) -> tuple[Record, ...]:
        """Open a claim's holds, as PREPARING: all of them or none.

        ``replaces`` are records of the claim that go in the same moment; the numbers that a file
        delivers for them stay with the new hold on their device. Raises ``HoldConflict`` naming who
        holds a part, ``HoldDenied`` for a device whose grant has ended meanwhile, or
        ``LedgerUnwritable``.
        """
        now, gone = self._clock(), tuple(replaces)

        def work(db: sqlite3.Connection) -> tuple[Record, ...]:
            had = {record.device.name: numbers_of(db, record.id) for record in gone}
            for record in gone:
                delete(db, record)
            refuse_ungranted(db, claim, wants)
            if wants:
                open_claim(db, claim.key, claim.pod_claim_name, now)
            rows = [open_hold(db, claim.key, want, boot_id, now) for want in wants]
            for row, want in zip(rows, wants, strict=True):
                keep_stale(db, row, claim.key.uid, had.get(want.device.name, ()))
            return tuple(read_row(db, row) for row in rows)

        return await self._committer.run(work)

    async def widen(self, record: Record, parts: Iterable[Part]) -> None:
        """Take more parts for a hold: those of nodes that preparing it has made."""
        more = tuple(parts)

        def work(db: sqlite3.Connection) -> None:
            wanted = strongest((*give_back_parts(db, record.id), *more))
            take_parts(db, record.id, record.claim.uid, record.device.name, wanted)

        await self._committer.run(work)

    async def cover(self, record: Record, parts: Iterable[Part]) -> None:
        """Take what a hold that is made true again will deliver. Raises ``HoldConflict``."""
        wanted = tuple(parts)
        await self._committer.run(lambda db: cover(db, record, wanted))

    async def drop_numbers(self, boot_id: str) -> None:
        """Give back the node numbers of holds from another boot."""
        if any(record.boot_id != boot_id for record in await self.read()):
            await self._committer.run(lambda db: drop_numbers(db, boot_id))

    async def hold(self, results: Sequence[Result]) -> tuple[Record, ...]:
        """Mark holds as HELD, with what their files deliver and what the kubelet is told."""
        written = [(r, dump(r.delivery), dump(r.answer)) for r in results]

        def work(db: sqlite3.Connection) -> tuple[Record, ...]:
            for result, delivery, answer in written:
                self._set(
                    db,
                    result.record,
                    state=HoldState.HELD,
                    delivery_json=delivery,
                    answer_json=answer,
                    boot_id=result.boot_id,
                    tries=0,
                    why="",
                )
                mark_stale(db, result.record.id, result.delivery)
            return tuple(read_row(db, result.record.id) for result, _, _ in written)

        return await self._committer.run(work)

    async def release(self, records: Sequence[Record]) -> None:
        """Mark holds as RELEASING: their drivers are about to undo them."""

        def work(db: sqlite3.Connection) -> None:
            for record in records:
                self._set(db, record, state=HoldState.RELEASING)

        await self._committer.run(work)

    async def fail(self, record: Record, why: str) -> int:
        """Count a failure of a hold's driver; return how many there were."""

        def work(db: sqlite3.Connection) -> int:
            self._set(db, record, tries=record.tries + 1, why=_short(why))
            return record.tries + 1

        return await self._committer.run(work)

    async def retire(self, record: Record, state: HoldState, why: str = "") -> None:
        """Take a hold from its claim: the device alone waits, to be released or undone.

        It then belongs to nobody, so that not even its own claim can take it again meanwhile.
        """

        def work(db: sqlite3.Connection) -> None:
            owner = (
                record.claim.uid if has_rival(db, record.id) else f"{record.claim.uid}/{record.id}"
            )
            parts = give_back_parts(db, record.id)
            self._set(db, record, state=state, retired=1, owner=owner, why=_short(why), tries=0)
            take_parts(db, record.id, owner, record.device.name, parts)

        await self._committer.run(work)

    async def forget(self, records: Iterable[Record]) -> None:
        """Remove holds: everything is undone."""
        gone = tuple(records)

        def work(db: sqlite3.Connection) -> None:
            for record in gone:
                delete(db, record)

        await self._committer.run(work)

    def remember(self, record: Record, facts: Mapping[str, Any]) -> None:
        """Keep what a driver asks to, durably. Blocks; for worker threads.

        Raises ``LedgerUnwritable``, also for a hold that has ended: a call that comes too late must
        not change the hardware.
        """
        text = dump(dict(facts))

        def work(db: sqlite3.Connection) -> None:
            self._set(db, record, remembered_json=text)

        self._committer.run_blocking(work)

    # -- the rest ---------------------------------------------------------------------------------

    async def adopt(self, found: Sequence[Found], boot_id: str) -> None:
        """Write down holds that were found, all of them or none. Raises ``HoldConflict``."""
        now, written = self._clock(), [(one, dump(one.delivery)) for one in found]

        def work(db: sqlite3.Connection) -> None:
            for one, text in written:
                open_claim(db, one.claim, "", now)
                row = open_hold(db, one.claim, one.want, boot_id, now)
                db.execute(
                    "UPDATE holds SET state = ?, delivery_json = ?, rebuilt = 1 WHERE id = ?",
                    (HoldState.HELD, text, row),
                )

        await self._committer.run(work)

    async def name_claim(self, key: ClaimKey) -> None:
        """Write down what a claim is called that was found in its CDI file alone."""

        def work(db: sqlite3.Connection) -> None:
            db.execute(
                "UPDATE claims SET namespace = ?, name = ? WHERE uid = ? AND dra_driver = ?",
                (key.namespace, key.name, key.uid, key.dra_driver),
            )
            db.execute(
                "UPDATE holds SET rev = ? WHERE uid = ? AND dra_driver = ?",
                (revision(), key.uid, key.dra_driver),
            )

        await self._committer.run(work)

    async def rebuilt(self) -> None:
        """End the time in which holds may be missing."""
        await self._committer.run(lambda db: db.execute("DELETE FROM meta WHERE key='rebuilding'"))
        self.rebuilding = False

    async def keep_listing(
        self, driver: str, devices: Iterable[Device], withheld: Iterable[Withheld]
    ) -> bool:
        """Keep a driver's good list; return whether it was another than the one kept.

        A device that could not be read again, for a value of a foreign type or text that is none,
        is left out: it must not cost the others their place after a restart.
        """
        listing = KeptListing(tuple(devices), tuple(withheld))
        text = await self._in_thread(lambda: _kept(listing))
        query = "SELECT 1 FROM listings WHERE driver = ? AND listing = ?"
        if await self._in_thread(lambda: self._reader.query(query, driver, text)):
            return False
        row = (driver, text, self._clock())
        await self._committer.run(
            lambda db: db.execute("INSERT OR REPLACE INTO listings VALUES (?, ?, ?)", row)
        )
        return True

    async def write(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Do something in one transaction, shared with whatever else is being written."""
        return await self._committer.run(work)

    async def query(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        """Read rows as they are on disk now. Raises ``LedgerError``."""
        return await self._in_thread(lambda: self._reader.query(sql, *values))

    async def audit(self, who: str, what: str, facts: Mapping[str, Any]) -> None:
        """Write down what an operator did."""
        now = self._clock()
        await self._committer.run(lambda db: keep_audit(db, now, who, what, facts))

    def on_lost(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` once the file is not at its path any more; from a thread."""
        self._on_lost = watcher

    def _check(self) -> None:
        """Refuse to write a file that another agent does not see: it would take what we took."""
        if _identity(self.path) != self._identity:
            self._on_lost()
            raise LedgerLost(str(self.path))

    def on_change(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` when records changed, by this agent or another; from a thread."""
        self._watchers.append(watcher)

    def _committed(self) -> None:
        found = self._reader.read()
        if found is not self._shown:
            self._shown = found
            for watcher in tuple(self._watchers):
                watcher()

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(_READERS)
        return await anyio.to_thread.run_sync(work, limiter=self._threads)

    def _set(self, db: sqlite3.Connection, record: Record, **columns: Any) -> None:
        columns |= {"changed": self._clock(), "rev": revision()}
        names = ", ".join(f"{name} = :{name}" for name in columns)
        changed = db.execute(
            f"UPDATE holds SET {names} WHERE id = :id",  # noqa: S608 - our own column names
            {**columns, "id": record.id},
        )
        if changed.rowcount != 1:
            raise LedgerUnwritable(str(self.path), f"the hold of {record.holder} has ended")


def _kept(listing: KeptListing) -> str:
    try:
        text = dump(listing)
        load(KeptListing, text)
    except BadValue:
        devices = tuple(filter(_keeps, listing.devices))
        text = dump(KeptListing(devices, tuple(filter(_keeps, listing.withheld))))
    return text


def _keeps(item: Device | Withheld) -> bool:
    try:
        load(type(item), dump(item))
    except BadValue:
        return False
    return True


def _identity(path: Path) -> tuple[int, int] | None:
    """Return which file is at a path; None for none. Raises ``LedgerUnwritable``."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LedgerUnwritable(str(path), str(error.strerror)) from error
    return found.st_dev, found.st_ino


def _short(why: str) -> str:
    return why[:500].encode("utf-8", "replace").decode()


def read_records(directory: Path) -> tuple[Record, ...]:
    """Read every record with no agent running; for commands. Blocks. Raises ``LedgerError``.

    No file is no hold.
    """
    path = directory / "ledger.db"
    if not path.exists():
        return ()
    try:
        opened = Reader(path)
    except sqlite3.Error as error:
        raise told(path, error) from error
    with closing(opened) as reader:
        return reader.read()


__all__ = [
    "Audited",
    "KeptListing",
    "Ledger",
    "Record",
    "Result",
    "Want",
    "read_records",
]
