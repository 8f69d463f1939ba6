"""``hardpoint revoke``: take back what ``hardpoint grant`` gave."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hardpoint import files
from hardpoint._core.levers import read_book
from hardpoint._core.state import agent_runs
from hardpoint.cli.common import add_json, add_settings, add_wait, note_no_agent, settings_of
from hardpoint.cli.grant import grants_settings
from hardpoint.cli.output import as_json, fail
from hardpoint.grants import Grant, Outcome
from hardpoint.policies.cdi_grants import NAME
from hardpoint.policies.cdi_grants.reports import Reports
from hardpoint.policies.cdi_grants.writing import find

_LOOK_EVERY = 0.25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_settings(parser)
    add_json(parser)
    parser.add_argument("allocation", help="the id that it was granted under")
    add_wait(parser, "until nobody can be using the devices any more")


def run(arguments: argparse.Namespace) -> int:
    """Remove a hold file; with ``--wait``, wait for the agent's report of the release."""
    settings = settings_of(arguments)
    own = grants_settings(settings)
    reports = Reports(own.reports or settings.paths.state / "grants")
    before = reports.read(arguments.allocation)
    path = find(own, arguments.allocation)
    files.remove(path)
    said: dict[str, Any] = {"allocation": arguments.allocation, "file": str(path)}
    if not arguments.json:
        print(f"{path} is removed.", flush=True)
    note_no_agent(settings, "it is released once one does")
    if not arguments.wait:
        if arguments.json:
            as_json(said)
        return 0
    return _waited(arguments, settings.paths.state, reports, before, said)


def _waited(
    arguments: argparse.Namespace,
    state: Path,
    reports: Reports,
    before: Mapping[str, Any],
    said: dict[str, Any],
) -> int:
    refused = before.get("outcome", Outcome.IN_FORCE) != Outcome.IN_FORCE
    deadline = time.monotonic() + arguments.timeout
    while True:
        nothing = refused and not _is_known(state, arguments.allocation)  # before the report is
        now = reports.read(arguments.allocation)
        if now.get("released") and now != before:
            return _end(arguments, {**said, "released": now}, "Nobody can be using it any more.")
        if nothing:
            return _end(arguments, said, f"It was never in force: {before.get('reason', '')}")
        if time.monotonic() >= deadline:
            return fail(
                f"allocation {arguments.allocation} was not released within "
                f"{arguments.timeout:g} s; `hardpoint release` says who may be using it"
            )
        time.sleep(_LOOK_EVERY)


def _is_known(state: Path, allocation: str) -> bool:
    """Say whether somebody has something of an allocation, or may get it yet.

    A grant that is refused keeps what it had before its file was changed. An agent that runs may
    still put it in force, by its file of before, until it has forgotten it.
    """
    book = read_book(state)
    ended = any(_is_of(one.grant, allocation) for one in book.releases)
    stated = [one for one in book.grants if _is_of(one.grant, allocation)]
    had = any(one.devices for one in stated)
    return bool(book.unreadable) or ended or had or (bool(stated) and agent_runs(state))


def _is_of(grant: Grant, allocation: str) -> bool:
    return grant.allocation == allocation and grant.source.rpartition("/")[2] == NAME


def _end(arguments: argparse.Namespace, said: Mapping[str, Any], sentence: str) -> int:
    if arguments.json:
        as_json(said)
    else:
        print(sentence)
    return 0
