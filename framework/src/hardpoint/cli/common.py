"""Options that several commands share, and how they are understood."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from hardpoint._core.state import agent_runs, kept_labels
from hardpoint._wording import first_problem
from hardpoint.errors import BadSettings
from hardpoint.node import Node
from hardpoint.settings import AgentSettings, load, needs_labels

_M = TypeVar("_M", bound=BaseModel)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Let a command answer as JSON."""
    parser.add_argument("--json", action="store_true", help="answer as JSON")


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Let a command be told where the settings are."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="settings file (default: $HARDPOINT_CONFIG or /etc/hardpoint/hardpoint.toml)",
    )


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Let a command look at a recorded machine in place of this one."""
    add_settings(parser)
    parser.add_argument(
        "--sysfs",
        type=Path,
        metavar="TREE",
        help="a recorded machine: a directory with sys/ in it, or a snapshot archive",
    )


def add_wait(parser: argparse.ArgumentParser, until: str) -> None:
    """Let a command wait for what follows from it."""
    parser.add_argument("--wait", action="store_true", help=until)
    parser.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="how long to wait at most (default: %(default)g)",
    )


def settings_of(arguments: argparse.Namespace) -> AgentSettings:
    """Read the settings that the options name, as they apply to this node.

    Sections that are chosen by label apply by what the agent last heard of the node's labels.
    """
    settings = load(arguments.config)
    if needs_labels(arguments.config):
        return load(arguments.config, labels=kept_labels(settings.paths.state) or {})
    return settings


def policies_with(settings: AgentSettings, name: str) -> str:
    """Return the line of the settings that runs one policy beside those that run."""
    return f"policies = {json.dumps([*settings.policies, name])}"


def note_no_agent(settings: AgentSettings, what_follows: str) -> None:
    """Say beside the answer that no agent runs, and what that means; nothing where one does."""
    try:
        if agent_runs(settings.paths.state):
            return
    except PermissionError:
        return  # it is not for this user to see
    print(
        f"hardpoint: note: no agent runs with {settings.paths.state}; {what_follows}",
        file=sys.stderr,
    )


def policy_section(settings: AgentSettings, name: str, model: type[_M]) -> _M:
    """Return a policy's section, checked by its own model. Raises ``BadSettings``."""
    try:
        return model.model_validate(dict(settings.policy.get(name, {})))
    except ValidationError as error:
        where, what, want = first_problem(model, error)
        raise BadSettings(f"policy.{name}.{where}", what, want) from error


@contextmanager
def machine(arguments: argparse.Namespace, settings: AgentSettings) -> Iterator[Node]:
    """Open the machine that the options name: this one, or a recorded one."""
    if arguments.sysfs is None:
        yield this_machine(settings)
        return
    from hardpoint.recorded import open_machine

    with open_machine(arguments.sysfs) as node:
        yield node


def this_machine(settings: AgentSettings) -> Node:
    """Return the machine that the settings describe."""
    paths = settings.paths
    return Node(
        name=settings.node_name,
        sys=paths.sys,
        dev=paths.dev,
        proc=paths.proc,
        run=paths.run,
        kubelet=paths.kubelet,
        device_plugins=paths.device_plugins,
    )
