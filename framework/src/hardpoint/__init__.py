"""Hardpoint: hardware drivers, frontends and policies for a Kubernetes node, each a package.

The names here are all that a plugin needs; ``hardpoint.hookspecs`` is the contract.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hardpoint.allocation import RankRequest
from hardpoint.contract import hookimpl
from hardpoint.errors import Refuse, TryAgain
from hardpoint.grants import (
    Evidence,
    Grant,
    GrantedDevice,
    GrantOutcome,
    HoldingPod,
    NodeCondition,
    Outcome,
    Reaped,
    ReapResult,
    Release,
)
from hardpoint.model import (
    Addition,
    AttributeInfo,
    AttributeType,
    Capacity,
    Claim,
    Condition,
    Delivery,
    Device,
    DeviceNode,
    Effect,
    Event,
    Health,
    Hold,
    Mount,
    NodeType,
    Offer,
    Offered,
    Part,
    Taint,
    Topology,
    Unread,
    Verdict,
    Version,
    Veto,
    Withheld,
    exclusive,
    shared,
)
from hardpoint.node import Entry, Node

if TYPE_CHECKING:
    from hardpoint.parameters import Parameters, Settings

__version__ = "0.1.0"

__all__ = [
    "Addition",
    "AttributeInfo",
    "AttributeType",
    "Capacity",
    "Claim",
    "Condition",
    "Delivery",
    "Device",
    "DeviceNode",
    "Effect",
    "Entry",
    "Event",
    "Evidence",
    "Grant",
    "GrantOutcome",
    "GrantedDevice",
    "Health",
    "Hold",
    "HoldingPod",
    "Mount",
    "Node",
    "NodeCondition",
    "NodeType",
    "Offer",
    "Offered",
    "Outcome",
    "Parameters",
    "Part",
    "RankRequest",
    "ReapResult",
    "Reaped",
    "Refuse",
    "Release",
    "Settings",
    "Taint",
    "Topology",
    "TryAgain",
    "Unread",
    "Verdict",
    "Version",
    "Veto",
    "Withheld",
    "exclusive",
    "hookimpl",
    "shared",
]


def __getattr__(name: str) -> Any:
    """Import pydantic only when a plugin has settings or parameters: it costs 100 ms."""
    if name in ("Parameters", "Settings"):
        from hardpoint import parameters

        return getattr(parameters, name)
    raise AttributeError(name)
