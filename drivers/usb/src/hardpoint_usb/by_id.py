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
            if len(name.encode()) <= _LONGEST and _is_its_own(node, link, one):
                return name
    return ""


def is_late(node: Node, nodes: Iterable[DeviceNode]) -> bool:
    """Say whether udev, which runs, has not yet looked at one of the nodes.

    It does so after the kernel's event that woke us, and tells the kernel's listeners nothing.
    """
    data = os.path.join(node.run, "udev/data")
    missing = any(not os.path.exists(f"{data}/{_udev_id(one)}") for one in nodes)
    return missing and os.path.isdir(data)


def _links(node: Node, one: DeviceNode) -> Iterator[str]:
    for line in node.run_text(f"udev/data/{_udev_id(one)}").splitlines():
        kind, _, link = line.partition(":")
        if kind == "S" and "/by-id/" in link and ".." not in link:
            yield link


def _is_its_own(node: Node, link: str, one: DeviceNode) -> bool:
    """Say whether udev made the link for this node, and knows no other that wants its name.

    udev notes who wants a name (udev-node.c, stack directory); where it does not, the link tells.
    While it works, and some seconds longer, its lock file is there too.
    """
    escaped = link.replace("\\", "\\x5c").replace("/", "\\x2f")
    try:
        names = os.listdir(os.path.join(node.run, "udev/links", escaped))
    except OSError:
        return _leads_to(node, link, one)
    return [name for name in names if not name.startswith(".")] == [_udev_id(one)]


def _leads_to(node: Node, link: str, one: DeviceNode) -> bool:
    try:
        target = os.readlink(node.at_dev(link))
    except OSError:
        return False
    return os.path.basename(target) == os.path.basename(one.path)


def _udev_id(one: DeviceNode) -> str:
    return f"{'b' if one.type is NodeType.BLOCK else 'c'}{one.major}:{one.minor}"
