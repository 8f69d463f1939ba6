"""``hardpoint holds``: which claim holds which device, for how long, and which pods have it.

An extended resource that the kubelet gave out stands where a claim's namespace and name would. A
device that is being released is held too, to whoever asks by ``--device``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hardpoint._core.ledger.grantrows import KnownRelease
from hardpoint._core.ledger.ledger import read_records
from hardpoint._core.ledger.records import Record
from hardpoint._core.levers import is_lost, is_rebuilding, read_book
from hardpoint._core.state import agent_runs, read_status
from hardpoint.cli import holds_forget
from hardpoint.cli.common import add_json, add_settings, settings_of
from hardpoint.cli.output import as_json, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_settings(parser)
    add_json(parser)
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="only holds of this device; exit status 0 if it is held or being released, 3 if free",
    )

    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    holds_forget.add_arguments(
        actions.add_parser("forget", help="let go of what no pod has; you made sure of it")
    )


def run(arguments: argparse.Namespace) -> int:
    """Read the ledger and print; or forget a hold, which is written to the audit trail."""
    settings = settings_of(arguments)
    if arguments.action == "forget":
        return holds_forget.run(arguments, settings)
    state = settings.paths.state
    records, pods = read_records(state), pods_of(state)
    releasing: list[KnownRelease] = []
    unknown = ""
    if arguments.device:
        records = tuple(r for r in records if r.device.name == arguments.device)
        releasing, unknown = _not_free(state, arguments.device)
    if arguments.json:
        holds = [{**record_json(record), "pods": pods.get(_who(record))} for record in records]
        as_json([*holds, *(_releasing_json(one, arguments.device) for one in releasing)])
    else:
        if records or not (releasing or unknown):
            _print(records, pods, arguments.device)
        for one in releasing:
            print(f"{arguments.device} is not free: {sentence(one)}.")
        if unknown:
            print(f"{arguments.device} may be held: {unknown}.")
    held = records or releasing or unknown
    return 3 if arguments.device and not held else 0


def _not_free(state: Path, device: str) -> tuple[list[KnownRelease], str]:
    """Return the releases that a device is in, and why that it is in none may not be so."""
    book = read_book(state)
    releasing = [r for r in book.releases if any(key.name == device for key in r.keys)]
    if is_rebuilding(state):
        return releasing, "a ledger was begun anew, and what is held has not been found again"
    if is_lost(state):
        return releasing, "which releases were pending is not known any more"
    if book.unreadable:
        return releasing, f"of what is written down something cannot be read: {book.unreadable[0]}"
    return releasing, ""


def sentence(release: KnownRelease) -> str:
    """Say how far a release is."""
    if release.over:
        return f"allocation {release.word} is released, which its source has not heard yet"
    return f"it is being released from allocation {release.word}, for {age(release.since)} by now"


def _releasing_json(release: KnownRelease, device: str) -> dict[str, Any]:
    return {
        "device": device,
        "claim": None,
        "state": "releasing",
        "allocation": release.grant.allocation,
        "source": release.grant.source,
        "since": release.since,
        "why": sentence(release),
        "pods": None,
    }


def pods_of(state: Path) -> dict[tuple[str, str], list[str] | None]:
    """Return which pods have what, by the hold's UID and device, as the agent that runs says.

    None, or left out, is not known: the kubelet does not say, or no agent asks it.
    """
    if not agent_runs(state):
        return {}
    holds = read_status(state).get("holds", ())
    return {(one.get("uid", ""), one["device"]): one.get("pods") for one in holds}


def _who(record: Record) -> tuple[str, str]:
    return record.claim.uid, record.device.name


def _pods(pods: list[str] | None) -> str:
    if pods is None:
        return "?"
    return " ".join(pods) or "none"


def _print(
    records: Sequence[Record],
    pods: Mapping[tuple[str, str], list[str] | None],
    device: str | None,
) -> None:
    rows = [
        (
            r.device.name,
            str(r.claim),
            r.allotment.request,
            "releasing" if r.retired and r.state.value == "held" else r.state.value,
            age(r.created),
            _pods(pods.get(_who(r))),
            r.claim.uid,
        )
        for r in records
    ]
    empty = f"Nobody holds {device}." if device else "No claim holds a device."
    table(("device", "claim", "request", "state", "age", "pods", "uid"), rows, empty)


def record_json(record: Record) -> dict[str, Any]:
    """Return a hold as plain JSON values. Times are seconds since the epoch."""
    return {
        "device": record.device.name,
        "driver": record.device.driver,
        "domain": record.claim.dra_driver,
        "claim": {
            "namespace": record.claim.namespace,
            "name": record.claim.name,
            "uid": record.claim.uid,
        },
        "request": record.allotment.request,
        "share_id": record.allotment.share_id,
        "admin_access": record.allotment.admin_access,
        "state": record.state.value,
        "releasing": record.retired,
        "why": record.why,
        "since": record.created,
        "parts": [] if record.allotment.admin_access else [str(p) for p in record.device.all_parts],
    }


def age(since: float) -> str:
    """Return how long ago that was: ``12s``, ``5m``, ``3h``, ``9d``."""
    seconds = max(0, int(time.time() - since))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size or (unit == "d" and seconds >= size):
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
