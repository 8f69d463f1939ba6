"""The name that udev gave a device in ``/dev/serial/by-id`` and the like."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from hardpoint import DeviceNode, Node, NodeType

_LONGEST = 64
"""Bytes of an attribute: half a name would match nothing, or the wrong device."""


def by_id(node: Node, nodes: Iterable[DeviceNode]) -> str:
    """Return the name of the first node that has one; ``""`` without udev's database.

    Two adapters with equal serial numbers share one name, and udev's last word decides whose it is
    (serialport/node-serialport issue 329): so only a link that leads here counts.
    """
    for one in nodes:
        for link in _links(node, one):
            name = os.path.basename(link)
            if len(name.encode()) <= _LONGEST and _leads_to(node, link, one):
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
