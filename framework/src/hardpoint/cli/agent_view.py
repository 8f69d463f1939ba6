"""What the agent that runs here knows of devices and one look at the machine does not show."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hardpoint._core.grants.grantlaid import NOT_GRANTED, RELEASING, WITHDRAWN
from hardpoint._core.levers import read_book
from hardpoint._core.offer.inventory import QUARANTINED
from hardpoint._core.offline import COSTS, Look, start_plugins
from hardpoint._core.plugins.discovery import Plugins
from hardpoint._core.plugins.faults import FaultEntry
from hardpoint._core.plugins.policywords import PolicyWords, words_of
from hardpoint._core.state import agent_runs, read_status
from hardpoint.cli.output import sentence
from hardpoint.model import Withheld
from hardpoint.node import Node
from hardpoint.settings import AgentSettings

_RULES = (NOT_GRANTED, RELEASING, WITHDRAWN, QUARANTINED, "vetoed")
"""By which the agent keeps back what the machine has."""


def with_agent(found: Look, settings: AgentSettings, node: Node) -> Look:
    """Return a look at this machine with what its agent withholds; or a note of what is not known.

    Of a recorded machine no agent knows anything.
    """
    try:
        return _with_agent(found, settings, node)
    except PermissionError as error:
        note = f"what an agent says of it is not known: {sentence(error)}"
        return replace(found, notes=(*found.notes, note))


def _with_agent(found: Look, settings: AgentSettings, node: Node) -> Look:
    state = settings.paths.state
    if not node.recorded and agent_runs(state):
        return _withheld(found, read_status(state).get("not_offered", ()))
    policies = _policies(settings, node)
    sources = [one for one in words_of(policies) if "grant_devices" in one.hooks]
    notes = tuple(_notes(found, settings, sources, None if node.recorded else state))
    kinds = {one.device.kind for one in found.offer.devices}
    granted = frozenset(k for k in kinds if any(source.is_about(k) for source in sources))
    faults = tuple(_refused(policies, {fault.source for fault in found.faults}))
    return replace(
        found,
        faults=(*found.faults, *faults),
        notes=(*found.notes, *notes),
        granted_kinds=granted,
    )


def _withheld(found: Look, said: Iterable[Mapping[str, Any]]) -> Look:
    more = [
        Withheld(one["subject"], one["rule"], one["reason"], one["driver"])
        for one in said
        if one["rule"] in _RULES
    ]
    kept_back = {(one.driver, one.subject) for one in more}
    offer = replace(
        found.offer,
        devices=tuple(
            one for one in found.offer.devices if (one.device.driver, one.name) not in kept_back
        ),
        withheld=(*found.offer.withheld, *more),
    )
    return replace(found, offer=offer)


def _policies(settings: AgentSettings, node: Node) -> Plugins:
    """Start the policies that the settings name; they are asked for nothing."""
    if not settings.policies:
        return Plugins([])
    return start_plugins(settings, node, roles=("policy",))


def _refused(policies: Plugins, known: Container[str]) -> Iterable[FaultEntry]:
    """Yield the policies that do not run, but for those that are known: nothing is offered then."""
    now = time.time()
    for plugin in policies.all:
        broken = plugin.role == "policy" and plugin.state == "refused"
        if broken and plugin.id not in known:
            why = f"{plugin.state}: {plugin.reason}"
            yield FaultEntry(plugin.id, why, COSTS["policy"], first=now, last=now)


def _notes(
    found: Look, settings: AgentSettings, sources: Iterable[PolicyWords], state: Path | None
) -> Iterable[str]:
    """Say what is not asked here: policies, which the agent alone asks."""
    if not settings.policies:
        return
    kinds = {one.device.kind for one in found.offer.devices}
    for source in sources:
        governed = ", ".join(sorted(kind for kind in kinds if source.is_about(kind)))
        if governed:
            name = source.id.partition("/")[2]
            yield (
                f"of {governed} the agent offers what {name} grants and nothing else, which is "
                f"not asked here{_last_known(source.id, state)}"
            )
    yield "policies may withhold more: they are asked by the agent alone"


def _last_known(source: str, state: Path | None) -> str:
    """Say what of a source's grants an agent has written down last."""
    if state is None:
        return ""
    book = read_book(state)
    granted = [
        f"{one.device.name} ({known.grant.allocation})"
        for known in book.grants
        if known.grant.source == source
        for one in known.devices
    ]
    pending = [key.name for release in book.releases for key in release.keys]
    words = f"; an agent has written down last: granted {', '.join(sorted(granted)) or 'nothing'}"
    return words + (f", being released {', '.join(sorted(pending))}" if pending else "")
