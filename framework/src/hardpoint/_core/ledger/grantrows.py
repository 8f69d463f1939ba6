"""What the ledger knows of grants and releases, and the rows it is read from.

A grant is written down before its devices are offered, and its end before anything is undone: a
grant that ends while no agent runs is noticed by the next one. ``granted`` and ``releasing`` say
which device is in which; a hold is opened in the same transaction that looks there, so that no
claim that was admitted a moment ago takes a device whose release has begun.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hardpoint._core.ledger.codec import dump, load
from hardpoint._core.ledger.records import Want
from hardpoint.errors import BadValue, HoldDenied
from hardpoint.grants import Grant, GrantOutcome, Outcome, Release
from hardpoint.model import Claim, Device

WITHDRAWN = "withdrawn"
"""The key in ``meta`` under which it is said why nothing is offered."""


@dataclass(frozen=True, slots=True, order=True)
class DeviceKey:
    """What a device is known by on a node: the DRA driver's name, and its own."""

    dra_driver: str
    name: str


@dataclass(frozen=True, slots=True)
class Meant:
    """A device that a grant means."""

    dra_driver: str
    device: Device

    @property
    def key(self) -> DeviceKey:
        """What it is known by."""
        return DeviceKey(self.dra_driver, self.device.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGrant:
    """A grant as its source stated it last, and what became of it."""

    grant: Grant
    devices: tuple[Meant, ...]
    """What is in force; none of a grant that is refused."""
    outcome: GrantOutcome
    told: bool = False
    since: float = 0.0

    @property
    def key(self) -> tuple[str, str]:
        """Source and allocation."""
        return self.grant.source, self.grant.allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRelease:
    """A release that its source has not been told to be over."""

    id: str
    grant: Grant
    """The grant that ended; for a drain one that nobody stated."""
    devices: tuple[Meant, ...]
    since: float
    report: bool = True
    """False where the grant itself is in force still, for fewer devices, and for a drain."""
    over: bool = False
    """Nobody uses them any more: only the source has to be told."""

    @property
    def key(self) -> tuple[str, str]:
        """Source and allocation."""
        return self.grant.source, self.grant.allocation

    @property
    def word(self) -> str:
        """What it is called, to people: the allocation, or what it is of."""
        return self.grant.allocation or self.grant.source

    @property
    def keys(self) -> frozenset[DeviceKey]:
        """What its devices are known by."""
        return frozenset(one.key for one in self.devices)

    def release(self, *, left: float = 0.0) -> Release:
        """Return it as policies see it."""
        return Release(
            id=self.id,
            allocation=self.grant.allocation,
            source=self.grant.source,
            devices=tuple(one.device for one in self.devices),
            since=self.since,
            left=left,
            dra_drivers=tuple(sorted({one.dra_driver for one in self.devices})),
        )


@dataclass(frozen=True, slots=True)
class Book:
    """Everything that is written down of grants and releases."""

    grants: tuple[KnownGrant, ...] = ()
    releases: tuple[KnownRelease, ...] = ()
    withdrawn: str = ""
    unreadable: tuple[str, ...] = ()
    """Rows that cannot be read, for people: what they were about is not known."""
    blocked: Mapping[DeviceKey, tuple[str, str]] = field(default_factory=dict, compare=False)
    """Devices that such rows are about, by the index that is kept beside them; each with source and
    allocation of its grant, or two empty words for a release."""


READ = (
    "SELECT 'grant' AS what, source, allocation AS id, allocation, grant_json, devices_json, "
    "outcome, reason, told AS flag, since, 0 AS over FROM grants UNION ALL "
    "SELECT 'release', source, id, allocation, grant_json, devices_json, '', '', report, since, "
    "over FROM releases UNION ALL "
    "SELECT 'withdrawn', '', '', '', '', '', '', value, 0, 0, 0 FROM meta WHERE key='withdrawn'"
)


def book_of(rows: Iterable[sqlite3.Row]) -> Book:
    """Read what ``READ`` found; a row that cannot be read is said."""
    grants, releases, unreadable = list[KnownGrant](), list[KnownRelease](), list[str]()
    withdrawn = ""
    for row in rows:
        if row["what"] == "withdrawn":
            withdrawn = str(row["reason"])
            continue
        try:
            if row["what"] == "grant":
                grants.append(_grant(row))
            else:
                releases.append(_release(row))
        except (BadValue, ValueError, TypeError) as error:
            unreadable.append(f"{row['what']} {row['id']}: {error}")
    return Book(tuple(grants), tuple(releases), withdrawn, tuple(unreadable))


INDEX = (
    "SELECT source, allocation, '' AS id, dra_driver, device FROM granted UNION ALL "
    "SELECT '', '', id, dra_driver, device FROM releasing"
)


def blocking(book: Book, rows: Iterable[sqlite3.Row]) -> Book:
    """Return a book with the devices of its unreadable rows; ``INDEX`` found ``rows``."""
    read = {(*known.key, "") for known in book.grants} | {("", "", r.id) for r in book.releases}
    return replace(
        book,
        blocked={
            DeviceKey(row["dra_driver"], row["device"]): (row["source"], row["allocation"])
            for row in rows
            if (row["source"], row["allocation"], row["id"]) not in read
        },
    )


def _grant(row: sqlite3.Row) -> KnownGrant:
    return KnownGrant(
        grant=load(Grant, row["grant_json"]),
        devices=load(tuple[Meant, ...], row["devices_json"]),
        outcome=GrantOutcome(Outcome(row["outcome"]), str(row["reason"])),
        told=bool(row["flag"]),
        since=float(row["since"]),
    )


def _release(row: sqlite3.Row) -> KnownRelease:
    return KnownRelease(
        id=str(row["id"]),
        grant=load(Grant, row["grant_json"]),
        devices=load(tuple[Meant, ...], row["devices_json"]),
        since=float(row["since"]),
        report=bool(row["flag"]),
        over=bool(row["over"]),
    )


# -- writing, within a transaction of the caller's ------------------------------------------------


def keep_grant(db: sqlite3.Connection, known: KnownGrant) -> None:
    """Write down a grant in place of what was known of it."""
    forget_grant(db, known.key)
    source, allocation = known.key
    db.execute(
        "INSERT INTO grants VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            source,
            allocation,
            dump(known.grant),
            dump(known.devices),
            known.outcome.outcome.value,
            known.outcome.reason,
            known.told,
            known.since,
        ),
    )
    for one in known.devices:
        row = (source, allocation, one.dra_driver, one.device.name)
        db.execute("INSERT OR IGNORE INTO granted VALUES (?, ?, ?, ?)", row)


