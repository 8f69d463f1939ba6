"""The ledger's rows: how a hold and its parts are written, within a transaction of the caller's."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable

from hardpoint._core.ledger.codec import dump
from hardpoint._core.ledger.records import SELECT, Record, Want, record_of
from hardpoint.errors import HoldConflict
from hardpoint.model import ClaimKey, Delivery, HoldState, Part

NUMBERED = ("char:", "block:")
"""Parts that are nodes by their numbers, which the kernel gives out anew."""


def revision() -> int:
    """Return a number that no other version of a row has."""
    return int.from_bytes(os.urandom(7), "big")


def read_row(db: sqlite3.Connection, row: int) -> Record:
    """Read one hold."""
    return record_of(db.execute(f"{SELECT} WHERE h.id = ?", (row,)).fetchone())


def open_claim(db: sqlite3.Connection, key: ClaimKey, pod_claim_name: str, now: float) -> None:
    """Write down what a claim is called."""
    db.execute(
        "INSERT INTO claims VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (uid, dra_driver) DO UPDATE SET "
        "namespace = excluded.namespace, name = excluded.name, "
        "pod_claim_name = excluded.pod_claim_name",
        (key.uid, key.dra_driver, key.namespace, key.name, pod_claim_name, now),
    )


def open_hold(db: sqlite3.Connection, key: ClaimKey, want: Want, boot_id: str, now: float) -> int:
    """Open a hold with its parts, as PREPARING; return its row. Raises ``HoldConflict``."""
    columns = {
        "uid": key.uid,
        "dra_driver": key.dra_driver,
        "owner": key.uid,
        "request": want.allotment.request,
        "device": want.device.name,
        "share_id": want.allotment.share_id,
        "driver": want.device.driver,
        "cdi_vendor": want.cdi_vendor,
        "cdi_name": want.cdi_name,
        "state": HoldState.PREPARING,
        "undo": want.undo,
        "boot_id": boot_id,
        "device_json": dump(want.device),
        "allotment_json": dump(want.allotment),
        "created": now,
        "changed": now,
        "rev": revision(),
    }
    names, values = ", ".join(columns), ", ".join(f":{name}" for name in columns)
    inserted = db.execute(
        f"INSERT INTO holds ({names}) VALUES ({values})",  # noqa: S608 - our own column names
        columns,
    )
    row = inserted.lastrowid or 0
    take_parts(db, row, key.uid, want.device.name, want.parts)
    return row


def take_parts(
    db: sqlite3.Connection, row: int, owner: str, device: str, parts: Iterable[Part]
) -> None:
    """Take parts for a hold. Raises ``HoldConflict`` naming who has one."""
    for part in parts:
        other = db.execute(
            "SELECT owner FROM owners WHERE part = ? AND owner <> ? AND (exclusive OR ?)",
            (part.name, owner, part.exclusive),
        ).fetchone()
        if other:
            raise HoldConflict(device, part.name, _holder(db, part.name, other["owner"]))
        try:
            db.execute(
                "INSERT INTO parts (hold, owner, part, exclusive) VALUES (?, ?, ?, ?)",
                (row, owner, part.name, part.exclusive),
            )
        except sqlite3.IntegrityError as error:
            raise HoldConflict(device, part.name, "another claim") from error


def cover(db: sqlite3.Connection, record: Record, parts: Iterable[Part]) -> None:
    """Take what a hold is about to deliver, beside what it has. Raises ``HoldConflict``.

    A stale number, which another hold has and delivers no more, is taken from it: nodes are
    renumbered one after the other, and two that were swapped would wait for each other. To a new
    claim it is not given, since the old holder's container may have it open still.
    """
    owner = record.claim.uid
    for part in parts:
        for rival in _rivals(db, part, owner):
            if not rival["stale"]:
                raise HoldConflict(record.device.name, part.name, record_of(rival).holder)
            _give_back(db, rival["id"], part.name)
        _give_back(db, record.id, part.name)
        take_parts(db, record.id, owner, record.device.name, (part,))


def _rivals(db: sqlite3.Connection, part: Part, owner: str) -> list[sqlite3.Row]:
    select = SELECT.replace("SELECT h.*", "SELECT p.stale, h.*")
    return db.execute(
        f"{select} JOIN parts p ON p.hold = h.id WHERE p.part = ? AND p.owner <> ? "
        "AND (p.exclusive OR ?)",
        (part.name, owner, part.exclusive),
    ).fetchall()


def _give_back(db: sqlite3.Connection, row: int, part: str) -> None:
    db.execute("DELETE FROM parts WHERE hold = ? AND part = ?", (row, part))


def mark_stale(db: sqlite3.Connection, row: int, delivery: Delivery) -> None:
    """Mark the numbers of a hold that no file of its claim delivers any more, and no others."""
    delivered = {node.part for node in delivery.nodes}
    for part in _parts(db, row):
        stale = part.name.startswith(NUMBERED) and part.name not in delivered
        db.execute(
            "UPDATE parts SET stale = ? WHERE hold = ? AND part = ?", (stale, row, part.name)
        )


def numbers_of(db: sqlite3.Connection, row: int) -> tuple[Part, ...]:
    """Return the node numbers that a hold has."""
    return tuple(part for part in _parts(db, row) if part.name.startswith(NUMBERED))


def keep_stale(db: sqlite3.Connection, row: int, owner: str, parts: Iterable[Part]) -> None:
    """Let a hold keep numbers that its claim had, beside those it has taken."""
    for part in parts:
        db.execute(
            "INSERT OR IGNORE INTO parts (hold, owner, part, exclusive, stale) "
            "VALUES (?, ?, ?, ?, 1)",
            (row, owner, part.name, part.exclusive),
        )


def drop_numbers(db: sqlite3.Connection, boot_id: str) -> None:
    """Give back the node numbers of holds from another boot: there they named something else."""
    for prefix in NUMBERED:
        db.execute(
            "DELETE FROM parts WHERE part GLOB ? AND hold IN "
            "(SELECT id FROM holds WHERE boot_id <> ?)",
            (f"{prefix}*", boot_id),
        )


def _holder(db: sqlite3.Connection, part: str, owner: str) -> str:
    row = db.execute(
        f"{SELECT} JOIN parts p ON p.hold = h.id WHERE p.part = ? AND p.owner = ?", (part, owner)
    ).fetchone()
    return record_of(row).holder if row else "another claim"


def strongest(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return each part once; what is taken both ways is taken exclusively."""
    found: dict[str, bool] = {}
    for part in parts:
        found[part.name] = found.get(part.name, False) or part.exclusive
    return tuple(Part(name, alone) for name, alone in sorted(found.items()))


