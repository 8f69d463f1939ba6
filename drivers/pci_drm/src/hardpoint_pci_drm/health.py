"""Whether a device is still there, as far as sysfs tells without waking it."""

from __future__ import annotations

import os

from hardpoint import Condition, Device, Entry, Health, Node

_NOTHING = b"\xff" * 4
"""What the bus answers for a function that does not: vendor and device of all ones."""


def health(node: Node, device: Device) -> Health:
    """Look at the function or board device that a device was read from."""
    bus, address = device.origin["bus"], device.origin["address"]
    entry = node.entry(f"bus/{bus}/devices/{address}")
    if not entry.exists():
        return Health(Condition.UNHEALTHY, f"{address} is gone from the {bus} bus")
    if not entry.driver:
        return Health(Condition.UNHEALTHY, f"no kernel driver is bound to {address} any more")
    if bus == "pci" and not _sleeps(entry) and _first_bytes(entry) == _NOTHING:
        return Health(Condition.UNHEALTHY, f"{address} has fallen off the bus: it answers nothing")
    return Health(Condition.HEALTHY)


def _sleeps(entry: Entry) -> bool:
    """Say whether reading its configuration would wake it (Documentation/power/pci.rst)."""
    return entry.get("power/runtime_status") not in ("", "active", "unsupported")


def _first_bytes(entry: Entry) -> bytes:
    try:
        with open(os.path.join(entry.path, "config"), "rb", buffering=0) as config:
            return config.read(4)
    except OSError:
        return b""
