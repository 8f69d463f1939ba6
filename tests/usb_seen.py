"""What the USB driver lists, sorted for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hardpoint import Device, Node, Unread, Withheld
from hardpoint_usb import Usb


@dataclass
class Seen:
    """What the driver listed, by name and by subject."""

    devices: dict[str, Device]
    withheld: dict[str, Withheld]
    unread: dict[str, Unread]

    @property
    def names(self) -> list[str]:
        return list(self.devices)

    def rules(self) -> dict[str, str]:
        return {subject: item.rule for subject, item in self.withheld.items()}


def see(node: Node, **settings: Any) -> Seen:
    """List a machine with these settings."""
    listed = list(Usb(node, Usb.Settings(**settings)).publish_devices())
    devices = [item for item in listed if isinstance(item, Device)]
    assert len({device.name for device in devices}) == len(devices), "a name twice"
    return Seen(
        {device.name: device for device in devices},
        {item.subject: item for item in listed if isinstance(item, Withheld)},
        {item.entry: item for item in listed if isinstance(item, Unread)},
    )
