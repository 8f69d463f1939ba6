"""Whether a device is still there and may be used; what it does beyond that nobody can tell."""

from __future__ import annotations

from hardpoint import Condition, Device, Health, Node


def health(node: Node, device: Device) -> Health:
    """Look at the device again. Raises ``OSError`` where sysfs cannot be read: unknown."""
    port = node.usb(device.origin["port"])
    if not port.exists():
        return Health(Condition.UNHEALTHY, "it was unplugged")
    if port.text("authorized") == "0":
        return Health(Condition.UNHEALTHY, "it is not authorised any more")
    interface = device.origin.get("interface")
    if interface and not node.usb(interface).exists():
        return Health(Condition.UNHEALTHY, "it is there without this interface")
    return Health(Condition.HEALTHY)
