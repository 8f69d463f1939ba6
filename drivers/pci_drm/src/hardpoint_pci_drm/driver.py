"""PCI functions and board devices, by the nodes that kernel drivers made for them."""

from __future__ import annotations

from collections.abc import Iterator

from hardpoint import AttributeInfo, Device, Health, Node, Unread, Withheld, hookimpl
from hardpoint_pci_drm import attributes
from hardpoint_pci_drm.health import health
from hardpoint_pci_drm.pci import PciIds
from hardpoint_pci_drm.scan import Scan
from hardpoint_pci_drm.settings import PciDrmSettings


class PciDrm:
    """A GPU as several devices, of which the render node is shared; other cards whole; disks."""

    Settings = PciDrmSettings

    def __init__(self, node: Node, settings: PciDrmSettings) -> None:
        self.node, self.settings = node, settings
        self.names = PciIds(settings.pci_ids)

    @hookimpl
    def publish_devices(self) -> Iterator[Device | Withheld | Unread]:
        """Judge every PCI function and whatever else on the board has nodes."""
        yield from Scan(self.node, self.settings, self.names).listed()

    @hookimpl
    def check_device(self, device: Device) -> Health:
        """Say whether it is on its bus, has its driver and answers."""
        return health(self.node, device)

    @hookimpl
    def describe_attributes(self) -> Iterator[AttributeInfo]:
        """List every attribute that a device may have."""
        yield from attributes.reference()
