"""What a PCI function says of itself: identity, class, and a name from the pci.ids database."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from hardpoint import Entry
from hardpoint.model import AttributeValue
from hardpoint.node import clean

log = logging.getLogger(__name__)

CLASS_WORDS = {
    "01": "storage",
    "02": "network",
    "03": "display",
    "04": "multimedia",
    "05": "memory",
    "06": "bridge",
    "07": "communication",
    "08": "system",
    "09": "input",
    "0c": "serial-bus",
    "0d": "wireless",
    "10": "encryption",
    "12": "accelerator",
}
"""Base classes of the PCI Code and ID Assignment Specification that have a word here."""

SD_HOST = "0805"

_ID = re.compile(r"[0-9a-f]{4}")
_SPEED = re.compile(r"(\d{1,9})(?:\.(\d))? GT/s", re.ASCII)
_NEXT = re.compile(rb"\n[^\t#\n]")
"""The row of the next vendor, or of the classes."""
_LARGEST_IDS = 16 << 20


def class_word(code: str) -> str:
    """Return the word for a class code (``030000``); ``""`` where there is none.

    An SD host controller is a system peripheral by its class, and storage to everybody else.
    """
    return "storage" if code.startswith(SD_HOST) else CLASS_WORDS.get(code[:2], "")


def hexadecimal(text: str) -> str:
    """Return the digits of ``0x8086`` in lower case."""
    return text.lower().removeprefix("0x")


def identity(function: Entry, names: PciIds) -> dict[str, AttributeValue]:
    """Return what every device of this function is known by; absent facts are left out."""
    vendor, product = (hexadecimal(function.text(word)) for word in ("vendor", "device"))
    code = hexadecimal(function.text("class"))
    facts: dict[str, AttributeValue | None] = {
        "bus": "pci",
        "address": function.address,
        "resource.kubernetes.io/pciBusID": function.address,
        "driver": function.driver,
        "class": class_word(code),
        "classCode": code,
        "name": names.name(vendor, product),
        "modalias": function.text("modalias"),
        "vendor": vendor,
        "product": product,
        **_finer(function),
    }
    return {name: value for name, value in facts.items() if value not in (None, "")}


def _finer(function: Entry) -> dict[str, AttributeValue | None]:
    """Return facts that no selector needs to find a device, and some need to choose one.

    Only what lasts: the speed that a link *can* have, not the one that saves power just now.
    """
    group = function.link("iommu_group")
    chip = function.get("unique_id")  # amdgpu reads it from the chip itself
    width = function.number("max_link_width")
    return {
        "subsystemVendor": hexadecimal(function.get("subsystem_vendor")),
        "subsystemDevice": hexadecimal(function.get("subsystem_device")),
        "revision": hexadecimal(function.get("revision")),
        "iommuGroup": int(group) if re.fullmatch("[0-9]+", group) else None,
        "maxLinkSpeed": megatransfers(function.get("max_link_speed")),
        "uniqueId": chip if chip.strip("0") else None,
        "maxLinkWidth": width if width and width < 255 else None,  # 255: the kernel does not know
    }


def megatransfers(speed: str) -> int | None:
    """Return ``8.0 GT/s PCIe`` as 8000; None for ``Unknown`` and where there is no link."""
    found = _SPEED.match(speed)
    return int(found[1]) * 1000 + int(found[2] or 0) * 100 if found else None


class PciIds:
    """The pci.ids database, read when the first name is asked for.

    Rows are ``vvvv  Vendor``, below them ``<tab>dddd  Device`` and two tabs for subsystems; the
    classes at the end have rows of their own.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(paths)
        self._text: bytes | None = None
        self.name = cache(self._name)

    def _name(self, vendor: str, device: str) -> str:
        """Return ``Alder Lake-N [UHD Graphics]``, or as much as is known: ``8086:46d2`` at worst.

        ``""`` for a function without a vendor.
        """
        vendor, device = vendor.lower(), device.lower()
        if not (_ID.fullmatch(vendor) and _ID.fullmatch(device)):
            return f"{vendor}:{device}" if vendor else ""
        rows = self._rows(vendor)
        if not rows:
            return f"{vendor}:{device}"
        prefix = f"\t{device}  ".encode()
        for row in rows:
            if row.startswith(prefix):
                return clean(row[len(prefix) :])
        return f"{clean(rows[0])} device {device}"

    def _rows(self, vendor: str) -> list[bytes]:
        """Return a vendor's name and the rows below it."""
        text = self._read()
        start = text.find(f"\n{vendor}  ".encode())
        if start < 0:
            return []
        end = _NEXT.search(text, start + 1)
        return text[start + 7 : end.start() if end else len(text)].split(b"\n")

    def _read(self) -> bytes:
        if self._text is None:
            self._text = next(filter(None, map(_contents, self._paths)), b"")
            if not self._text:
                log.info("pci_ids=none paths=%s names=numeric", ",".join(self._paths))
        return self._text


def _contents(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return b"\n" + file.read(_LARGEST_IDS)
    except OSError:
        return b""
