"""Which extended resources devices would be offered as, by the frontends that the settings run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from hardpoint._core.offline import shares, start_plugins
from hardpoint._core.plugins.faults import FaultBoard, FaultEntry
from hardpoint._core.plugins.relay import Relay
from hardpoint.errors import HardpointError
from hardpoint.model import Offer
from hardpoint.node import Node
from hardpoint.settings import AgentSettings

_HOOK = "preview_resources"


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources by device name; of one that another domain's device shares, those of both."""

    of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    faults: tuple[FaultEntry, ...] = ()
    asked: bool = False
    """Whether a frontend runs that offers devices as such."""


async def resources(node: Node, settings: AgentSettings, offer: Offer) -> Resources:
    """Ask each frontend, of the devices that it offers."""
    plugins, board = start_plugins(settings, node, roles=("frontend",)), FaultBoard()
    found: defaultdict[str, list[str]] = defaultdict(list)
    async with Relay(plugins, board) as relay:
        asked = relay.implementations(_HOOK)
        for plugin in asked:
            seen = shares(settings, plugins).view(plugin.removeprefix("frontend/"), offer)
            with suppress(HardpointError):  # it is on the board
                answer: Mapping[str, Iterable[str]] = await relay.plugin(_HOOK, plugin, offer=seen)
                for name, devices in answer.items():
                    for device in devices:
                        found[device].append(name)
    return Resources(
        {name: tuple(sorted(of)) for name, of in found.items()}, board.entries, bool(asked)
    )