def forget_grant(db: sqlite3.Connection, key: tuple[str, str]) -> None:
    """Remove a grant."""
    db.execute("DELETE FROM granted WHERE source = ? AND allocation = ?", key)
    db.execute("DELETE FROM grants WHERE source = ? AND allocation = ?", key)


def keep_release(db: sqlite3.Connection, known: KnownRelease) -> None:
    """Write down a release in place of what was known of it."""
    forget_release(db, known.id)
    db.execute(
        "INSERT INTO releases VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            known.id,
            known.grant.source,
            known.grant.allocation,
            dump(known.grant),
            dump(known.devices),
            known.since,
            known.report,
            known.over,
        ),
    )
    for one in known.devices:
        row = (known.id, one.dra_driver, one.device.name)
        db.execute("INSERT OR IGNORE INTO releasing VALUES (?, ?, ?)", row)


def forget_release(db: sqlite3.Connection, id_: str) -> None:
    """Remove a release."""
    db.execute("DELETE FROM releasing WHERE id = ?", (id_,))
    db.execute("DELETE FROM releases WHERE id = ?", (id_,))


def withdraw(db: sqlite3.Connection, why: str) -> None:
    """Write down that nothing is offered, or, with no reason, that it is again."""
    if why:
        db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (WITHDRAWN, why))
    else:
        db.execute("DELETE FROM meta WHERE key = ?", (WITHDRAWN,))


def end_release(db: sqlite3.Connection, known: KnownRelease) -> bool:
    """Write down that nobody uses a release's devices; say whether that is so in the ledger, too.

    It is not while a hold on one of them is there, of a claim or of what its driver still scrubs,
    nor where the release is another by now, since some of its devices are granted again.
    """
    if not is_written(db, known):
        return False
    if any(holders(db, one.key, known.grant.allocation) for one in known.devices):
        return False
    db.execute("UPDATE releases SET over = 1 WHERE id = ?", (known.id,))
    return True


def is_written(db: sqlite3.Connection, known: KnownRelease) -> bool:
    """Say whether a release is written down still, as it is known."""
    found = db.execute(
        "SELECT 1 FROM releases WHERE id = ? AND devices_json = ? AND report = ? AND over = ?",
        (known.id, dump(known.devices), known.report, known.over),
    ).fetchone()
    return found is not None


def holders(db: sqlite3.Connection, key: DeviceKey, allocation: str) -> list[str]:
    """Return the UIDs of what holds a device under an allocation; of a drain, under any."""
    rows = db.execute(
        "SELECT uid, allotment_json FROM holds WHERE dra_driver = ? AND device = ?",
        (key.dra_driver, key.name),
    )
    return [str(row["uid"]) for row in rows if _is_under(str(row["allotment_json"]), allocation)]


def _is_under(allotment: str, allocation: str) -> bool:
    """Say whether a hold is under an allocation; one that cannot be read may be under any."""
    if not allocation:
        return True
    try:
        return load(_Under, allotment).allocation in ("", allocation)
    except BadValue:
        return True


@dataclass(frozen=True, slots=True)
class _Under:
    allocation: str = ""


def refuse_ungranted(db: sqlite3.Connection, claim: Claim, wants: Sequence[Want]) -> None:
    """Raise ``HoldDenied`` for what may not be had at the very moment that it is taken."""
    if not wants:
        return
    withdrawn = db.execute("SELECT value FROM meta WHERE key = ?", (WITHDRAWN,)).fetchone()
    if withdrawn:
        raise HoldDenied(f"nothing is offered on this node: {withdrawn['value']}", "withdrawn")
    for want in wants:
        key = DeviceKey(claim.key.dra_driver, want.device.name)
        if want.allotment.allocation:
            _refuse_other(db, key, want.allotment.allocation)
        found = db.execute(
            "SELECT allocation FROM releases JOIN releasing USING (id) "
            "WHERE dra_driver = ? AND device = ?",
            (key.dra_driver, key.name),
        ).fetchone()
        if found:
            raise HoldDenied(
                f"device {key.name} is not released from allocation {found['allocation']} yet",
                "releasing",
            )


def _refuse_other(db: sqlite3.Connection, key: DeviceKey, allocation: str) -> None:
    found = db.execute(
        "SELECT 1 FROM granted WHERE dra_driver = ? AND device = ? AND allocation = ?",
        (key.dra_driver, key.name, allocation),
    ).fetchone()
    if not found:
        raise HoldDenied(
            f"device {key.name} is not granted under allocation {allocation} any more", "revoked"
        )


def without(known: KnownRelease, keys: Iterable[DeviceKey]) -> KnownRelease:
    """Return a release without some of its devices: they are granted again."""
    gone = frozenset(keys)
    return replace(known, devices=tuple(d for d in known.devices if d.key not in gone))
