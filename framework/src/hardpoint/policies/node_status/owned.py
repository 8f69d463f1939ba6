"""What of a Node is ours, as the server itself remembers it (``metadata.managedFields``)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hardpoint.kube import Json

MANAGER = "hardpoint-node"
"""Field manager of what the policy says; never another, or what it said before is nobody's."""


@dataclass(frozen=True, slots=True)
class Owned:
    """Names of what we have said; ``known`` is false where the server keeps no such record."""

    known: bool
    labels: frozenset[str] = frozenset()
    annotations: frozenset[str] = frozenset()
    conditions: frozenset[str] = frozenset()


def of_node(node: Json) -> Owned:
    """Read the record."""
    entries = node["metadata"].get("managedFields")
    if not entries:
        return Owned(known=False)
    mine = [one.get("fieldsV1") or {} for one in entries if _is_ours(one)]
    return Owned(
        known=True,
        labels=frozenset(_fields(mine, "f:metadata", "f:labels")),
        annotations=frozenset(_fields(mine, "f:metadata", "f:annotations")),
        conditions=frozenset(_keys(mine)),
    )


def _is_ours(entry: Mapping[str, Any]) -> bool:
    said = (entry.get("manager"), entry.get("operation"), entry.get("subresource"))
    return said == (MANAGER, "Apply", "status")


def _below(fields: list[Json], *path: str) -> Iterator[str]:
    for place in fields:
        for step in path:
            place = place.get(step) or {}
        yield from place


def _fields(fields: list[Json], *path: str) -> Iterator[str]:
    return (name[2:] for name in _below(fields, *path) if name.startswith("f:"))


def _keys(fields: list[Json]) -> Iterator[str]:
    for name in _below(fields, "f:status", "f:conditions"):
        if name.startswith("k:"):
            yield str(json.loads(name[2:]).get("type", ""))
