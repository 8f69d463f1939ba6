"""One look of the PCI driver at a machine, sorted into what it publishes and what it does not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hardpoint import Device, Node, Unread, Withheld
from hardpoint_pci_drm import PciDrm


@dataclass(frozen=True)
class Look:
    devices: dict[str, Device]
    withheld: dict[str, Withheld]
    unread: dict[str, Unread]

    @property
    def rules(self) -> dict[str, str]:
        return {subject: withheld.rule for subject, withheld in self.withheld.items()}

    @property
    def nodes(self) -> dict[str, list[str]]:
        return {name: [n.path for n in device.nodes] for name, device in self.devices.items()}

    @property
    def kinds(self) -> dict[str, str]:
        return {name: device.kind for name, device in self.devices.items()}


def look(
    node: Node, *, pci_ids: Path | None = None, compute: bool = True, smbus: bool = False
) -> Look:
    ids = (str(pci_ids),) if pci_ids else ()
    driver = PciDrm(node, PciDrm.Settings(pci_ids=ids, compute=compute, smbus=smbus))
    listed = list(driver.publish_devices())
    devices = [item for item in listed if isinstance(item, Device)]
    found = Look(
        {device.name: device for device in devices},
        {item.subject: item for item in listed if isinstance(item, Withheld)},
        {item.entry: item for item in listed if isinstance(item, Unread)},
    )
    assert len(found.devices) == len(devices), "two devices of one name"
    return found
