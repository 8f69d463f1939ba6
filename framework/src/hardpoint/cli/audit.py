"""``hardpoint audit``: what operators did against what the agent knew, oldest first."""

from __future__ import annotations

import argparse
import json
import time

from hardpoint._core.levers import read_audits
from hardpoint.cli.common import add_json, add_settings, settings_of
from hardpoint.cli.output import as_json, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_settings(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Read the trail from the ledger and print it."""
    trail = read_audits(settings_of(arguments).paths.state)
    if arguments.json:
        as_json([{"at": a.at, "who": a.who, "what": a.what, "facts": dict(a.facts)} for a in trail])
        return 0
    rows = [
        (
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(one.at)),
            one.who,
            one.what,
            json.dumps(dict(one.facts), ensure_ascii=False),
        )
        for one in trail
    ]
    table(("at", "who", "what", "facts"), rows, "No operator has pulled a lever.")
    return 0