def give_back_parts(db: sqlite3.Connection, row: int) -> tuple[Part, ...]:
    """Give back a hold's parts, and return them."""
    parts = _parts(db, row)
    db.execute("DELETE FROM parts WHERE hold = ?", (row,))
    return parts


def has_rival(db: sqlite3.Connection, row: int) -> bool:
    """Say whether another hold of the same claim has a part that this one has, not both shared."""
    found = db.execute(
        "SELECT 1 FROM parts p JOIN parts q ON q.part = p.part AND q.owner = p.owner "
        "AND q.hold <> p.hold WHERE p.hold = ? AND (p.exclusive OR q.exclusive)",
        (row,),
    )
    return found.fetchone() is not None


def _parts(db: sqlite3.Connection, row: int) -> tuple[Part, ...]:
    found = db.execute("SELECT part, exclusive FROM parts WHERE hold = ?", (row,))
    return tuple(Part(r["part"], bool(r["exclusive"])) for r in found)


def delete(db: sqlite3.Connection, record: Record) -> None:
    """Remove a hold, and its claim with the last one."""
    db.execute("DELETE FROM parts WHERE hold = ?", (record.id,))
    db.execute("DELETE FROM holds WHERE id = ?", (record.id,))
    key = (record.claim.uid, record.claim.dra_driver)
    db.execute(
        "DELETE FROM claims WHERE uid = ? AND dra_driver = ? AND NOT EXISTS "
        "(SELECT 1 FROM holds h WHERE h.uid = claims.uid AND h.dra_driver = claims.dra_driver)",
        key,
    )
