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
_COST = "nothing is offered through it"


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
    for plugin in plugins.all:
        if plugin.role == "frontend" and plugin.state in ("refused", "missing"):
            board.record(plugin.id, f"{plugin.state}: {plugin.reason}", cost=_COST)
    found: defaultdict[str, list[str]] = defaultdict(list)
    async with Relay(plugins, board) as relay:
        asked = relay.implementations(_HOOK)
        for asked_of in asked:
            seen = shares(settings, plugins).view(asked_of.removeprefix("frontend/"), offer)
            with suppress(HardpointError):  # it is on the board
                answer: Mapping[str, Iterable[str]] = await relay.plugin(
                    _HOOK, asked_of, offer=seen
                )
                for name, devices in answer.items():
                    for device in devices:
                        found[device].append(name)
    return Resources(
        {name: tuple(sorted(of)) for name, of in found.items()}, board.entries, bool(asked)
    )
