"""``hardpoint plugins``: what is installed, from where, and why it does not run."""

from __future__ import annotations

import argparse

from hardpoint._core.offline import shares, start_plugins
from hardpoint._core.plugins.discovery import Plugins
from hardpoint.cli.common import add_json, add_settings, settings_of, this_machine
from hardpoint.cli.output import as_json, table
from hardpoint.errors import BadSettings
from hardpoint.settings import AgentSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_settings(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Start every plugin that is wanted, as the agent would, and say what became of it."""
    settings = settings_of(arguments)
    started = start_plugins(settings, this_machine(settings))
    _refuse_disputed(settings, started)
    plugins = started.all
    if arguments.json:
        keys = ("role", "name", "state", "reason", "distribution", "version", "target")
        as_json([{key: getattr(plugin, key) for key in keys} for plugin in plugins])
    else:
        rows = [
            (p.role, p.name, p.state, f"{p.distribution} {p.version}".strip(), p.reason)
            for p in plugins
        ]
        table(("role", "name", "state", "package", "why"), rows, "No plugin is installed.")
    return 1 if any(p.state in ("refused", "missing") for p in plugins) else 0


def _refuse_disputed(settings: AgentSettings, plugins: Plugins) -> None:
    """Show frontends as refused that would offer the same devices: the agent runs with neither."""
    try:
        shares(settings, plugins).check()
    except BadSettings as error:
        for plugin in plugins.running("frontend"):
            plugin.state, plugin.reason = "refused", f"the agent does not start: {error}"
