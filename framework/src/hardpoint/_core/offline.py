"""One look at a machine without an agent: what it would offer, and why not the rest.

What the CLI shows of a workstation, a node or a recorded tree is made here, by the same code that
the agent runs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from hardpoint._core.offer.inventory import Facts, Listing, as_offer, build, idle_rules, undisputed
from hardpoint._core.offer.shares import Shares
from hardpoint._core.plugins.discovery import (
    Choice,
    Plugin,
    Plugins,
    discover,
    installed,
    unknown_sections,
)
from hardpoint._core.plugins.faults import FaultBoard, FaultEntry
from hardpoint._core.plugins.relay import Relay
from hardpoint._where import SHARE_KEYS
from hardpoint.model import AttributeInfo, AttributeType, Offer
from hardpoint.node import Node
from hardpoint.platform import Platform
from hardpoint.settings import AgentSettings

_WOULD_RUN = ("installed", "running")
COSTS = {
    "driver": "its devices are left out",
    "policy": "the agent offers nothing while it does not run",
}
"""What is lost with a plugin that the settings want and that does not run, by its role."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one look found."""

    offer: Offer
    faults: tuple[FaultEntry, ...]
    plugins: tuple[Plugin, ...]
    notes: tuple[str, ...] = ()
    """What the settings say that has no effect here, each in a sentence."""
    granted_kinds: frozenset[str] = frozenset()
    """Kinds that are offered under grants alone, where no agent says which are granted."""


def choices(settings: AgentSettings) -> dict[str, Choice]:
    """Return which plugins the settings want.

    Without a word on frontends ``dra`` serves where it is installed, since one device must not be
    offered through two; else what is installed.
    """
    frontends = settings.frontends
    if frontends is None and "dra" in installed("frontend"):
        frontends = ("dra",)
    return {
        "driver": Choice(settings.drivers),
        "policy": Choice(settings.policies),
        "frontend": Choice(frontends),
    }


def sections(settings: AgentSettings, role: str) -> Mapping[str, Mapping[str, object]]:
    """Return the sections of the settings for plugins of a role, by name."""
    if role == "frontend":
        return {
            name: {key: value for key, value in section.items() if key not in SHARE_KEYS}
            for name, section in settings.frontend.items()
        }
    return {"driver": settings.driver, "policy": settings.policy}[role]


def shares(settings: AgentSettings, plugins: Plugins) -> Shares:
    """Return which devices each frontend offers that runs, or would if it were asked to."""
    would = (p.name for p in plugins.all if p.role == "frontend" and p.state in _WOULD_RUN)
    return Shares.of(settings, would)


def start_plugins(
    settings: AgentSettings, node: Node, roles: tuple[str, ...] = ("driver", "policy", "frontend")
) -> Plugins:
    """Discover and start what the settings want; what cannot run says why."""
    plugins = Plugins(discover(choices(settings)))
    for plugin in plugins.all:
        section = sections(settings, plugin.role).get(plugin.name, {})
        if plugin.role in roles and plugin.state == "installed":
            plugins.start(plugin, node, section)
        elif plugin.state == "disabled" and section:
            plugin.reason += f": [{plugin.role}.{plugin.name}] has no effect"
    return plugins


async def look(node: Node, settings: AgentSettings) -> Look:
    """Ask every driver once and make the offer; policies that need a cluster are not asked."""
    plugins, board = _drivers(settings, node)
    async with Relay(plugins, board) as relay:
        answers = await relay.gather("publish_devices")
        told = await relay.gather("describe_attributes") if settings.rules else {}
    now = time.monotonic()
    listings = [
        Listing(plugin.removeprefix("driver/")).after(listed, now)
        for plugin, listed in answers.items()
    ]
    facts = Facts(
        domain_of=settings.domain_of,
        node_reason=Platform.of(node).reason,
        rules=settings.rules,
        now=now,
    )
    built = undisputed(build(listings, facts), shares(settings, plugins))
    for driver, device, problem in built.problems:
        board.record(f"driver/{driver} {device} {problem.field}", str(problem), "left out")
    offer = as_offer(built, Offer(generation=0), complete=True)
    known = {info.name: _TYPES[info.type] for infos in told.values() for info in infos}
    notes = [*idle_sections(settings, plugins), *idle_rules(settings.rules, built.used, known)]
    return Look(offer, board.entries, tuple(plugins.all), tuple(notes))


_TYPES = {
    AttributeType.BOOL: bool,
    AttributeType.INT: int,
    AttributeType.STRING: str,
    AttributeType.VERSION: str,
}


def idle_sections(settings: AgentSettings, plugins: Plugins) -> tuple[str, ...]:
    """Return a sentence for each section of the settings that is for no installed plugin."""
    tables: dict[str, Mapping[str, object]] = {
        "driver": settings.driver,
        "frontend": settings.frontend,
        "policy": settings.policy,
        "names": settings.names,
    }
    return tuple(unknown_sections(plugins.all, tables))


async def described(
    node: Node, settings: AgentSettings
) -> tuple[dict[str, tuple[AttributeInfo, ...]], tuple[FaultEntry, ...]]:
    """Return every driver's attribute reference, by the driver's name, and what failed."""
    plugins, board = _drivers(settings, node)
    async with Relay(plugins, board) as relay:
        answers = await relay.gather("describe_attributes")
    found = {plugin.removeprefix("driver/"): tuple(infos) for plugin, infos in answers.items()}
    return found, board.entries


def _drivers(settings: AgentSettings, node: Node) -> tuple[Plugins, FaultBoard]:
    """Start the drivers; what does not run is on the board."""
    plugins, board = start_plugins(settings, node, roles=("driver",)), FaultBoard()
    for plugin in plugins.all:
        if plugin.role in COSTS and plugin.state in ("refused", "missing"):
            board.record(plugin.id, f"{plugin.state}: {plugin.reason}", cost=COSTS[plugin.role])
    return plugins, board
