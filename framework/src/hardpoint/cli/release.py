"""``hardpoint release``: grants that ended, who may be using their devices, and the levers.

What is pending is in the ledger, also while no agent runs; who uses the devices is what the agent
that runs found last.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardpoint._core.grants.lost import MARKER
from hardpoint._core.ledger.grantrows import Book, KnownRelease
from hardpoint._core.ledger.ledger import read_records
from hardpoint._core.ledger.records import Record
from hardpoint._core.levers import is_lost, read_book
from hardpoint._core.state import agent_runs, read_status
from hardpoint.cli import release_force
from hardpoint.cli.common import add_json, add_settings, note_no_agent, settings_of
from hardpoint.cli.holds import age
from hardpoint.cli.holds_forget import add_yes
from hardpoint.cli.output import as_json, fail, table
from hardpoint.cli.release_force import holds_of
from hardpoint.settings import AgentSettings

NO_AGENT = "not known: no agent runs"
NOT_YET = "not known yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A release as it is shown. ``users`` is None where it is not known; ``why`` says so."""

    id: str
    allocation: str
    source: str
    devices: tuple[str, ...]
    since: float
    state: str
    users: tuple[str, ...] | None
    why: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_settings(parser)
    add_json(parser)
    add_yes(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--force",
        metavar="ALLOCATION",
        help="call a release over against the evidence; you made sure that nobody uses its devices",
    )
    what.add_argument(
        "--clear-lost",
        action="store_true",
        help="nobody uses what may have been pending when the ledger was lost; you made sure of it",
    )
    parser.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="NAME",
        help="with --force: only this device of it; may be given again",
    )
    parser.add_argument(
        "--holds", action="store_true", help="with --force: forget who holds the devices, too"
    )


def run(arguments: argparse.Namespace) -> int:
    """List what is pending, or pull a lever, which is written to the audit trail."""
    settings = settings_of(arguments)
    if arguments.force is not None:
        return release_force.force(arguments, settings)
    if arguments.device or arguments.holds:
        return fail("--device and --holds go with --force ALLOCATION")
    if arguments.clear_lost:
        return release_force.clear_lost(arguments, settings)
    return _list(arguments, settings)


def _list(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    state = settings.paths.state
    book = read_book(state)
    found = list(shown(state, book, read_records(state)))
    if arguments.json:
        as_json([{name: getattr(one, name) for name in Shown.__slots__} for one in found])
        return 0
    rows = [
        (
            one.allocation or f"({one.source.rpartition('/')[2]})",
            one.source,
            " ".join(one.devices),
            age(one.since),
            one.state,
            "; ".join(one.users) if one.users else one.why,
        )
        for one in found
    ]
    headings = ("allocation", "source", "devices", "since", "state", "users")
    table(headings, rows, "No release is pending.")
    _doubts(settings, book)
    return 0


def _doubts(settings: AgentSettings, book: Book) -> None:
    """Say what the list cannot tell."""
    for row in book.unreadable:
        print(f"\n! {row}: what it was about is not known")
    granted = sorted(known.grant.allocation for known in book.grants if known.outcome.in_force)
    if granted:
        names = ", ".join(granted)
        note_no_agent(
            settings, f"whether {names}, granted when one ran last, has ended is not known"
        )
    state = settings.paths.state
    if is_lost(state):
        print(
            f"\n! which releases were pending is not known any more ({state / MARKER}); if nobody "
            "uses any device outside the grants: hardpoint release --clear-lost"
        )


def shown(state: Path, book: Book, records: Iterable[Record]) -> Iterable[Shown]:
    """Yield every release that is written down, and those that only the agent that runs knows."""
    said: Mapping[str, Any] = read_status(state) if agent_runs(state) else {}
    looked = {str(one.get("id", "")): one for one in said.get("releases", ())}
    nobody = NOT_YET if said else NO_AGENT
    held = tuple(records)
    for known in book.releases:
        yield _shown(known, looked.pop(known.id, None), held, nobody)
    for id_, one in looked.items():
        users = tuple(str(user) for user in one.get("users", ()))
        yield Shown(
            id=id_,
            allocation=str(one["allocation"]),
            source=str(one["source"]),
            devices=tuple(one["devices"]),
            since=float(one["since"]),
            state="pending",
            users=users or None,
            why="" if users else NOT_YET,
        )


def _shown(
    known: KnownRelease,
    looked: Mapping[str, Any] | None,
    records: Iterable[Record],
    nobody: str,
) -> Shown:
    users: tuple[str, ...] = tuple(str(user) for user in (looked or {}).get("users", ()))
    if not users:
        users = tuple(f"{record.holder}" for record in holds_of(known, records))
    why = "" if users else nobody
    if known.over:
        users, why = (), "nobody; its source has not heard yet"
    return Shown(
        id=known.id,
        allocation=known.grant.allocation,
        source=known.grant.source,
        devices=tuple(one.device.name for one in known.devices),
        since=known.since,
        state="over" if known.over else "pending",
        users=users or (() if known.over else None),
        why=why,
    )
