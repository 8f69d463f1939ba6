"""Cordoning the agent's own Node, and uncordoning it only where it was us.

Both in one write with the annotation that remembers it, from the state that was read: whoever else
cordons a node keeps it cordoned.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from hardpoint.errors import KubeNotFound
from hardpoint.kube import NODES, Json

if TYPE_CHECKING:
    from hardpoint.kube import Kube


class Cordon(enum.StrEnum):
    """Whose cordon a Node has."""

    OURS = "ours"
    THEIRS = "theirs"
    """Somebody else's, whom it is left to."""
    NONE = "none"
    NO_NODE = "no node"


async def cordon(kube: Kube, name: str, annotation: str) -> tuple[Cordon, bool]:
    """Keep new pods away; say whose the cordon is, and whether it was set now.

    Raises ``KubeError``.
    """
    node = await _read(kube, name)
    if node is None:
        return Cordon.NO_NODE, False
    if _is_cordoned(node):
        return (Cordon.OURS if _is_ours(node, annotation) else Cordon.THEIRS), False
    await _write(kube, node, annotation, "drain", unschedulable=True)
    return Cordon.OURS, True


async def uncordon(kube: Kube, name: str, annotation: str) -> bool:
    """Let pods come again, if it was us who kept them away; say whether. Raises ``KubeError``."""
    node = await _read(kube, name)
    if node is None or not _is_ours(node, annotation):
        return False
    await _write(kube, node, annotation, None, unschedulable=None)
    return True


async def _read(kube: Kube, name: str) -> Json | None:
    try:
        return await kube.get(NODES, name)
    except KubeNotFound:
        return None


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
