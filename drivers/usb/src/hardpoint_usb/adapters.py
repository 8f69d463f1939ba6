"""What a Bluetooth adapter's holder needs besides the adapter.

A Bluetooth stack makes input devices: ``/dev/uhid`` for HID over GATT, ``/dev/uinput`` for what it
translates, and the event nodes that come of them, in the container, while it runs. Those have the
fixed numbers 13:64 to 13:95, so they are handed over before they exist.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from hardpoint import DeviceNode, Node

BTUSB = "btusb"

_EVENTS = 32
"""Event devices with fixed minors (drivers/input/evdev.c, EVDEV_MINORS)."""
_INPUT_MAJOR, _FIRST_MINOR = 13, 64
_OWNER_ONLY = 0o600
"""Without a mode the runtime makes a node that only CAP_DAC_OVERRIDE opens."""


def extra_nodes(node: Node, adapter: str) -> Iterator[DeviceNode]:
    """Yield uhid, uinput and the event nodes for the holder of the adapter at a sysfs path.

    Numbers that belong to other hardware now (somebody's keyboard) are left out: its input is not
    the adapter's.
    """
    uhid = node.entry("class/misc/uhid").device_node()
    uinput = node.entry("class/misc/uinput").device_node()
    for misc in (uhid, uinput):
        if misc is not None:
            yield replace(misc, shared=True)
    if uinput is None:
        return
    foreign = set(_foreign_events(node, adapter))
    for number in range(_EVENTS):
        if f"event{number}" not in foreign:
            yield DeviceNode(
                path=f"/dev/input/event{number}",
                major=_INPUT_MAJOR,
                minor=_FIRST_MINOR + number,
                subsystem="input",
                mode=_OWNER_ONLY,
                shared=True,
                absent_ok=True,
            )


def _foreign_events(node: Node, adapter: str) -> Iterator[str]:
    """Yield event devices of hardware other than the adapter and what is connected to it."""
    virtual = os.path.join(node.devices, "virtual", "")
    for event in node.entries("class/input"):
        if event.name.startswith("event") and not event.path.startswith((virtual, adapter)):
            yield event.name
