"""What a holder of a USB device receives; pure."""

from __future__ import annotations

from hardpoint import Delivery, Device, DeviceNode, Refuse, TryAgain
from hardpoint_usb.settings import UsbParameters
from hardpoint_usb.usbfs import SUBSYSTEM, When, requested, when_of


def delivery(device: Device, parameters: UsbParameters | None) -> Delivery:
    """Return the device's nodes, with or without that of the whole USB device.

    Raises ``Refuse`` where the claim asks for what it may not have, and ``TryAgain`` while there is
    nothing to hand over, since a container without its device would start and fail.
    """
    nodes, wanted = device.nodes, parameters and parameters.usbfs
    has_it = any(node.subsystem == SUBSYSTEM for node in nodes)
    if wanted and not has_it:
        nodes = (*nodes, requested(device))
    if wanted is False:
        nodes = _without_usbfs(device)
    if not nodes:
        raise TryAgain(f"{device.name} has no node now: its kernel driver is detached")
    return Delivery(nodes=nodes)


def takes_whole_device(device: Device, parameters: UsbParameters | None) -> bool:
    """Say whether a holder can detach the kernel's drivers from the device."""
    wanted = parameters.usbfs if parameters else None
    if wanted is None:
        return any(node.subsystem == SUBSYSTEM for node in device.nodes)
    return wanted


def _without_usbfs(device: Device) -> tuple[DeviceNode, ...]:
    if when_of(device.origin) is When.ALWAYS:
        raise Refuse(
            f"{device.name} is driven through usbfs: without it there is nothing to hand over",
            reason="only-usbfs",
        )
    return tuple(node for node in device.nodes if node.subsystem != SUBSYSTEM)
