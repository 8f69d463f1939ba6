"""``hardpoint quarantine``: devices that a driver could not give back, and the lever for them.

Those that a driver is still scrubbing after their claim are among them: nobody may have them yet.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import anyio

from hardpoint._core.ledger.ledger import read_records
from hardpoint._core.ledger.records import Record
from hardpoint._core.levers import levers
from hardpoint.cdi_files import CdiDirectory
from hardpoint.cli.common import add_json, add_settings, settings_of
from hardpoint.cli.holds import age, record_json
from hardpoint.cli.holds_forget import is_quarantined
from hardpoint.cli.operator import operator
from hardpoint.cli.output import as_json, fail, table
from hardpoint.settings import AgentSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_settings(parser)
    add_json(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    clear = actions.add_parser("clear", help="offer a device again; you made sure that it is free")
    clear.add_argument("device", help="name of the device")


def run(arguments: argparse.Namespace) -> int:
    """List quarantined devices, or clear one; clearing is written to the audit trail."""
    settings = settings_of(arguments)
    records = [r for r in read_records(settings.paths.state) if is_quarantined(r)]
    if arguments.action == "clear":
        mine = [record for record in records if record.device.name == arguments.device]
        if not mine:
            return fail(f"{arguments.device} is not quarantined")
        anyio.run(_clear, settings, arguments.device, mine)
        print(f"{arguments.device} is cleared; the agent offers it again within seconds.")
        return 0
    if arguments.json:
        as_json([record_json(record) for record in records])
    else:
        rows = [
            (r.device.name, r.state.value, str(r.claim), r.tries, age(r.changed), r.why)
            for r in records
        ]
        headings = ("device", "state", "after claim", "tries", "since", "why")
        table(headings, rows, "Nothing is quarantined.")
    return 0


async def _clear(settings: AgentSettings, device: str, records: Sequence[Record]) -> None:
    """Forget what keeps a device, while no call to its driver runs: it might undo what is next."""
    whys = list(dict.fromkeys(record.why for record in records))
    facts = {"device": device, "claims": [r.claim.uid for r in records], "why": "; ".join(whys)}
    cdi = CdiDirectory(settings.paths.cdi, settings.cdi_version)
    async with levers(settings.paths.state, cdi, operator()) as lever:
        await lever.forget(records, "quarantine clear", facts)
