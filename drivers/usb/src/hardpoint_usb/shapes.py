"""What the nodes of a device are: one word for shapes that were examined, and a flag per role."""

from __future__ import annotations

from collections.abc import Iterable

from hardpoint import DeviceNode

_SHAPES = {
    "block": {"block", "bsg", "scsi_generic"},
    "video4linux": {"video4linux", "media", "input"},
    "sound": {"sound", "input"},
    "tty": {"tty", "gpio"},
    "hidraw": {"hidraw", "usbmisc", "input"},
}
"""The node that a holder wants, and what the same driver makes beside it: SCSI's pass-through
nodes, a camera's media controller and shutter button, jacks, the spare pins of a serial chip, and
the hiddev and input nodes of a HID device. The first that fits names it."""

SOUND = "sound.liken.sh/supportsSound"
"""What sound servers select cards by, whichever driver publishes them."""

_ROLES = {
    "tty": "serialNode",
    "hidraw": "hidNode",
    "video4linux": "captureNode",
    "sound": "soundNode",
    "block": "blockNode",
    "input": "inputNode",
    "cec": "cecNode",
    "usb": "usbfsNode",
}
_ROLES_BY_NAME = {
    ("usbmisc", "hiddev"): "hidNode",
    ("usbmisc", "lp"): "printerNode",
    ("drm", "card"): "displayNode",
    ("drm", "renderD"): "renderNode",
}


def subsystem_of(nodes: Iterable[DeviceNode]) -> str:
    """Return the one word for what these nodes are; ``""`` for a mix that nobody examined."""
    kinds = {node.subsystem for node in nodes}
    if len(kinds) == 1:
        return kinds.pop()
    if "" in kinds:
        return ""
    return next((word for word, all_ in _SHAPES.items() if word in kinds and kinds <= all_), "")


def roles_of(nodes: Iterable[DeviceNode]) -> dict[str, bool]:
    """Return a true flag for each role that a node has: ``serialNode``, ``hidNode`` …"""
    return {role: True for node in nodes if (role := _role(node))}


def _role(node: DeviceNode) -> str:
    name = node.path.rpartition("/")[2]
    word = name.rstrip("0123456789")
    return _ROLES.get(node.subsystem) or _ROLES_BY_NAME.get((node.subsystem, word), "")
