"""USB devices: what kernel drivers made nodes of, and what programs drive through usbfs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hardpoint import (
    AttributeInfo,
    Delivery,
    Device,
    Health,
    Hold,
    Node,
    Unread,
    Withheld,
    hookimpl,
)
from hardpoint.platform import Platform
from hardpoint_usb import attributes, deliver, rebind
from hardpoint_usb.health import health
from hardpoint_usb.scan import Scan
from hardpoint_usb.settings import UsbParameters, UsbSettings
from hardpoint_usb.settling import Settling


class Usb:
    """One device per interface that a kernel driver made nodes of, or per port without a driver."""

    Settings = UsbSettings
    Parameters = UsbParameters

    def __init__(self, node: Node, settings: UsbSettings) -> None:
        self.node, self.settings, self.settling = node, settings, Settling()

    @hookimpl
    def publish_devices(self) -> Iterator[Device | Withheld | Unread]:
        """Judge what is in every port."""
        scan = Scan(self.node, self.settings, Platform.of(self.node).reason)
        yield from scan.listed()
        self.settling.look_again_in(scan.look_again_in)

    @hookimpl
    async def watch_devices(self, hint: Callable[[], None]) -> None:
        """Look again when a device has had its time to get a driver, and when a hold has ended."""
        await self.settling.watch(hint)

    @hookimpl
    def check_device(self, device: Device) -> Health:
        """Say whether it is still plugged in and allowed."""
        return health(self.node, device)

    @hookimpl
    def describe_attributes(self) -> Iterator[AttributeInfo]:
        """List every attribute that a USB device may have."""
        yield from attributes.reference()

    @hookimpl
    def deliver_device(self, device: Device, parameters: UsbParameters | None) -> Delivery:
        """Hand over the nodes of its driver, and usbfs where that is right."""
        return deliver.delivery(device, parameters)

    @hookimpl
    def prepare_device(self, device: Device, parameters: UsbParameters | None, hold: Hold) -> None:
        """Write down the kernel drivers that the holder could detach; nothing is changed."""
        rebind.remember(self.node, device, parameters, hold)

    @hookimpl
    def unprepare_device(self, hold: Hold) -> None:
        """Bind the drivers again that the holder left detached, and look what is there now."""
        rebind.restore(self.node, hold)
        self.settling.look_now()
