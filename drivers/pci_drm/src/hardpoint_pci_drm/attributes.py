"""The attribute reference of this driver."""

from __future__ import annotations

from collections.abc import Iterator

from hardpoint import AttributeInfo, AttributeType
from hardpoint_pci_drm.shapes import SOUND

_BOOL, _INT, _STRING = AttributeType.BOOL, AttributeType.INT, AttributeType.STRING
_DISKS = ("disk", "disk.optical", "tape", "changer")

_ROWS: tuple[tuple[str, AttributeType, str, str, str], ...] = (
    ("bus", _STRING, "Bus that lists it: pci, or that of a board device", "subsystem", "pci"),
    (
        "address",
        _STRING,
        "Address on its bus, equal for all devices of one card",
        "",
        "0000:0a:00.0",
    ),
    (
        "resource.kubernetes.io/pciBusID",
        _STRING,
        "PCI address, equal for all devices of one card, also those of other drivers",
        "",
        "0000:0a:00.0",
    ),
    ("driver", _STRING, "Kernel driver", "driver", "i915"),
    ("class", _STRING, "Word for the base class of a PCI function", "class", "display"),
    ("classCode", _STRING, "Class code, six hexadecimal digits", "class", "030000"),
    ("subsystem", _STRING, "Kernel's word for its nodes, where they have one", "subsystem", "drm"),
    ("name", _STRING, "Name in the pci.ids database, or numbers", "pci.ids", "Navi 31"),
    ("modalias", _STRING, "What modprobe finds its driver by", "modalias", "pci:v00008086d0000…"),
    ("vendor", _STRING, "Vendor id, four hexadecimal digits", "vendor", "8086"),
    ("product", _STRING, "Device id, four hexadecimal digits", "device", "46d2"),
    ("subsystemVendor", _STRING, "Who made the card", "subsystem_vendor", "1028"),
    ("subsystemDevice", _STRING, "Which card of that maker", "subsystem_device", "0b0d"),
    ("revision", _STRING, "Revision of the chip", "revision", "01"),
    ("iommuGroup", _INT, "What a virtual machine takes together", "iommu_group", "14"),
    ("maxLinkWidth", _INT, "Lanes that its PCIe link can have", "max_link_width", "16"),
    ("renderNode", _BOOL, "Delivers a render node: draw, encode, compute", "drm", ""),
    ("displayNode", _BOOL, "Delivers a card node: set the mode of displays", "drm", ""),
    ("computeNode", _BOOL, "Delivers /dev/kfd beside the render node", "class/kfd", ""),
    ("serialNode", _BOOL, "Delivers a serial port", "tty", ""),
    ("captureNode", _BOOL, "Delivers a video node", "video4linux", ""),
    ("hidNode", _BOOL, "Delivers a hidraw node", "hidraw", ""),
    ("inputNode", _BOOL, "Delivers an input event node", "input", ""),
    ("cecNode", _BOOL, "Delivers a CEC bus", "cec", ""),
    ("printerNode", _BOOL, "Delivers a parallel printer", "printer", ""),
    ("soundNode", _BOOL, "Delivers ALSA nodes", "sound", ""),
    (SOUND, _BOOL, "Is a sound card, and nothing else beside it", "sound", ""),
    ("uniqueId", _STRING, "Number burnt into the chip of an AMD GPU", "unique_id", "7f1c…"),
)

_DISK_ROWS: tuple[tuple[str, AttributeType, str, str, str], ...] = (
    ("blockNode", _BOOL, "Delivers a block device", "block", ""),
    ("model", _STRING, "Model of the drive", "model", "EXAMPLE SSD"),
    ("serial", _STRING, "Serial number of the drive", "serial, vpd_pg80", "S4EV…"),
    ("wwid", _STRING, "Name unique in the world, if it fits in 64 bytes", "wwid", "naa.5000c…"),
    ("firmware", _STRING, "Firmware of the drive", "firmware_rev, rev, fwrev", "2.5+"),
    ("rotational", _BOOL, "It turns", "queue/rotational", ""),
    ("removable", _BOOL, "Its medium can be taken out", "removable", ""),
    ("readOnly", _BOOL, "It cannot be written", "ro", ""),
)


def reference() -> Iterator[AttributeInfo]:
    """Describe every attribute that this driver publishes."""
    for name, kind, meaning, source, example in _ROWS:
        yield AttributeInfo(
            name=name, type=kind, meaning=meaning, source=source or "sysfs name", example=example
        )
    for name, kind, meaning, source, example in _DISK_ROWS:
        yield AttributeInfo(
            name=name, type=kind, meaning=meaning, source=source, example=example, kinds=_DISKS
        )
    yield AttributeInfo(
        name="maxLinkSpeed",
        type=_INT,
        meaning="Speed that each lane of its PCIe link can have",
        source="max_link_speed",
        unit="MT/s",
        example="16000",
    )
    yield AttributeInfo(
        name="logicalBlockSize",
        type=_INT,
        meaning="Smallest piece that the drive reads or writes",
        source="queue/logical_block_size",
        unit="bytes",
        example="512",
        kinds=_DISKS,
    )
