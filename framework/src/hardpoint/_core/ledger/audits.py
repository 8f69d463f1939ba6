"""The audit trail: what operators did against what the agent knew, by whom, and on what grounds."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hardpoint._core.ledger.codec import dump, load_facts
from hardpoint.errors import BadValue

READ = "SELECT at, who, what, facts FROM audit ORDER BY id"


@dataclass(frozen=True, slots=True)
class Audited:
    """Something that an operator did."""

    at: float
    who: str
    what: str
    facts: Mapping[str, Any]


def audits_of(rows: Iterable[sqlite3.Row]) -> tuple[Audited, ...]:
    """Read what ``READ`` found; facts that cannot be read say so."""
    return tuple(Audited(r["at"], r["who"], r["what"], _facts(r["facts"])) for r in rows)


def _facts(text: str) -> Mapping[str, Any]:
    try:
        return load_facts(text)
    except BadValue as error:
        return {"unreadable": str(error)}


def keep_audit(
    db: sqlite3.Connection, at: float, who: str, what: str, facts: Mapping[str, Any]
) -> None:
    """Write down what an operator did, in the transaction that does it."""
    row = (at, who, what, dump(dict(facts)))
    db.execute("INSERT INTO audit (at, who, what, facts) VALUES (?, ?, ?, ?)", row)
