"""Cordoning the agent's own Node, and uncordoning it only where it was us.

Both in one write with the annotation that remembers it, from the state that was read: whoever else
cordons a node keeps it cordoned.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from hardpoint.kube import NODES, Json
from hardpoint.policies._own_node import own_node

if TYPE_CHECKING:
    from hardpoint.agent import Agent
    from hardpoint.kube import Kube


class Cordon(enum.StrEnum):
    """Whose cordon a Node has."""

    OURS = "ours"
    THEIRS = "theirs"
    """Somebody else's, whom it is left to."""
    NONE = "none"
    NO_NODE = "no node"


async def cordon(kube: Kube, agent: Agent, annotation: str) -> tuple[Cordon, bool]:
    """Keep new pods away; say whose the cordon is, and whether it was set now.

    Raises ``AnothersNode`` and ``KubeError``.
    """
    node = await own_node(kube, agent)
    if node is None:
        return Cordon.NO_NODE, False
    if _is_cordoned(node):
        return (Cordon.OURS if _is_ours(node, annotation) else Cordon.THEIRS), False
    await _write(kube, node, annotation, "drain", unschedulable=True)
    return Cordon.OURS, True


async def uncordon(kube: Kube, agent: Agent, annotation: str) -> bool:
    """Let pods come again, if it was us who kept them away; say whether.

    Raises ``AnothersNode`` and ``KubeError``.
    """
    node = await own_node(kube, agent)
    if node is None or not _is_ours(node, annotation):
        return False
    await _write(kube, node, annotation, None, unschedulable=None)
    return True


def _is_cordoned(node: Json) -> bool:
    return bool((node.get("spec") or {}).get("unschedulable"))


def _is_ours(node: Json, annotation: str) -> bool:
    return annotation in (node["metadata"].get("annotations") or {})


async def _write(
    kube: Kube, node: Json, annotation: str, value: str | None, *, unschedulable: bool | None
) -> None:
    metadata = node["metadata"]
    changes: Json = {"metadata": {"annotations": {annotation: value}}}
    changes["spec"] = {"unschedulable": unschedulable}
    await kube.merge(NODES, metadata["name"], changes, version=metadata["resourceVersion"])
