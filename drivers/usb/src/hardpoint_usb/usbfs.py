"""The node of the whole USB device (``/dev/bus/usb/001/004``), and who may have it.

libusb needs it, and it knows no interfaces: its holder can reset the device, detach the kernel's
drivers and claim everything. So it takes the whole device as a part, is delivered unasked only
where the device has one owner anyway, and never where it would reach what nobody may have.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from hardpoint import Device, DeviceNode, Refuse, exclusive

SUBSYSTEM = "usb"


class When(enum.StrEnum):
    """Whether a claim receives the node."""

    ALWAYS = "always"
    """The device is this node and nothing else."""
    DEFAULT = "default"
    """Unless the claim does without it."""
    REQUEST = "request"
    """Only where the claim asks: other owners may use other interfaces of the device."""
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Usbfs:
    """The node, when it is delivered, and for ``NEVER`` why not."""

    node: DeviceNode | None
    when: When
    why: str = ""

    @property
    def unasked(self) -> tuple[DeviceNode, ...]:
        """The node, where a claim receives it without asking."""
        given = self.node is not None and self.when in (When.ALWAYS, When.DEFAULT)
        return (self.node,) if self.node is not None and given else ()

    def reach(self, device: str) -> str:
        """Return a sentence: how a claim on a device reaches its other interfaces; or ``""``."""
        if self.node is None or self.when is When.NEVER:
            return ""
        has = "may ask for" if self.when is When.REQUEST else "has"
        return f". A claim on {device} {has} usbfs, which reaches it"

    def origin(self) -> dict[str, str]:
        """Return it as unpublished facts of a device, for ``requested``."""
        facts = {"usbfsWhen": self.when.value, "usbfsWhy": self.why}
        if self.node is not None:
            facts["usbfs"] = self.node.path
            facts["usbfsNumbers"] = f"{self.node.major}:{self.node.minor}"
            facts["usbfsGroup"] = "" if self.node.gid is None else str(self.node.gid)
        return facts


def when_of(origin: Mapping[str, str]) -> When:
    """Return when a listed device's claim receives the node."""
    return When(origin.get("usbfsWhen", When.NEVER))


def requested(device: Device) -> DeviceNode:
    """Return the node for a claim that asks for it. Raises ``Refuse`` where it may not have it."""
    origin = device.origin
    if when_of(origin) is When.NEVER or "usbfs" not in origin:
        why = origin.get("usbfsWhy") or "the device has no such node"
        raise Refuse(f"usbfs of {device.name} is not handed out: {why}", reason="no-usbfs")
    major, _, minor = origin["usbfsNumbers"].partition(":")
    group = origin.get("usbfsGroup", "")
    return DeviceNode(
        path=origin["usbfs"],
        major=int(major),
        minor=int(minor),
        subsystem=SUBSYSTEM,
        gid=int(group) if group else None,
        takes=(exclusive(f"usb:{origin['port']}"),),
    )
