"""``hardpoint holds forget``: the lever for a hold that nobody will ever give back."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

import anyio

from hardpoint._core.ledger.ledger import read_records
from hardpoint._core.ledger.records import Record
from hardpoint._core.levers import levers
from hardpoint.cdi_files import CdiDirectory
from hardpoint.cli.operator import operator, sure, users_of
from hardpoint.cli.output import fail
from hardpoint.model import HoldState
from hardpoint.settings import AgentSettings

UNLISTED = (
    "The kubelet lists no pod that has it. It lists no ordinary init containers, and before "
    "Kubernetes 1.34 no claims."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("what", metavar="DEVICE|CLAIM-UID", help="whose hold is forgotten")
    add_yes(parser)


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Let a command be told beforehand that it is meant."""
    parser.add_argument("--yes", action="store_true", help="do not ask whether it is meant")


def run(arguments: argparse.Namespace, settings: AgentSettings) -> int:
    """Forget what a device or a claim holds, unless a pod has it or a call for it is under way."""
    what = arguments.what
    found = [r for r in read_records(settings.paths.state) if what in (r.device.name, r.claim.uid)]
    records = tuple(r for r in found if not is_quarantined(r))
    if not records:
        return fail(f"no claim holds {what}{_waits(found)}")
    users, unknown = users_of(settings, records)
    had = [f"{r.device.name} by pod {pod}" for r in records for pod in users.get(r.id, ())]
    if had:
        return fail(f"in use, says the kubelet: {', '.join(had)}; delete the pod, and it is freed")
    for record in records:
        print(f"{record.device.name}, held for {record.claim} (UID {record.claim.uid})")
    print(f"Who has it is not known: {unknown}." if unknown else UNLISTED)
    print(
        "A container that has it open still will share it with the next. What its driver did for "
        "the claim is not undone."
    )
    if not sure("Forget that it is held?", arguments.yes):
        return 1
    facts = {"what": what, "holds": holds_json(records), "users": unknown or "none listed"}
    gone = anyio.run(_forget, settings, records, facts)
    if not gone:
        return fail(f"what held {what} has ended meanwhile")
    print(f"{what} is forgotten; the agent offers what is free again within seconds.")
    return 0


def _waits(found: Sequence[Record]) -> str:
    if not found:
        return ""
    return f"; it waits for its driver: hardpoint quarantine clear {found[0].device.name}"


async def _forget(
    settings: AgentSettings, records: Iterable[Record], facts: dict[str, Any]
) -> tuple[Record, ...]:
    cdi = CdiDirectory(settings.paths.cdi, settings.cdi_version)
    async with levers(settings.paths.state, cdi, operator()) as lever:
        return await lever.forget(records, "holds forget", facts)


def is_quarantined(record: Record) -> bool:
    """Say whether a device waits for its driver alone: that is another lever's."""
    return record.retired or record.state is HoldState.QUARANTINED


def holds_json(records: Iterable[Record]) -> list[dict[str, str]]:
    """Return what is forgotten, for the audit trail."""
    return [
        {"device": r.device.name, "claim": str(r.claim), "uid": r.claim.uid, "state": r.state.value}
        for r in records
    ]
