"""``hardpoint status``: what is offered, held, and wrong on this node, as the agent last said."""

from __future__ import annotations

import argparse
from typing import Any

from hardpoint._core.state import agent_runs, read_status
from hardpoint.cli.common import add_json, add_settings, settings_of
from hardpoint.cli.holds import age
from hardpoint.cli.output import as_json, fail, table
from hardpoint.cli.release import NOT_YET


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_settings(parser)
    add_json(parser)
    parser.add_argument(
        "--ready",
        action="store_true",
        help="say nothing; exit status 0 if every frontend serves and is registered",
    )


def run(arguments: argparse.Namespace) -> int:
    """Read what the agent says of itself."""
    state = settings_of(arguments).paths.state
    running, status = agent_runs(state), read_status(state)
    if arguments.ready:
        return 0 if running and status.get("ready") else 1
    if arguments.json:
        as_json({"running": running, **status})
        return 0 if running else 1
    if not status:
        return fail(f"no agent has run with {state}; start it with `hardpoint run`")
    if not running:
        print("The agent does not run. What it said last:\n")
    _print(status)
    return 0 if running else 1


def _print(status: dict[str, Any]) -> None:
    writes = "" if status["writing"] else " (another agent writes)"
    ready = "ready" if status["ready"] else "not ready"
    print(f"node {status['node']}, {ready}{writes}, since {age(status['started'])}")
    offered = status["devices"]
    if status.get("withdrawn"):
        print(f"\nwithdrawn: {status['withdrawn']}")
    for one in status.get("conditions", ()):
        print(f"\n{one['type']} ({one['reason']}): {one['message']}")
    print(f"\n{len(offered)} devices offered, {len(status['not_offered'])} not (devices --why)")
    rows = [
        (
            d["name"],
            d["kind"],
            d["domain"],
            d["health"],
            "held" if d["held"] else "",
            " ".join(t["key"] for t in d["taints"]),
        )
        for d in offered
    ]
    table(("device", "kind", "domain", "health", "held", "taints"), rows)
    _notes(status["notes"])
    _table("grants", _grants(status), (*_OF, "outcome", "reason"))
    _table("releases", _releases(status), (*_OF, "users"))
    _table("holds", status["holds"], ("device", "claim", "state"))
    _table("quarantine", status["quarantine"], ("device", "why"))
    _table("faults", status["faults"], ("source", "message", "cost", "count"))
    _table("plugins that do not run", status["plugins"], ("role", "name", "state", "reason"))


_OF = ("allocation", "source", "devices", "since")


def _grants(status: dict[str, Any]) -> list[dict[str, Any]]:
    return [_in_words(one) for one in status.get("grants", ())]


def _releases(status: dict[str, Any]) -> list[dict[str, Any]]:
    found = (_in_words(one) for one in status.get("releases", ()))
    return [{**one, "users": "; ".join(one["users"]) or NOT_YET} for one in found]


def _in_words(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "devices": " ".join(one["devices"]), "since": age(one["since"])}


def _notes(notes: dict[str, dict[str, Any]]) -> None:
    for source, all_facts in sorted(notes.items()):
        facts = {key: value for key, value in all_facts.items() if value not in ("", None, [], {})}
        if not facts:
            continue  # a drain that nobody asks for has nothing to say
        print(f"\n{source}")
        width = max((len(key) for key in facts), default=0)
        for key, value in facts.items():
            print(f"  {key:<{max(width, 14)}}  {value}")


def _table(title: str, rows: list[dict[str, Any]], keys: tuple[str, ...]) -> None:
    if rows:
        print(f"\n{title}")
        table(keys, [[row[key] for key in keys] for row in rows])
