"""Which devices the nodes of one piece of hardware make: pure, from the kind of each node.

A GPU is split by what its nodes are for. Several programs may use a render node at once, since the
kernel keeps them apart; everything else of it goes to one holder at a time, each kind by itself, so
that a kind that nobody has seen before never makes the render node exclusive.

Other hardware stays whole, and exclusive. A wrong guess that something may be shared hands it to
two owners, and nobody further on can mend that; a wrong guess the other way makes a claim wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hardpoint import DeviceNode
from hardpoint.model import slug

RENDER = "/dev/dri/renderD"
FRAMEBUFFER = "graphics"
"""Subsystem of frame buffers: whoever opens one takes over the display, so nobody is given one."""

SOUND = "sound.liken.sh/supportsSound"
"""What sound servers select cards by, whichever driver publishes them."""

KINDS = {
    "drm": "drm.display",
    "i2c-dev": "i2c",
    "drm_dp_aux_dev": "drm.dp-aux",
    "sound": "sound.card",
    "video4linux": "video",
    "infiniband_verbs": "rdma",
    "virtio-ports": "virtio.port",
    "hidraw": "hid",
    "ppdev": "parport",
}
"""Kinds whose word is not that of the kernel's subsystem."""

FLAGS = {
    "drm": "displayNode",
    "tty": "serialNode",
    "video4linux": "captureNode",
    "hidraw": "hidNode",
    "input": "inputNode",
    "cec": "cecNode",
    "printer": "printerNode",
    "sound": "soundNode",
}
"""What a device says it has, by the subsystem of a node; a render node says ``renderNode``."""

EXAMINED: Mapping[str, frozenset[str]] = {
    "sound": frozenset({"input"}),  # jacks are input events below the card
    "video4linux": frozenset({"media", "input", "lirc", "cec", "dvb"}),
    "dvb": frozenset({"media", "input", "lirc"}),
    "infiniband_verbs": frozenset({"infiniband_mad", "infiniband_cm", "infiniband_srp"}),
    "ppdev": frozenset({"printer"}),  # both are the parallel port
    "hidraw": frozenset({"input", "usbmisc"}),
}
"""Mixtures that are one thing: its subsystem, and what may come with it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One device of a piece of hardware."""

    kind: str
    nodes: tuple[DeviceNode, ...]
    subsystem: str = ""
    suffix: str = ""
    shareable: bool = False
    whole: bool = True
    """False for one of several devices that share the hardware."""

    @property
    def flags(self) -> dict[str, bool]:
        """What its nodes are for, as attributes."""
        if self.shareable:
            return {"renderNode": True}
        roles = {FLAGS[word]: True for word in map(subsystem, self.nodes) if word in FLAGS}
        return roles | ({SOUND: True} if self.subsystem == "sound" else {})


def subsystem(node: DeviceNode) -> str:
    """Return the kernel's word for a node.

    ``/dev/watchdog`` is a miscellaneous device, and another name of ``watchdog0``.
    """
    return "watchdog" if node.path == "/dev/watchdog" else node.subsystem


def kind_of(word: str) -> str:
    """Return the kind for a subsystem: ``drm.dp-aux``, or the kernel's own word."""
    return KINDS.get(word) or slug(word)[:63].strip("-") or "unknown"


def shapes(nodes: Iterable[DeviceNode]) -> tuple[Shape, ...]:
    """Return the devices that these nodes make; the one that is named plainly comes first."""
    kept = tuple(node for node in nodes if subsystem(node) != FRAMEBUFFER)
    words = {subsystem(node) for node in kept}
    if "drm" in words:
        return _gpu(kept)
    return (_whole(kept, words),) if kept else ()


def _gpu(nodes: tuple[DeviceNode, ...]) -> tuple[Shape, ...]:
    groups: dict[str, list[DeviceNode]] = defaultdict(list)
    for node in nodes:
        groups["" if node.path.startswith(RENDER) else _suffix(subsystem(node))].append(node)
    order = sorted(groups, key=lambda suffix: (suffix != "", suffix != "-display", suffix))
    return tuple(_part_of_gpu(suffix, tuple(groups[suffix])) for suffix in order)


def _suffix(word: str) -> str:
    return "-display" if word == "drm" else f"-{slug(word) or 'unknown'}"


def _part_of_gpu(suffix: str, nodes: tuple[DeviceNode, ...]) -> Shape:
    word = subsystem(nodes[0])
    if not suffix:
        return Shape("drm.render", nodes, "drm", shareable=True, whole=False)
    return Shape(kind_of(word), nodes, word, suffix, whole=False)


def _whole(nodes: tuple[DeviceNode, ...], words: set[str]) -> Shape:
    if len(words) == 1:
        (word,) = words
        return Shape(kind_of(word), nodes, word)
    for word, company in EXAMINED.items():
        if word in words and words <= company | {word}:
            return Shape(kind_of(word), nodes, word)
    return Shape("mixed", nodes)
