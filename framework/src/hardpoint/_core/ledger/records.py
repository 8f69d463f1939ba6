"""What the ledger knows of one hold, and the rows it is read from."""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hardpoint._core.ledger.codec import load, load_facts
from hardpoint._core.ledger.schema import connect, told
from hardpoint.errors import BadValue
from hardpoint.model import (
    Allotment,
    Claim,
    ClaimKey,
    Delivery,
    Device,
    Hold,
    HoldState,
    Part,
    PreparedDevice,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """A device that a claim is to hold: what is written down before anything is changed."""

    allotment: Allotment
    device: Device
    cdi_vendor: str
    cdi_name: str
    parts: tuple[Part, ...]
    """None with admin access, which takes nothing from anybody."""
    undo: bool
    """True if the driver has an ``unprepare_device``: without that driver there is no undoing."""


@dataclass(frozen=True, slots=True)
class Found:
    """A hold that only a CDI file, or a pod, tells of."""

    claim: ClaimKey
    want: Want
    delivery: Delivery


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A hold as the ledger keeps it."""

    id: int
    claim: ClaimKey
    pod_claim_name: str = ""
    allotment: Allotment
    device: Device
    cdi_vendor: str
    cdi_name: str
    state: HoldState
    retired: bool = False
    """True once the claim has its answer: only the device waits, to be undone or released."""
    undo: bool = False
    rebuilt: bool = False
    """True for a hold found in a CDI file after the ledger was lost: its requests are unknown."""
    boot_id: str = ""
    """The boot that the hold was last made true in."""
    delivery: Delivery | None = None
    answer: PreparedDevice | None = None
    remembered: Mapping[str, Any] = field(default_factory=dict)
    tries: int = 0
    why: str = ""
    created: float = 0.0
    changed: float = 0.0
    rev: int = 0
    """Another one each time that the hold is written."""
    readable: bool = True

    @property
    def subject(self) -> str:
        """What a hook call about this hold is keyed by: the same in every try."""
        return subject_of(self.claim.uid, self.allotment)

    @property
    def lock(self) -> str:
        """What whoever changes it locks: its claim, or itself when its claim is done with it."""
        return f"{self.claim.uid}/{self.id}" if self.retired else self.claim.uid

    @property
    def holder(self) -> str:
        """Who has the device, for people."""
        name = str(self.claim) if self.claim.name else f"claim {self.claim.uid}"
        if not self.retired:
            return name
        quarantined = self.state is HoldState.QUARANTINED
        return f"the {'quarantine' if quarantined else 'release'} after {name}"

    def hold(self, store: Callable[[Mapping[str, Any]], None] | None = None) -> Hold:
        """Return it as a driver sees it."""
        return Hold(
            claim=self.claim,
            device=self.device,
            request=self.allotment.request,
            share_id=self.allotment.share_id,
            consumed=self.allotment.consumed,
            state=self.state,
            remembered=self.remembered,
            store=store,
            allocation=self.allotment.allocation,
        )


@dataclass(frozen=True, slots=True)
class Result:
    """What making a hold true came to: it delivers this, in this boot."""

    record: Record
    delivery: Delivery
    answer: PreparedDevice
    boot_id: str


SELECT = (
    "SELECT h.*, c.namespace, c.name, c.pod_claim_name FROM holds h "
    "JOIN claims c ON c.uid = h.uid AND c.dra_driver = h.dra_driver"
)


def subject_of(uid: str, allotment: Allotment) -> str:
    """Return what hook calls about one allotment of a claim are keyed by."""
    share = f"/{allotment.share_id}" if allotment.share_id else ""
    return f"{uid}/{allotment.request}/{allotment.device}{share}"


def record_of(row: sqlite3.Row) -> Record:
    """Read a row. One that cannot be read keeps its parts and waits for an operator."""
    word, common = partial(_word, row), _common(row)
    try:
        allotment, device = load(Allotment, row["allotment_json"]), load(Device, row["device_json"])
        _check_agrees(row, allotment, device)
        return Record(
            **common,
            allotment=allotment,
            device=device,
            state=HoldState(row["state"]),
            delivery=load(Delivery, row["delivery_json"]) if row["delivery_json"] else None,
            answer=load(PreparedDevice, row["answer_json"]) if row["answer_json"] else None,
            remembered=load_facts(row["remembered_json"]),
            why=word("why"),
        )
    except (BadValue, ValueError, TypeError) as error:
        return Record(
            **common,
            allotment=Allotment(
                request=word("request"), device=word("device"), pool="", share_id=word("share_id")
            ),
            device=Device(name=word("device"), kind="unreadable", driver=word("driver")),
            state=HoldState.QUARANTINED,
            why=f"its record cannot be read: {error}",
            readable=False,
        )


def _common(row: sqlite3.Row) -> dict[str, Any]:
    """Return what is read of every row, one that is damaged too."""
    word, number = partial(_word, row), partial(_number, row)
    return {
        "id": row["id"],
        "claim": ClaimKey(word("uid"), word("namespace"), word("name"), word("dra_driver")),
        "pod_claim_name": word("pod_claim_name"),
        "cdi_vendor": word("cdi_vendor"),
        "cdi_name": word("cdi_name"),
        "retired": bool(row["retired"]),
        "undo": bool(row["undo"]),
        "rebuilt": bool(row["rebuilt"]),
        "boot_id": word("boot_id"),
        "tries": int(number("tries")),
        "created": number("created"),
        "changed": number("changed"),
        "rev": int(number("rev")),
    }


def _word(row: sqlite3.Row, column: str) -> str:
    """Read text; whatever SQLite finds in a damaged row becomes some."""
    found = row[column]
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)


def _number(row: sqlite3.Row, column: str) -> float:
    """Read a number of seconds or tries; what is none in a damaged row is 0."""
    found = row[column]
    return found if isinstance(found, int | float) and math.isfinite(found) else 0


def _check_agrees(row: sqlite3.Row, allotment: Allotment, device: Device) -> None:
    """Raise ``BadValue`` where a row says two things: its parts are those of the columns."""
    said = (device.name, device.driver, allotment.device, allotment.request, allotment.share_id)
    wanted = ("device", "driver", "device", "request", "share_id")
    for word, found in zip(wanted, said, strict=True):
        if row[word] != found:
            raise BadValue(word, found, f"{row[word]!r:.80}, as the row's own column has it")


def claim_of(records: tuple[Record, ...]) -> Claim:
    """Return the claim that records were written for."""
    first = records[0]
    return Claim(
        key=first.claim,
        allotments=tuple(record.allotment for record in records),
        pod_claim_name=first.pod_claim_name,
    )


class Reader:
    """Reads every record, decoding only those that changed. Usable from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._gate = threading.Lock()
        self._connection = connect(path)
        self._version: int | None = None
        self._known: dict[int, tuple[int, Record]] = {}
        self.latest: tuple[Record, ...] = ()
        """What the last read found: for showing, never for deciding."""

    def close(self) -> None:
        """End reading."""
        with self._gate:
            self._connection.close()

    def read(self) -> tuple[Record, ...]:
        """Return every record as it is on disk now. Raises ``LedgerError``."""
        with self._gate:
            try:
                return self._read()
            except sqlite3.Error as error:
                raise told(self._path, error) from error

    def query(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        """Run a query. Raises ``LedgerError``."""
        with self._gate:
            try:
                return self._connection.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise told(self._path, error) from error

    def contender(self, owner: str, parts: tuple[Part, ...]) -> tuple[str, str] | None:
        """Return a part that another owner has, and who it is. Raises ``LedgerError``."""
        for part in parts:
            rows = self.query(
                f"{SELECT} JOIN parts p ON p.hold = h.id WHERE p.part = ? AND p.owner <> ? "
                "AND (p.exclusive OR ?)",
                part.name,
                owner,
                part.exclusive,
            )
            if rows:
                return part.name, record_of(rows[0]).holder
        return None

    def _revisions(self) -> dict[int, int]:
        return {row: revision for row, (revision, _) in self._known.items()}

    def _read(self) -> tuple[Record, ...]:
        version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        if version == self._version:
            return self.latest
        known: dict[int, tuple[int, Record]] = {}
        self._connection.execute("BEGIN")
        try:
            for found in self._connection.execute("SELECT id, rev FROM holds ORDER BY id"):
                before = self._known.get(found["id"])
                if before is None or before[0] != found["rev"]:
                    query = f"{SELECT} WHERE h.id = ?"
                    row = self._connection.execute(query, (found["id"],)).fetchone()
                    before = (row["rev"], record_of(row))
                known[found["id"]] = before
        finally:
            self._connection.execute("COMMIT")
        if {row: rev for row, (rev, _) in known.items()} != self._revisions():
            self.latest = tuple(record for _, record in known.values())
        self._version, self._known = version, known
        return self.latest
