"""The name that udev gave a device in ``/dev/serial/by-id`` and the like."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from hardpoint import DeviceNode, Node, NodeType

_LONGEST = 64
"""Bytes of an attribute: half a name would match nothing, or the wrong device."""


def by_id(node: Node, nodes: Iterable[DeviceNode]) -> str:
    """Return the name of the first node that has one; ``""`` without udev's database.

    Two adapters with equal serial numbers share one name, and the last to be plugged in has it
    (serialport/node-serialport issue 329): such a name is nobody's.
    """
    for one in nodes:
        for link in _links(node, one):
            name = os.path.basename(link)
            fits = len(name.encode()) <= _LONGEST
            if fits and _leads_to(node, link, one) and _claimants(node, link) <= 1:
                return name
    return ""


def _links(node: Node, one: DeviceNode) -> Iterator[str]:
    letter = "b" if one.type is NodeType.BLOCK else "c"
    for line in node.run_text(f"udev/data/{letter}{one.major}:{one.minor}").splitlines():
        kind, _, link = line.partition(":")
        if kind == "S" and "/by-id/" in link and ".." not in link:
            yield link


def _leads_to(node: Node, link: str, one: DeviceNode) -> bool:
    try:
        target = os.readlink(node.at_dev(link))
    except OSError:
        return False
    return os.path.basename(target) == os.path.basename(one.path)


def _claimants(node: Node, link: str) -> int:
    """Return how many devices udev knows that want this name (udev-node.c, link_prioritize)."""
    escaped = link.replace("\\", "\\x5c").replace("/", "\\x2f")
    try:
        return len(os.listdir(os.path.join(node.run, "udev/links", escaped)))
    except OSError:
        return 1
