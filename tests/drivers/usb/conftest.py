from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hardpoint import Device, Node, Unread, Withheld
from hardpoint.testing import FakeMachine
from hardpoint_usb import Usb
from recorded_machines import recorded

__all__ = ["Seen", "look", "recorded", "see"]


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


Look = Callable[..., Seen]


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


@pytest.fixture
def look(machine: FakeMachine) -> Look:
    """Return a function that lists the fake machine as it is now."""

    def now(held: Mapping[str, Device] | None = None, **settings: Any) -> Seen:
        node = machine.node()
        if held is not None:
            node.held = lambda: held
        return see(node, **settings)

    return now
