"""``hardpoint drain``: hand this node back to its cluster, or take it into service again.

It writes and removes a file on the node; the agent's policy ``drain`` does what that asks for, now
or when an agent runs again.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from hardpoint._core.state import agent_runs, make_private, read_status
from hardpoint.cli.common import (
    add_json,
    add_settings,
    add_wait,
    policies_with,
    policy_section,
    settings_of,
)
from hardpoint.cli.holds import age
from hardpoint.cli.operator import operator
from hardpoint.cli.output import as_json, fail
from hardpoint.errors import HardpointError
from hardpoint.policies.drain.request import Request, read, remove, write
from hardpoint.policies.drain.settings import DrainSettings
from hardpoint.settings import AgentSettings

NAME = "drain"
NOTE = f"policy/{NAME}"
RELEASED, SERVES = "released", "in-service"
_LOOK_EVERY = 0.25
_UNFINISHED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_settings(parser)
    add_json(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--undo", action="store_true", help="take the node into service again")
    what.add_argument(
        "--status",
        action="store_true",
        help="how far it is; exit status 0 if nobody can be using a device any more, else 3",
    )
    parser.add_argument("--why", default="", metavar="TEXT", help="a word for whoever asks later")
    add_wait(parser, "until it is done")


def run(arguments: argparse.Namespace) -> int:
    """Ask for a drain, take that back, or say how far it is."""
    settings = settings_of(arguments)
    own = policy_section(settings, NAME, DrainSettings)
    if arguments.status:
        return _show(arguments, settings, own)
    if arguments.undo:
        asked = remove(own.file_in(settings.paths.state))
        sentence = "The node is to serve again." if asked else "No file has asked for a drain."
    elif NAME not in settings.policies:
        wanted = policies_with(settings, NAME)
        return fail(f"nothing would follow, since {NAME} is not among the policies: {wanted}")
    else:
        sentence = _ask(settings, own, arguments.why)
    if not arguments.json:
        print(sentence, flush=True)
    if arguments.wait:
        return _wait(arguments, settings, own)
    if arguments.json:
        as_json(facts(settings, own))
    return 0


def _ask(settings: AgentSettings, own: DrainSettings, why: str) -> str:
    state = settings.paths.state
    file = own.file_in(state)
    if file.parent == state:
        make_private(state)
    write(file, by=operator(), why=why)
    if agent_runs(state):
        return "The node is to be handed back; `hardpoint drain --status` says how far it is."
    return f"No agent runs with {state}: the node is handed back once one does."


def facts(settings: AgentSettings, own: DrainSettings) -> dict[str, Any]:
    """Return what is asked and how far it is, as plain JSON values."""
    state = settings.paths.state
    request = _request(own.file_in(state))
    runs = agent_runs(state)
    status = read_status(state) if runs else {}
    said = status.get("notes", {}).get(NOTE, {})
    known = str(said.get("state", "unknown"))
    noticed = said.get("request", "") == (request.id if request else "")
    return {
        "requested": request is not None,
        "by": request.by if request else "",
        "why": request.why if request else "",
        "since": request.since if request else None,
        "agent": runs,
        "state": known if noticed or known == "unknown" else "noticing",
        "asked_by": str(said.get("why", "")),
        "cordon": str(said.get("cordon", "")),
        "waits_for": [str(one) for one in said.get("waits_for", ())],
    }


def _request(file: Path) -> Request | None:
    """Read the request. Raises ``HardpointError`` where it is not known whether there is one."""
    try:
        return read(file)
    except FileNotFoundError as error:
        why = f"there is no {file.parent}, which the agent makes: has none run yet?"
        raise HardpointError(f"it is not known whether a drain is asked for: {why}") from error


def _show(arguments: argparse.Namespace, settings: AgentSettings, own: DrainSettings) -> int:
    found = facts(settings, own)
    if arguments.json:
        as_json(found)
    else:
        print(_sentence(found))
        for one in found["waits_for"]:
            print(f"  waits for: {one}")
    return 0 if found["state"] == RELEASED else _UNFINISHED


def _sentence(found: dict[str, Any]) -> str:
    asked = f"A drain is asked for since {age(found['since'])}" if found["requested"] else ""
    asked += f" by {found['by']}" if found["by"] else ""
    asked += f" ({found['why']})" if found["why"] else ""
    if not found["agent"]:
        return f"{asked or 'No file asks for a drain'}; no agent runs."
    words = {
        RELEASED: "The node is handed back: nobody can be using a device of it any more",
        SERVES: "The node serves",
        "draining": f"The node is being handed back: {found['asked_by']}",
        "noticing": "The agent has not noticed yet",
        "unknown": "The agent has not said how far it is: it has just started, or runs without the "
        f"policy {NAME}",
    }
    state = words.get(found["state"], found["state"])
    cordoned = {"theirs": "; somebody else has cordoned it"}.get(found["cordon"], "")
    return f"{asked}. {state}{cordoned}." if asked else f"{state}{cordoned}."


def _wait(arguments: argparse.Namespace, settings: AgentSettings, own: DrainSettings) -> int:
    if not agent_runs(settings.paths.state):
        print("hardpoint: note: no agent runs; it is done once one does", file=sys.stderr)
    wanted = SERVES if arguments.undo else RELEASED
    deadline = time.monotonic() + arguments.timeout
    while True:
        found = facts(settings, own)
        if found["state"] == wanted:
            break
        if time.monotonic() >= deadline:
            waits = "; ".join(found["waits_for"]) or found["asked_by"] or found["state"]
            return fail(f"not done within {arguments.timeout:g} s: {waits}")
        time.sleep(_LOOK_EVERY)
    if arguments.json:
        as_json(found)
    else:
        print(_sentence(found))
    return 0
